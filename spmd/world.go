package spmd

import (
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/files"
	"lockstep/spmd/internal/world"
)

// World is this rank's place in the job: who it is, its device, and the
// communicator of all ranks. Main makes it and takes it down.
type World struct {
	in   *world.World
	kept sync.Map // of PerWorld
}

func init() {
	control.ChannelOf = func(w any) *control.Channel { return w.(*World).in.Channel }
}

// newWorld is the handle of a world.
func newWorld(in *world.World) *World {
	w := &World{in: in}
	in.Owner = w
	return w
}

// worldOf is the handle of the world that a communicator or a stream is of.
func worldOf(r *calls.Rank) *World { return r.Owner.(*World) }

// Comm returns the communicator of all ranks.
func (w *World) Comm() Comm { return Comm{c: w.in.All} }

// NodeComm returns the communicator of the ranks on this node, by local rank.
func (w *World) NodeComm() Comm { return Comm{c: w.in.Node} }

// Log returns the rank's logger: rank 0 logs, the others only errors, unless
// --log-ranks says otherwise.
func (w *World) Log() *zerolog.Logger { return w.in.Log }

// Rank returns this process's number in the job, from 0.
func (w *World) Rank() int { return w.in.All.Rank() }

// Size returns the number of ranks in the job.
func (w *World) Size() int { return w.in.All.Size() }

// LocalRank returns this process's number among the ranks of its node.
func (w *World) LocalRank() int { return w.in.Node.Rank() }

// LocalSize returns the number of ranks on this node.
func (w *World) LocalSize() int { return w.in.Node.Size() }

// Node returns the number of this rank's node, from 0, in the order of the lowest
// rank on each. A node is a set of ranks that can share memory.
func (w *World) Node() int {
	node, _ := w.in.Place()
	return node
}

// Nodes returns the number of nodes.
func (w *World) Nodes() int {
	_, nodes := w.in.Place()
	return nodes
}

// Threads returns how many cores this rank may keep busy: its share of those that
// it is bound to.
func (w *World) Threads() int { return w.in.Threads() }

// Multiprocessors returns how many of them the GPU has; 0 on the host.
func (w *World) Multiprocessors() int {
	return w.in.Dev.Limits().Multiprocessors
}

// SharedMemory returns the most shared memory that a block of a kernel may have, in
// bytes, what the kernel declares itself included; 0 on the host.
func (w *World) SharedMemory() int {
	return w.in.Dev.Limits().SharedMemory
}

// Memory returns how many bytes of the rank's device are free, and how many it has. On the
// host these are what processes can still have and what there is, of the machine or, where
// it is less, of the control groups that this process is in; the ranks of a node share them.
// What Buffers that were freed have left with the World counts as taken.
func (w *World) Memory() (free, total int, err error) {
	return w.in.Dev.Room()
}

// MemoryPeak returns the most bytes of device memory that this rank's buffers took at one
// time, each as AllocSize counts it. What libraries take for themselves is not among them.
func (w *World) MemoryPeak() int { return w.in.Dev.Pools().Device.Peak() }

// Seed returns --seed, the same on every rank.
func (w *World) Seed() uint64 { return w.in.Seed() }

// Device says where buffers live: "host", or the name of the GPU.
func (w *World) Device() string {
	return w.in.Dev.Name()
}

// Collectives says what carries them: "mpi-host" for host memory; for that of GPUs
// "nccl", "mpi-peer" between GPUs that reach each other, "mpi-aware" through an MPI that
// takes their memory, which makes the calls on streams before they return, "host-staged"
// through host memory; "none" for one rank with a GPU, which has nobody to talk to.
func (w *World) Collectives() string {
	return w.in.All.Routes().Name()
}

// OnHost says whether the device is the host. Applications need it to choose
// default sizes, not to choose code.
func (w *World) OnHost() bool { return w.in.OnHost() }

// Open joins this process to the job and returns its world. Programs call Main
// instead, which calls Open; tests and tools that cannot use Main call Open and,
// at the end, Close. It starts MPI if it is not running; after the last world of
// a process was closed MPI cannot start again.
//
// Collective over all processes of the job, blocking. It fails when the device or
// the collectives that cfg demands are not to be had, and when the environment
// speaks of several tasks but each of them is alone.
func Open(cfg Config) (*World, error) {
	in, err := world.Open(cfg.start(nil))
	if err != nil {
		return nil, err
	}
	return newWorld(in), nil
}

