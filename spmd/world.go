package spmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/launcher"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	"lockstep/spmd/internal/files"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/mpi"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// World is this rank's place in the job: who it is, its device, and the
// communicator of all ranks. Main makes it and takes it down.
type World struct {
	all      Comm // of all ranks
	near     Comm // of the ranks on this node
	log      zerolog.Logger
	ranks    transport.Ranks
	order    *control.Tickets // of this rank's calls, in all of its worlds
	cfg      Config
	flags    *pflag.FlagSet // of the command line; nil where there is none
	launched launcher.Job
	job      *job.Job
	trace    *trace.Tracer // nil without --summary and --trace
	calls    *trace.Thread // what the program calls, among the events of trace
	clocks   trace.Clocks  // for --trace
	traced   *trace.File   // of --trace, on rank 0
	cores    string        // near the GPU, that this process keeps to; "" where it has not bound itself
	node     int
	nodes    int
	byNode   bool // of several nodes, each has ranks that follow each other
	threads  int
	dev      exec.Device
	gpu      *cudaexec.Device // dev; nil where that is the host
	why      string           // the device and the collectives are what they are
	fellBack bool             // to the host though there is a GPU, or to MPI though NCCL is meant: the start line warns
	check    verify.Mode
	agreed   bool // the failure of the start is every rank's
	startup  job.Startup
	// Of several nodes: the connections that MPI had before NCCL started, and all that there were then.
	mpiSockets, ncclSockets []job.Socket
	symmetric               *symmetric // nil on the host
	parts                   parts
	env                     route.Env        // of routers on a GPU
	cross                   *crossCheck      // nil unless NCCL and MPI are compared
	blocking                *Stream          // of collectives that block, on a GPU
	control                 Comm             // the framework's own traffic
	channel                 *control.Channel // over it
	reporter                verify.Reporter  // makes this rank's heartbeats
	analyzer                verify.Analyzer  // has those of all ranks, on rank 0
	files                   files.Waiting    // for what is saved and loaded
	capturing               atomic.Int32
	json                    io.WriteCloser
	pause                   sync.Mutex // guards yielder
	yielder                 host.Yielder

	mu      sync.Mutex
	comms   []*commState
	graphs  []*Graph
	closers []*func() error // of AtClose
	kept    sync.Map        // of PerWorld
	closed  bool
}

// Comm returns the communicator of all ranks.
func (w *World) Comm() Comm { return w.all }

// NodeComm returns the communicator of the ranks on this node, by local rank.
func (w *World) NodeComm() Comm { return w.near }

// Log returns the rank's logger: rank 0 logs, the others only errors, unless
// --log-ranks says otherwise.
func (w *World) Log() *zerolog.Logger { return &w.log }

// Rank returns this process's number in the job, from 0.
func (w *World) Rank() int { return w.all.st.rank }

// Size returns the number of ranks in the job.
func (w *World) Size() int { return w.all.st.size }

// LocalRank returns this process's number among the ranks of its node.
func (w *World) LocalRank() int { return w.near.st.rank }

// LocalSize returns the number of ranks on this node.
func (w *World) LocalSize() int { return w.near.st.size }

// Node returns the number of this rank's node, from 0, in the order of the lowest
// rank on each. A node is a set of ranks that can share memory.
func (w *World) Node() int { return w.node }

// Nodes returns the number of nodes.
func (w *World) Nodes() int { return w.nodes }

// Threads returns how many cores this rank may keep busy: its share of those that
// it is bound to.
func (w *World) Threads() int { return w.threads }

// Multiprocessors returns how many of them the GPU has; 0 on the host.
func (w *World) Multiprocessors() int {
	return w.dev.Limits().Multiprocessors
}

// SharedMemory returns the most shared memory that a block of a kernel may have, in
// bytes, what the kernel declares itself included; 0 on the host.
func (w *World) SharedMemory() int {
	return w.dev.Limits().SharedMemory
}

