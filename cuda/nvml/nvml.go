// Package nvml tells facts of a GPU that CUDA does not: who else uses it, its place in the machine,
// its links.
//
// NVML (libnvidia-ml.so.1, part of the driver) is looked for when Facts is called; a program that
// imports this package builds and runs without it. The binding is go-nvml, whose functions are
// bound at their first call: such a program must not be started with LD_BIND_NOW set, nor be linked
// with -z now.
package nvml

import (
	"fmt"
	"math/bits"
	"runtime"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"lockstep/internal/ccall"
)

// Result is a failing nvmlReturn_t, whose Error is NVML's text. It is comparable.
type Result = nvml.Return

// Info holds the facts of one GPU. A fact that the device or the driver does not tell has the named
// value.
type Info struct {
	Driver      string    // version of the driver: "580.159.03"
	CUDA        int       // highest CUDA version the driver serves: 13000
	Name        string    // "NVIDIA H200"; "" if not told
	MemoryUsed  int       // bytes, by all processes, without the driver's own if it tells that apart
	MemoryTotal int       // bytes
	ComputeMode string    // "Default", "Exclusive_Process" or "Prohibited", as nvidia-smi has them; "" if not told
	PCI         string    // "0000:1b:00.0", as in /sys/bus/pci/devices
	NUMA        int       // node whose memory is nearest, -1 if not told
	CPUs        []int     // processors nearest to the device, ascending; nil if not told
	NVLinks     int       // links that are up; 0 if it has none
	Processes   []Process // that have a CUDA context on it, in NVML's order; a container sees only its own, or none
	Unknown     []string  // facts that were not told, and why: "NUMA node: Not Supported"
}

// Process is a process that uses a GPU.
type Process struct {
	PID   int
	Bytes int // of device memory, -1 if not told
}

// mu keeps the loading and unloading of the library, which go-nvml counts, in one piece with the
// questions in between.
var mu sync.Mutex

// Facts asks NVML about the device with this UUID ("GPU-xxxxxxxx-..."; cuda.UUIDOf gives it). It
// fails if there is no NVML, if it does not start, or if it knows no such device. Info.Unknown
// lists other facts that cannot be learnt. A failing call is a *ccall.Error whose status is a
// Result. It blocks for as long as the driver takes, which is a second or so if nothing else keeps
// the driver awake. Source: nvml.h, nvmlDeviceGetHandleByUUID and the calls named after each fact.
func Facts(uuid string) (info Info, err error) {
	mu.Lock()
	defer mu.Unlock()
	if r := nvml.Init(); r == nvml.ERROR_LIBRARY_NOT_FOUND {
		return Info{}, failed("nvmlInit_v2", r, "libnvidia-ml.so.1, a part of NVIDIA's driver, cannot be opened")
	} else if r != nvml.SUCCESS {
		return Info{}, failed("nvmlInit_v2", r, "")
	}
	defer func() {
		if r := nvml.Shutdown(); r != nvml.SUCCESS && err == nil {
			err = failed("nvmlShutdown", r, "")
		}
	}()
	q := asker{info: Info{NUMA: -1}}
	if !q.has("nvmlDeviceGetHandleByUUID") {
		return Info{}, failed("nvmlDeviceGetHandleByUUID", nvml.ERROR_FUNCTION_NOT_FOUND, "")
	}
	d, r := nvml.DeviceGetHandleByUUID(uuid)
	if r != nvml.SUCCESS {
		return Info{}, failed("nvmlDeviceGetHandleByUUID", r, uuid)
	}
	q.ask(d)
	return q.info, nil
}

// asker gathers the facts that are told, and those that are not.
type asker struct{ info Info }

// has reports whether the library has a function. Calling one that it lacks would end the process.
func (q *asker) has(symbols ...string) bool {
	for _, s := range symbols {
		if nvml.Extensions().LookupSymbol(s) != nil {
			return false
		}
	}
	return true
}

// told reports whether a fact was told, and notes it if not.
func (q *asker) told(what string, r nvml.Return) bool {
	if r != nvml.SUCCESS {
		q.info.Unknown = append(q.info.Unknown, what+": "+r.Error())
	}
	return r == nvml.SUCCESS
}

// lacks reports whether the library lacks a function that a fact comes from, and notes it if so.
func (q *asker) lacks(what, symbol string) bool {
	if q.has(symbol) {
		return false
	}
	return !q.told(what, nvml.ERROR_FUNCTION_NOT_FOUND)
}

