// Package hostexec runs commands on the host. A queue is a ring of commands with one goroutine, an
// event a point in it, and a graph lists of commands that goroutines replay.
package hostexec

import (
	"errors"
	"time"
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/internal/elem"
	"lockstep/internal/process"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// Host is the host, as one world works on it.
type Host struct {
	exec.Queues
	pool    *exec.Pool       // of Alloc, which programs only copy from and to, as on a GPU
	open    *exec.Pool       // that programs address
	tickets *control.Tickets // the order of calls into MPI
	fail    func(error)      // is told of the first failure of a queue

	Trace *trace.Tracer // notes what queues do; nil where nobody does
	// Emulator runs kernels from their CUDA source; nil where their host functions run.
	Emulator *Emulator
	Found    exec.Explanation // of the failures of queues
	Near     func()           // moves the calling thread to the cores of this rank; nil where it has none of its own
}

// NewDevice returns the host. Calls of communicators take their turns among tickets.
func NewDevice(tickets *control.Tickets, fail func(error)) *Host {
	d := &Host{pool: &exec.Pool{}, open: &exec.Pool{}, tickets: tickets, fail: fail}
	source := exec.HostSource()
	d.open.Init(source)
	source = exec.HostSource()
	source.Private = true
	d.pool.Init(source)
	return d
}

var _ exec.Device = (*Host)(nil)

func (d *Host) NewQueue(name string, _ exec.Priority) (exec.Queue, error) {
	q := newQueue(d, name)
	d.Add(q)
	go q.work()
	return q, nil
}

func (d *Host) NewTimer() exec.Timer { return &timer{} }

func (d *Host) NewBuilder() exec.Builder { return &builder{d: d} }

func (d *Host) Name() string {
	if d.Emulator != nil {
		return "emulate"
	}
	return "host"
}

func (d *Host) Pools() exec.Pools {
	return exec.Pools{Device: d.pool, Pinned: d.open, Managed: d.open}
}

// Describe implements exec.Device: there is nothing to say.
func (d *Host) Describe(*zerolog.Event) {}

func (d *Host) Limits() exec.Limits { return exec.Limits{} }

// Room implements exec.Device: what processes can still have, and what there is.
func (d *Host) Room() (free, total int, err error) { return process.Memory("/") }

func (d *Host) ToDevice(dst, src unsafe.Pointer, n int) error {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
	return nil
}

func (d *Host) ToHost(dst, src unsafe.Pointer, n int) error { return d.ToDevice(dst, src, n) }

func (d *Host) SetAll(t elem.Type, dst unsafe.Pointer, n int, v elem.Bits) error {
	FillAs(t, dst, n, v)
	return nil
}

// Advise implements exec.Device: there is one memory.
func (d *Host) Advise(*exec.Block, unsafe.Pointer, int, exec.Advice) error { return nil }

func (d *Host) Unadvise(*exec.Block) error { return nil }

// Quiesce implements exec.Device: nothing here waits for the device.
func (d *Host) Quiesce() error { return nil }

// KeepSigning implements exec.Device: what is done is known.
func (d *Host) KeepSigning(time.Duration, <-chan struct{}) {}

// EndJobs implements exec.Device: the host has no such jobs.
func (d *Host) EndJobs() {}

func (d *Host) Close() (err error) {
	for _, q := range d.All() {
		err = errors.Join(err, q.Close())
	}
	return errors.Join(err, d.pool.Close(), d.open.Close())
}