// Memory returns how many bytes of the rank's device are free, and how many it has. On the
// host these are what processes can still have and what there is, of the machine or, where
// it is less, of the control groups that this process is in; the ranks of a node share them.
// What Buffers that were freed have left with the World counts as taken.
func (w *World) Memory() (free, total int, err error) {
	return w.dev.Room()
}

// Seed returns --seed, the same on every rank.
func (w *World) Seed() uint64 { return w.cfg.Seed }

// Device says where buffers live: "host", or the name of the GPU.
func (w *World) Device() string {
	return w.dev.Name()
}

// Collectives says what carries them: "mpi-host" for host memory; for that of GPUs
// "nccl" or, through MPI, "mpi-peer" between GPUs that reach each other,
// "mpi-aware" where MPI takes their memory, which then makes the calls on streams before
// they return, "mpi-staged" through host memory; "none" for one rank with a GPU, which has
// nobody to talk to.
func (w *World) Collectives() string {
	return w.all.st.routes.Name()
}

// OnHost says whether the device is the host. Applications need it to choose
// default sizes, not to choose code.
func (w *World) OnHost() bool { return w.gpu == nil }

// Open joins this process to the job and returns its world. Programs call Main
// instead, which calls Open; tests and tools that cannot use Main call Open and,
// at the end, Close. It starts MPI if it is not running; after the last world of
// a process was closed MPI cannot start again.
//
// Collective over all processes of the job, blocking. It fails when the device or
// the collectives that cfg demands are not to be had, and when the environment
// speaks of several tasks but each of them is alone.
func Open(cfg Config) (*World, error) { return open(mpi.Processes, cfg, nil) }

// open is Open for one of some ranks. The flags fs have set cfg; they may be nil.
func open(ranks transport.Ranks, cfg Config, fs *pflag.FlagSet) (*World, error) {
	if err := cfg.forJob().Complete(route.Names()); err != nil {
		return nil, Usage(err)
	}
	if err := host.CheckBLAS(); err != nil {
		return nil, Usage(err)
	}
	w := &World{ranks: ranks, order: ranks.Order(), cfg: cfg, flags: fs, launched: ranks.Environment()}
	w.job = job.New(cfg.forJob(), inJob{w})
	w.reporter = verify.Reporter{Recorders: w.recorders, Ended: w.job.Ended}
	w.files.Patience = cfg.timeout()
	w.startup = job.NewStartup()
	if cfg.JSON != "" && w.launched.Rank == 0 {
		var err error
		if w.json, err = openJSON(cfg.JSON); err != nil {
			return nil, Usage(err)
		}
	}

	err := w.connect()
	if err == nil {
		w.trace.Opened()
		w.check = verify.Mode(slices.Index(job.CheckModes, cfg.Check)) // not before: the start is one turn in MPI
		return w, nil
	}
	if w.agreed { // else the other ranks may be further: nothing collective any more
		err = errors.Join(err, w.Close())
	}
	return nil, err
}

// Emit writes v as one line of JSON to the file given by --json. It does nothing
// on ranks other than 0, and without --json. Not collective.
func (w *World) Emit(v any) error {
	if w.json == nil {
		return nil
	}
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: Emit: %w", ccall.At(), err)
	}
	_, err = w.json.Write(append(line, '\n'))
	return err
}

type stdout struct{ *os.File }

func (stdout) Close() error { return nil }

func openJSON(name string) (io.WriteCloser, error) {
	if name == "-" {
		return stdout{os.Stdout}, nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return nil, fmt.Errorf("--json: %w", err)
	}
	return f, nil
}

// checkBlocks refuses freed buffers and those of another world.
func (w *World) checkBlocks(c *call) error {
	if err := w.checkBlock(c.dblk); err != nil {
		return err
	}
	return w.checkBlock(c.sblk)
}

func (w *World) checkBlock(b *block) error {
	if b != nil && (b.Owner != w || b.Freed.Load()) {
		return w.blockError(b)
	}
	return nil
}

