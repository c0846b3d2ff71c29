package nvml

import (
	"sync"
	"unsafe"

	"lockstep/internal/ccall"
)

// Result is a failing nvmlReturn_t. It is comparable.
type Result int

// These are results. Source: nvml.h, nvmlReturn_t.
const (
	invalidArgument  = 2
	notSupported     = 3
	insufficientSize = 7
	notFound         = 13 // of a function that the library lacks
)

// Error is NVML's text for it.
func (r Result) Error() string { return sysText(int(r)) }

// Reading is the state of a GPU at one time. Values that the device or the driver does not tell are
// 0, or nil.
type Reading struct {
	MemoryUsed  int      // bytes, by all processes, without the driver's own if it tells that apart
	MemoryTotal int      // bytes
	Clock       int      // of the multiprocessors, in MHz
	MostClock   int      // that they can have, in MHz
	MemoryClock int      // in MHz
	Power       float64  // in W
	PowerLimit  float64  // that holds now, in W
	Temperature int      // in degrees Celsius
	Busy        int      // percent of the last moments in which a kernel ran
	Slowed      []string // why the clock is lower than it could be: "power limit", "heat"; not that the GPU is idle
}

// Meter reads a GPU again and again. One goroutine at a time may use it.
type Meter struct{ device unsafe.Pointer }

var (
	mu   sync.Mutex
	load = sync.OnceValue(open)
)

// Open looks for the device with this UUID ("GPU-xxxxxxxx-..."; cuda.UUIDOf gives it), and keeps
// NVML open until Close. It fails if there is no NVML, if it does not start, or if it knows no such
// device. It blocks for as long as the driver takes, which is a second or so if nothing else keeps
// the driver awake. Source: nvml.h, nvmlInit_v2 and nvmlDeviceGetHandleByUUID.
func Open(uuid string) (*Meter, error) {
	mu.Lock()
	defer mu.Unlock()
	if err := load(); err != nil {
		return nil, &ccall.Error{Op: "nvmlInit_v2", Rank: -1, At: ccall.At(), Err: err}
	}
	if status := sysInit(); status != 0 {
		return nil, failed("nvmlInit_v2", status, "")
	}
	device, status := sysFind(uuid)
	if status != 0 {
		err := failed("nvmlDeviceGetHandleByUUID", status, uuid)
		sysShutdown() // the failure above counts
		return nil, err
	}
	return &Meter{device}, nil
}

// Close lets go of NVML.
// Source: nvml.h, nvmlShutdown.
func (m *Meter) Close() error {
	mu.Lock()
	defer mu.Unlock()
	if status := sysShutdown(); status != 0 {
		return failed("nvmlShutdown", status, "")
	}
	return nil
}

// The kinds of clocks and sensors. Source: nvml.h, nvmlClockType_t and nvmlTemperatureSensors_t.
const (
	clockSM     = 1
	clockMemory = 2
	sensorGPU   = 0
)

// slowdowns are the reasons for a lower clock, by their bits.
// Source: nvml.h, nvmlClocksEventReasons.
var slowdowns = []struct {
	bits uint64
	name string
}{
	{0x4, "power limit"},
	{0x20 | 0x40, "heat"}, // by software, by hardware
	{0x80, "power supply"},
	{0x8, "hardware"},
	{0x2, "clocks set by hand"},
	{0x10, "slower GPU in its group"},
	{0x100, "display"},
}

// Read asks the device. It blocks for some hundred microseconds.
// Source: nvml.h, nvmlDeviceGetClockInfo and the calls named after each value.
func (m *Meter) Read() (r Reading) {
	d := m.device
	r.MemoryUsed, r.MemoryTotal, _ = sysMemory(d)
	r.Clock, _ = sysNumberOf(lib.clock, d, clockSM)
	r.MemoryClock, _ = sysNumberOf(lib.clock, d, clockMemory)
	r.MostClock, _ = sysNumberOf(lib.mostClock, d, clockSM)
	power, _ := sysNumber(lib.power, d)
	limit, _ := sysNumber(lib.powerLimit, d)
	r.Power, r.PowerLimit = float64(power)/1e3, float64(limit)/1e3
	r.Temperature, _ = sysNumberOf(lib.temperature, d, sensorGPU)
	r.Busy = sysBusy(d)
	reasons := lib.reasons
	if reasons == nil {
		reasons = lib.oldReasons // before driver 535
	}
	why := sysBits(reasons, d)
	for _, s := range slowdowns {
		if why&s.bits != 0 {
			r.Slowed = append(r.Slowed, s.name)
		}
	}
	return r
}

func failed(op string, status int, detail string) error {
	return &ccall.Error{Op: op, Rank: -1, At: ccall.At(), Err: Result(status), Detail: detail}
}
