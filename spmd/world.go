package spmd

import (
	"github.com/rs/zerolog"

	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/world"
)

// World is this rank's place in the job: who it is, its device, and the
// communicator of all ranks. Main makes it and takes it down.
type World world.World

func (w *World) in() *world.World { return (*world.World)(w) }

func (w *World) rank() *calls.Rank { return w.in().Rank() }

// Comm returns the communicator of all ranks.
func (w *World) Comm() Comm { return commOf(w.rank().All, nil) }

// NodeComm returns the communicator of the ranks on this node, by local rank.
func (w *World) NodeComm() Comm { return commOf(w.rank().Node, nil) }

// Log returns the rank's logger: rank 0 logs, the others only errors, unless
// --log-ranks says otherwise.
func (w *World) Log() *zerolog.Logger { return w.rank().Log }

// Rank returns this process's number in the job, from 0.
func (w *World) Rank() int { return w.rank().All.Rank() }

// Size returns the number of ranks in the job.
func (w *World) Size() int { return w.rank().All.Size() }

// LocalRank returns this process's number among the ranks of its node.
func (w *World) LocalRank() int { return w.rank().Node.Rank() }

// LocalSize returns the number of ranks on this node.
func (w *World) LocalSize() int { return w.rank().Node.Size() }

// Node returns the number of this rank's node, from 0, in the order of the lowest
// rank on each. A node is a set of ranks that can share memory.
func (w *World) Node() int {
	node, _ := w.in().Place()
	return node
}

// Nodes returns the number of nodes.
func (w *World) Nodes() int {
	_, nodes := w.in().Place()
	return nodes
}

// Threads returns how many cores this rank may keep busy: its share of the cores that it is bound
// to.
func (w *World) Threads() int { return w.in().Threads() }

// Multiprocessors returns the number of the GPU's multiprocessors; 0 on the host.
func (w *World) Multiprocessors() int {
	return w.rank().Dev.Limits().Multiprocessors
}

// SharedMemory returns the most bytes of shared memory that a block of a kernel may have, declared
// memory included; 0 on the host.
func (w *World) SharedMemory() int {
	return w.rank().Dev.Limits().SharedMemory
}

// Memory returns how many bytes of the rank's device are free, and how many it has. Memory of freed
// Buffers that the World keeps counts as taken. On the host the numbers are the machine's, or those
// of this process's control groups if they are less. The ranks of a node share them.
func (w *World) Memory() (free, total int, err error) {
	return w.rank().Dev.Room()
}

// MemoryPeak returns the most bytes of device memory that this rank's buffers took at one time,
// each as AllocSize counts it. Memory that libraries take for themselves does not count.
func (w *World) MemoryPeak() int { return w.rank().Dev.Pools().Device.Peak() }

// Seed returns --seed, the same on every rank.
func (w *World) Seed() uint64 { return w.in().Seed() }

// Device says where buffers live: "host", or the name of the GPU.
func (w *World) Device() string {
	return w.rank().Dev.Name()
}

// Collectives returns the name of what carries them:
//
//   - "mpi-host": MPI, in host memory
//   - "inproc": goroutines, in host memory
//   - "nccl": NCCL
//   - "mpi-peer": kernels between GPUs that reach each other
//   - "mpi-aware": an MPI that takes GPU memory; it makes the calls on streams before they
//     return
//   - "host-staged": copies of GPU memory through host memory
//   - "none": nothing, for one rank with a GPU
func (w *World) Collectives() string {
	return w.rank().All.Routes().Name()
}

// OnHost reports whether the device is the host. Applications need it to choose default sizes, not
// to choose code.
func (w *World) OnHost() bool { return w.rank().OnHost() }

// Open joins this process to the job and returns its world. Programs call Main instead. Tests and
// tools that cannot use Main call Open and, at the end, Close. Open starts MPI if it is not
// running. After the last world of a process was closed MPI cannot start again.
//
// Collective over all processes of the job, blocking. It fails if the device or the collectives
// that cfg demands are not there. It also fails if the environment speaks of several tasks but each
// of them is alone.
func Open(cfg Config) (*World, error) {
	w, err := world.Open(cfg.start(nil))
	return (*World)(w), err
}

// Emit writes a measurement, a struct or a map, as an object of JSON. The object becomes a line of
// the file of --json and of the run's folder (package telemetry), which `launch plot` draws. The
// page of --dashboard draws its numbers while the program runs, of 32 names at most, and /metrics
// has the newest. Both leave out an object with "summary": true, which is a result of the whole
// run.
//
// Tags of fields may tell their units, which stand in the first line of the type:
//
//	type step struct {
//		Step     int     `json:"step"`
//		Residual float64 `json:"residual" unit:"K"`
//	}
//
// JSON has no infinite numbers, and no NaN: Emit fails if there is one. It does nothing on ranks
// other than 0, nor if nobody asks for it. Not collective.
func (w *World) Emit(v any) error { return w.in().Emit(v) }

// Abort ends the job on every rank with the given exit status, at once and without
// taking anything down. It does not return.
// Source: mpi.h, MPI_Abort.
func (w *World) Abort(status int) { w.in().Abort(status) }

// Watch starts, for a world of Open, the watch that Main keeps over its job. The processes of all
// ranks end with status 1 if a rank dies, or a collective or Close has not ended on all ranks
// within Config.Timeout. A report on standard error says which ranks have not arrived, and where in
// the program they are instead. It shows the stack of the goroutine that called Watch. Close ends
// the watch.
//
// Collective over all ranks, blocking.
func (w *World) Watch() error { return w.in().Watch() }

// Close takes the world down in this order: graphs, what packages have opened, communicators,
// streams, memory, the GPU, MPI, the watch. It waits for the streams. If one has failed it returns
// the errors of all of them. With several ranks it then leaves the rest alone, since the others may
// be waiting for this rank: end the job. A second Close does nothing.
//
// Collective over all ranks, blocking.
func (w *World) Close() error { return w.in().Close() }