func (w *World) blockError(b *block) error {
	if b.Owner != w {
		return fmt.Errorf("%s: the buffer of %d bytes belongs to another world", ccall.At(), b.Bytes)
	}
	return fmt.Errorf("%s: the buffer of %d bytes was freed at %s", ccall.At(), b.Bytes, &b.At)
}

// queues are those of all streams, which there are none of before the device is chosen.
func (w *World) queues() []exec.Queue {
	if w.dev == nil {
		return nil
	}
	return w.dev.All()
}

// fail records the first failure of a stream: nobody may wait for what will not
// come, and Main ends the job.
func (w *World) fail(err error) {
	w.job.Fail(err)
	w.order.Fail(fmt.Errorf("not run, because an earlier command failed: %w", err))
}

// Abort ends the job on every rank with the given exit status, at once and without
// taking anything down. It does not return.
// Source: mpi.h, MPI_Abort.
func (w *World) Abort(status int) {
	if w.Size() > 1 { // else there is nobody to end, and MPI would print a banner behind the cause
		w.all.st.host.Abort(status)
	}
	os.Exit(status) // where the library returns, too
}

// drain waits for all streams and returns the first error of each.
func (w *World) drain() error {
	var err error
	for _, q := range w.queues() {
		if q.Lane() != nil {
			err = errors.Join(err, fmt.Errorf("%s: Synchronize: stream %q is being captured", ccall.At(), q.Name()))
			continue
		}
		err = errors.Join(err, q.End().Wait())
	}
	return err
}

// Watch starts the watch that Main keeps over its job, for a world of Open's: a collective that has not ended within
// Config.Timeout, or a rank that dies, ends the processes of all ranks with status 1, and a report on standard error of
// which ranks have not arrived and where in the program they are instead. So does a Close that some ranks do not call
// within that time. The calling goroutine is the one whose stack the report shows. Close ends the watch. For one rank
// there is none, and Watch does nothing.
//
// Collective over all ranks, blocking.
func (w *World) Watch() error {
	w.job.MarkProgram()
	err := w.job.Watch()
	if w.Size() > 1 { // a rank that closes the world at once, and MPI goes on, would leave before others have joined
		err = w.channel.Agree(control.Start, err)
	}
	w.job.Enter("running")
	return err
}

// Close takes the world down in the order graphs, what AtClose was given,
// communicators, streams, memory, the GPU, MPI, the watch. It waits for the streams; where one has failed it returns
// the errors of all of them, and of several ranks leaves the rest as it is, since the others may be waiting for what
// this one did not do: end the job then. A second Close does nothing.
//
// Collective over all ranks, blocking.
func (w *World) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	defer w.job.Unmark()
	w.job.Enter("ending")
	w.job.Leaving()
	err := w.drain()
	if err != nil && w.Size() > 1 {
		return err
	}
	if err == nil && w.dev != nil {
		err = w.tell()
	}
	// The watch ends after any failure but that of a stream, too: the other ranks wait for this one to leave.
	return errors.Join(err, w.takeDown(), w.job.EndWatch())
}

// takeDown is Close but for the streams' work and the watch.
func (w *World) takeDown() (err error) {
	for _, g := range slices.Clone(w.graphs) {
		err = errors.Join(err, g.Close())
	}
	err = errors.Join(err, w.runClosers())
	if w.order.Enter(w.order.Take(1)) == nil { // not after a failure; then nobody else is in MPI
		defer w.order.Leave()
	}
	if w.dev != nil {
		w.dev.EndJobs()
	}
	for i := len(w.comms) - 1; i >= 0; i-- {
		w.comms[i].freed = true
		err = errors.Join(err, w.comms[i].free())
	}
	if w.dev != nil {
		err = errors.Join(err, w.dev.Close())
	}
	if w.json != nil {
		err = errors.Join(err, w.json.Close())
	}
	if w.traced != nil {
		err = errors.Join(err, w.traced.Drop())
	}
	w.ranks.Lock()
	defer w.ranks.Unlock()
	return errors.Join(err, w.ranks.Leave())
}
