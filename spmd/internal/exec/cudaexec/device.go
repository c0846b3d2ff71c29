package cudaexec

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// CUDA is a GPU, as one world works on it.
type CUDA struct {
	exec.Queues
	GPU       *GPU
	fill      *exec.Kernel
	Found     exec.Explanation // of the failures of queues
	tickets   *control.Tickets
	fail      func(error) // is told of the first failure of a queue
	pools     exec.Pools
	own       []*exec.Pool
	stage     staging
	proxy     proxy
	capturing atomic.Int32
	splits    atomic.Int32 // graphs whose parts may be timed
	base      base
	Crowded   bool // other ranks need the cores of this one: a host that waits does not spin
	Log       *zerolog.Logger
	Trace     *trace.Tracer // notes what queues do, from before the first is made; nil if nobody does

	mu     sync.Mutex
	timers []*timer                // that hold an event of the driver
	told   map[unsafe.Pointer]bool // blocks of managed memory that something was said of
}

// NewDevice returns the GPU for one world. fill is the kernel that fills memory with values of 8
// bytes. Its parameters are the address, the number of values, and the value. What the host does
// for queues takes its turns among tickets.
func NewDevice(g *GPU, fill *exec.Kernel, tickets *control.Tickets, fail func(error)) *CUDA {
	d := &CUDA{GPU: g, fill: fill, tickets: tickets, fail: fail, Log: &zerolog.Logger{}}
	dev := g.Dev
	room := func() string {
		free, total, err := dev.MemInfo()
		if err != nil {
			return "free unknown"
		}
		return fmt.Sprintf("%d of %d free on the device", free, total)
	}
	d.pools = exec.Pools{Device: &exec.Pool{}, Pinned: &exec.Pool{}, Managed: &exec.Pool{}}
	d.pools.Device.Init(exec.Source{What: "device memory", SlabMax: 1 << 20, SlabSize: 32 << 20,
		Quiesce: d.Quiesce, Room: room,
		Get: dev.Malloc, Put: func(p unsafe.Pointer, _ int) error { return dev.Free(p) }})
	d.pools.Pinned.Init(exec.Source{What: "pinned host memory", Host: true, SlabMax: 1 << 18, SlabSize: 4 << 20,
		Quiesce: d.Quiesce,
		Get:     dev.MallocHost, Put: func(p unsafe.Pointer, _ int) error { return dev.FreeHost(p) }})
	d.pools.Managed.Init(exec.Source{What: "managed memory", Host: true, SlabMax: 1 << 18, SlabSize: 4 << 20,
		Quiesce: d.Quiesce, Room: room,
		Get: dev.MallocManaged, Put: func(p unsafe.Pointer, _ int) error { return dev.Free(p) }})
	return d
}

var _ exec.Device = (*CUDA)(nil)

func (d *CUDA) Name() string { return d.GPU.Dev.Name() }

func (d *CUDA) Pools() exec.Pools { return d.pools }

func (d *CUDA) Describe(line *zerolog.Event) {
	dev := d.GPU.Dev
	major, minor := nvrtc.Version()
	v := cuda.DriverVersion()
	line.Int("gpu", dev.Index()).Str("pci", dev.PCI()).Str("cuda", fmt.Sprintf("%d.%d", v/1000, v%1000/10)).
		Str("nvrtc", fmt.Sprintf("%d.%d", major, minor))
	if driver, err := os.ReadFile("/sys/module/nvidia/version"); err == nil {
		line.Str("driver", strings.TrimSpace(string(driver)))
	}
}

// Own has Close close a pool of the device's memory.
func (d *CUDA) Own(p *exec.Pool) { d.own = append(d.own, p) }

func (d *CUDA) Limits() exec.Limits {
	return exec.Limits{Multiprocessors: d.GPU.Dev.Multiprocessors(), SharedMemory: d.GPU.Dev.SharedMemory()}
}

func (d *CUDA) Room() (free, total int, err error) { return d.GPU.Dev.MemInfo() }

// Quiesce implements exec.Device. It waits until no collective of the world is in flight, by
// looking and not by synchronising the device. The driver's allocator, and whatever loads code, may
// wait for kernels. A kernel of NCCL waits for other ranks, which may be waiting for this one.
func (d *CUDA) Quiesce() error {
	var ends []exec.Point
	for _, q := range d.All() {
		q := q.(*Queue)
		if end, ok := q.inFlight(); ok {
			ends = append(ends, exec.Point{Q: q, Seq: end})
		}
	}
	if err := exec.WaitFor(ends); err != nil {
		return fmt.Errorf("the driver is needed while collectives are in flight (allocate before they start): %w", err)
	}
	return nil
}