// Emit gives a measurement, as an object of JSON: a struct, or a map. It becomes a line of the file
// of --json and of the run's folder (package runfolder), which `launch plot` draws. The page of
// --dashboard draws its numbers while the program runs, of 32 names at most, and /metrics has the
// newest; not those of an object that has "summary": true, a result of the whole run.
//
// Fields may tell their units, which stand in the first line of the type:
//
//	type step struct {
//		Step     int     `json:"step"`
//		Residual float64 `json:"residual" unit:"K"`
//	}
//
// JSON has no infinite numbers, and no NaN: Emit fails where there is one. It does nothing on ranks
// other than 0, nor where nobody asks for it. Not collective.
func (w *World) Emit(v any) error { return w.in.Emit(v) }

// Emitted has Emit on this rank give each line to fn, with its end, until cancel. fn keeps none of
// its bytes.
func (w *World) Emitted(fn func(line []byte)) (cancel func()) { return w.in.Emitted(fn) }

// Slowest returns, on rank 0, the rank that the others have waited for lately. It is false if none
// clearly is, or if it is not known: on other ranks, at the start, with --summary off, and for
// collectives in graphs.
func (w *World) Slowest() (rank int, known bool) { return w.in.Slowest() }

// Measures says whether --summary or --trace have this rank see where its time goes.
func (w *World) Measures() bool { return w.in.Trace != nil }

// Opened returns how many of what has to be closed, or freed, is not, by kind.
func (w *World) Opened() map[string]int { return w.in.Opened() }

// Flags returns those of the command line that Main has parsed; nil for a world of Open and Local.
func (w *World) Flags() *pflag.FlagSet { return w.in.Flags() }

// Timeout returns how long the watch gives a collective.
func (w *World) Timeout() time.Duration { return w.in.Timeout() }

// Files is what a rank does with files that may be slow, or never answer. A rank that is between
// Enter and what it returns, or in Do, is not missing from a collective: it has a limit of its own,
// and a report says in which step it is.
type Files = files.Work

// Files returns those of this rank.
func (w *World) Files() *Files { return w.in.Files() }

// Fail ends the job as a stream that has failed does. It returns.
func (w *World) Fail(err error) { w.in.Fail(err) }

// Explain has what fn returns, if that is not empty, stand before the failures of the device's
// streams: for packages whose kernels say why they have failed.
func (w *World) Explain(fn func() string) { w.in.Explain(fn) }

// Abort ends the job on every rank with the given exit status, at once and without
// taking anything down. It does not return.
// Source: mpi.h, MPI_Abort.
func (w *World) Abort(status int) { w.in.Abort(status) }

// Watch starts the watch that Main keeps over its job, for a world of Open's. If a collective has
// not ended within Config.Timeout, or a rank dies, the processes of all ranks end with status 1. A
// report on standard error says which ranks have not arrived, and where in the program they are
// instead. So it is with a Close that some ranks do not call within that time. The report shows the
// stack of the calling goroutine. Close ends the watch. For one rank there is none, and Watch does
// nothing.
//
// Collective over all ranks, blocking.
func (w *World) Watch() error { return w.in.Watch() }

// Native returns the device that the world's buffers and streams are on, for libraries that are
// opened for it: a *cuda.Device for a GPU (cuda.DeviceOf), nil for the host.
func (w *World) Native() any { return w.in.Dev.Native() }

// Quiet waits until no collective that this rank enqueued is in flight. Call it before
// what may wait for the device, as loading code and allocating memory by the driver's own
// means do: a collective there waits for other ranks, which may be waiting for this one.
// On the host there is nothing to wait for.
func (w *World) Quiet() error { return w.in.Dev.Quiesce() }

// AtClose has Close call fn when the streams are through and the graphs are closed, while
// all else is still there: what was opened for the GPU is closed then. fn makes no
// collective calls. What was registered last is called first. The returned function takes
// fn back.
func (w *World) AtClose(fn func() error) (cancel func()) { return w.in.AtClose(fn) }

// Close takes the world down in the order graphs, what AtClose was given, communicators, streams,
// memory, the GPU, MPI, the watch. It waits for the streams. If one has failed it returns the
// errors of all of them. With several ranks it then leaves the rest as it is, since the others may
// be waiting for what this one did not do: end the job. A second Close does nothing.
//
// Collective over all ranks, blocking.
func (w *World) Close() error { return w.in.Close() }