func (q *asker) ask(d nvml.Device) {
	i := &q.info
	if !q.lacks("driver version", "nvmlSystemGetDriverVersion") {
		v, r := nvml.SystemGetDriverVersion()
		if q.told("driver version", r) {
			i.Driver = v
		}
	}
	if !q.lacks("CUDA version", "nvmlSystemGetCudaDriverVersion") {
		v, r := nvml.SystemGetCudaDriverVersion()
		if q.told("CUDA version", r) {
			i.CUDA = v
		}
	}
	if !q.lacks("name", "nvmlDeviceGetName") {
		v, r := d.GetName()
		if q.told("name", r) {
			i.Name = v
		}
	}
	q.memory(d)
	if !q.lacks("compute mode", "nvmlDeviceGetComputeMode") {
		v, r := d.GetComputeMode()
		if q.told("compute mode", r) {
			i.ComputeMode = computeMode(v)
		}
	}
	if !q.lacks("PCI bus id", "nvmlDeviceGetPciInfo_v3") {
		v, r := d.GetPciInfo()
		if q.told("PCI bus id", r) {
			i.PCI = fmt.Sprintf("%04x:%02x:%02x.0", v.Domain, v.Bus, v.Device)
		}
	}
	if !q.lacks("NUMA node", "nvmlDeviceGetMemoryAffinity") {
		v, r := d.GetMemoryAffinity(maxNodes, nvml.AFFINITY_SCOPE_NODE)
		if q.told("NUMA node", r) {
			if nodes := set(v); len(nodes) > 0 {
				i.NUMA = nodes[0]
			}
		}
	}
	if !q.lacks("CPU affinity", "nvmlDeviceGetCpuAffinity") {
		v, r := d.GetCpuAffinity(max(maxCPUs, runtime.NumCPU()))
		if q.told("CPU affinity", r) {
			i.CPUs = set(v)
		}
	}
	if !q.lacks("NVLinks", "nvmlDeviceGetNvLinkState") {
		i.NVLinks = q.links(d)
	}
	if !q.lacks("processes", "nvmlDeviceGetComputeRunningProcesses") {
		v, r := d.GetComputeRunningProcesses()
		if q.told("processes", r) {
			for _, p := range v {
				i.Processes = append(i.Processes, Process{PID: int(p.Pid), Bytes: processBytes(p.UsedGpuMemory)})
			}
		}
	}
}

const (
	maxNodes = 1024
	maxCPUs  = 4096
)

// memory takes the second form of the call if there is one: in the first the driver's own share
// counts as used.
func (q *asker) memory(d nvml.Device) {
	if q.has("nvmlDeviceGetMemoryInfo_v2") {
		if v, r := d.GetMemoryInfo_v2(); r == nvml.SUCCESS {
			q.info.MemoryUsed, q.info.MemoryTotal = int(v.Used), int(v.Total)
			return
		}
	}
	if q.lacks("memory", "nvmlDeviceGetMemoryInfo") {
		return
	}
	v, r := d.GetMemoryInfo()
	if q.told("memory", r) {
		q.info.MemoryUsed, q.info.MemoryTotal = int(v.Used), int(v.Total)
	}
}

// links counts the links that are up. A device without NVLink does not support the call. One with
// fewer links than another refuses the numbers beyond its own. Neither is a fact unknown.
func (q *asker) links(d nvml.Device) (n int) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, r := d.GetNvLinkState(link)
		if r == nvml.ERROR_NOT_SUPPORTED || r == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if !q.told(fmt.Sprintf("NVLink %d", link), r) {
			return n
		}
		if state == nvml.FEATURE_ENABLED {
			n++
		}
	}
	return n
}

func computeMode(m nvml.ComputeMode) string {
	switch m {
	case nvml.COMPUTEMODE_DEFAULT:
		return "Default"
	case nvml.COMPUTEMODE_EXCLUSIVE_THREAD:
		return "Exclusive_Thread"
	case nvml.COMPUTEMODE_PROHIBITED:
		return "Prohibited"
	case nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		return "Exclusive_Process"
	default:
		return fmt.Sprintf("mode %d", int32(m))
	}
}

// processBytes turns NVML's "not available" into -1.
func processBytes(n uint64) int {
	if n == ^uint64(0) {
		return -1
	}
	return int(n)
}

// set returns the numbers of the bits that are set.
func set(words []uint) (members []int) {
	for i, w := range words {
		for ; w != 0; w &= w - 1 {
			members = append(members, i*bits.UintSize+bits.TrailingZeros(w))
		}
	}
	return members
}

func failed(op string, r nvml.Return, detail string) error {
	return &ccall.Error{Op: op, Rank: -1, At: ccall.At(), Err: r, Detail: strings.TrimSpace(detail)}
}