// inFlight returns the end of the queue's last collective, if it is not known to have run.
func (q *Queue) inFlight() (uint64, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	coll := q.coll.Load()
	return coll, coll > q.known.Load() && !q.closed
}

func (d *CUDA) Close() error {
	d.mu.Lock()
	timers := slices.Clone(d.timers)
	d.mu.Unlock()
	var err error
	for _, e := range timers {
		err = errors.Join(err, e.Close())
	}
	for _, q := range d.All() {
		err = errors.Join(err, q.Close())
	}
	if d.base.e != nil {
		err = errors.Join(err, d.base.e.Close())
	}
	for _, p := range append([]*exec.Pool{d.pools.Device, d.pools.Pinned, d.pools.Managed}, d.own...) {
		err = errors.Join(err, p.Close())
	}
	return errors.Join(err, d.GPU.Close())
}

// staging moves data between Go's memory and the GPU: through pinned memory, since
// C may not keep an address of Go's, in two halves that take turns.
type staging struct {
	mu   sync.Mutex
	q    *Queue
	half [2]exec.Block
}

const stageBytes = 2 << 20 // of each half of the staging buffer

// OpenStaging makes what ToDevice and ToHost need.
func (d *CUDA) OpenStaging() error {
	q, err := d.NewQueue("copies", exec.High)
	if err != nil {
		return err
	}
	d.stage.q = q.(*Queue)
	for i := range d.stage.half {
		if err := d.pools.Pinned.Alloc(&d.stage.half[i], stageBytes); err != nil {
			return err
		}
	}
	return nil
}

func (d *CUDA) ToDevice(dst, src unsafe.Pointer, n int) error {
	st := &d.stage
	st.mu.Lock()
	defer st.mu.Unlock()
	var sent [2]exec.Point
	for i, off := 0, 0; off < n; i, off = 1-i, off+stageBytes {
		if err := sent[i].Wait(); err != nil {
			return err
		}
		k := min(stageBytes, n-off)
		copy(unsafe.Slice((*byte)(st.half[i].Ptr), k), unsafe.Slice((*byte)(unsafe.Add(src, off)), k))
		if err := st.copy(unsafe.Add(dst, off), st.half[i].Ptr, k); err != nil {
			return err
		}
		sent[i] = st.q.End()
	}
	return st.q.End().Wait()
}

func (d *CUDA) ToHost(dst, src unsafe.Pointer, n int) error {
	st := &d.stage
	st.mu.Lock()
	defer st.mu.Unlock()
	var here [2]exec.Point
	fetch := func(i, off int) error {
		if off >= n {
			return nil
		}
		err := st.copy(st.half[i].Ptr, unsafe.Add(src, off), min(stageBytes, n-off))
		here[i] = st.q.End()
		return err
	}
	if err := fetch(0, 0); err != nil {
		return err
	}
	for i, off := 0, 0; off < n; i, off = 1-i, off+stageBytes {
		if err := fetch(1-i, off+stageBytes); err != nil {
			return err
		}
		if err := here[i].Wait(); err != nil {
			return err
		}
		k := min(stageBytes, n-off)
		copy(unsafe.Slice((*byte)(unsafe.Add(dst, off)), k), unsafe.Slice((*byte)(st.half[i].Ptr), k))
	}
	return nil
}

func (d *CUDA) SetAll(t elem.Type, dst unsafe.Pointer, n int, v elem.Bits) error {
	q := d.stage.q
	c, err := q.Begin(exec.DoFill)
	if err != nil {
		return err
	}
	c.Type, c.Dst, c.N, c.Bits, c.Hosted = t, dst, n, v, false // which others fill themselves
	if err := q.Enqueue(c); err != nil {
		return err
	}
	return q.End().Wait()
}

func (st *staging) copy(dst, src unsafe.Pointer, n int) error {
	c, err := st.q.Begin(exec.DoCopy)
	if err != nil {
		return err
	}
	c.Dst, c.Src, c.N = dst, src, n
	if err := st.q.Enqueue(c); err != nil {
		return err
	}
	st.q.marked() // here, not behind the next copy
	return nil
}
