// Package world starts and ends a rank: it joins the job, makes the communicators, chooses the
// device and the carrier of its memory, and takes it all down. In between it is the rank that the
// job's watchdog sees.
package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"lockstep/host"
	"lockstep/internal/launcher"
	"lockstep/internal/runfiles"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/carriers"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// Start is the arguments of Open.
type Start struct {
	Config job.Flags
	Flags  *pflag.FlagSet // of the command line, which has set Config; nil if there is none
	Fill   *exec.Kernel   // fills memory of a GPU, and memory that it shares with the host
}

// World is this rank's place in the job. Package spmd has the methods that programs call. The
// methods here are what the rest of the module needs.
type World struct {
	rank calls.Rank
	job  *job.Job
	kept sync.Map // of library.PerWorld

	start    Start
	ranks    transport.Ranks
	launched launcher.Job
	cores    string // that this process or this rank keeps to, and why; "" if it has not bound itself
	node     int
	nodes    int
	byNode   bool // each of several nodes has ranks that follow each other
	threads  int
	endShare func() // of these threads; does nothing a second time
	apart    launcher.Apart
	apartBy  string                        // what MPI was told because of that; "" for nothing
	why      string                        // why the device and the collectives are what they are
	clocks   trace.Clocks                  // for --trace
	traced   atomic.Pointer[runfiles.File] // of --trace, on rank 0
	told     atomic.Bool                   // where the time went is said, or is being said
	// to the host though there is a GPU, or to MPI though NCCL is meant: the start line warns
	fellBack bool
	agreed   bool // the failure of the start is every rank's
	startup  job.Startup
	// With several nodes: the connections that MPI had before NCCL started, and all that there were
	// then.
	mpiSockets, ncclSockets []job.Socket
	reporter                verify.Reporter // makes this rank's heartbeats
	analyzer                verify.Analyzer // has those of all ranks, on rank 0
	carrier                 verify.Carrier  // has those of this node, if this rank carries them
	shown                   shown           // for --dashboard and Slowest
	files                   job.FileWork    // for checkpoints and arrays
	json                    *runfiles.File
	unwritten               atomic.Pointer[error] // the first error of a line to json

	mu        sync.Mutex
	closers   []*func() error // of AtClose
	listeners []*func([]byte) // of Emitted; the list is replaced, never changed
	united    []reflect.Type  // types of Emit that have told their units
}

// Open joins this process to the job and returns its world.
//
// Collective over all processes of the job, blocking.
func Open(s Start) (*World, error) { return open(carriers.Processes, s) }

// open is Open for one of some ranks.
func open(ranks transport.Ranks, s Start) (*World, error) {
	if err := s.Config.Complete(route.Names()); err != nil {
		return nil, job.Usage(err)
	}
	if err := cmp.Or(launcher.CheckLibrary(ranks.Library()), host.CheckBLAS(), job.CheckBindTo()); err != nil {
		return nil, job.Usage(err)
	}
	w := &World{start: s, ranks: ranks, launched: ranks.Environment(), endShare: func() {}}
	if s.Config.Check == "bounds" {
		kernels.CheckBounds()
	}
	w.rank.Owner, w.rank.Order, w.rank.Log, w.rank.Compare =
		w, ranks.Order(), new(zerolog.Logger), s.Config.Compares() > 0
	// whose own folder it is there
	if strings.HasPrefix(ranks.Library(), "Open MPI") && !strings.HasPrefix(w.launched.Name, "slurm") {
		if err := launcher.CheckRoom(os.Getenv); err != nil {
			return nil, job.Usage(err)
		}
	}
	if ranks.Library() != "none" {
		w.apart = launcher.FindApart()
		w.apartBy = w.launched.SetApart(w.apart)
	}
	w.job = job.New(&s.Config, inJob{w})
	w.rank.Where = func() string {
		run, _ := w.job.Goroutines()
		return run.At
	}
	w.reporter = verify.Reporter{Recorders: w.rank.Recorders, Ended: w.job.Ended}
	w.files.Patience = s.Config.Limit()
	w.startup = job.NewStartup()
	if s.Config.JSON != "" && w.launched.Rank == 0 {
		var err error
		if w.json, err = runfiles.Append(s.Config.JSON); err != nil {
			return nil, job.Usage(fmt.Errorf("--json: %w", err))
		}
	}

	err := w.connect()
	if err == nil {
		w.rank.Trace.Opened()
		w.startDashboard()
		w.rank.Check = verify.Mode(s.Config.Compares()) // not before: the start is one turn in MPI
		return w, nil
	}
	if w.agreed { // else the other ranks may be further: nothing collective any more
		err = errors.Join(err, w.Close())
	}
	w.endShare()
	return nil, err
}

// Rank returns what the world's calls go through.
func (w *World) Rank() *calls.Rank { return &w.rank }

// Job returns the job that the rank is a part of.
func (w *World) Job() *job.Job { return w.job }

// Kept has what packages on top of spmd keep for the world.
func (w *World) Kept() *sync.Map { return &w.kept }

// Carriers are the values that --collectives may have.
func Carriers() []string { return route.Names() }

// Run runs the program's own function, and waits for the work that it has left enqueued, which
// belongs to the run.
func (w *World) Run(ctx context.Context, run func(context.Context, *World) error) error {
	return exec.Guard(func() error {
		if err := run(ctx, w); err != nil {
			return err
		}
		return w.rank.Drain()
	})
}

// Place returns the number of this rank's node, and how many nodes there are.
func (w *World) Place() (node, nodes int) { return w.node, w.nodes }

// Threads returns how many cores this rank may keep busy.
func (w *World) Threads() int { return w.threads }

// Seed returns --seed.
func (w *World) Seed() uint64 { return w.start.Config.Seed }

// Timeout is how long the watch gives a collective.
func (w *World) Timeout() time.Duration { return w.start.Config.Limit() }

// Files is this rank's work on files.
func (w *World) Files() *job.FileWork { return &w.files }

// Flags are the flags of the command line; nil if there is none.
func (w *World) Flags() *pflag.FlagSet { return w.start.Flags }

// Fail records the first failure of a stream. Nobody may wait for its results, and Main ends the
// job.
func (w *World) Fail(err error) {
	w.job.Fail(err)
	w.rank.Order.Fail(fmt.Errorf("not run, because an earlier command failed: %w", err))
}

// Abort ends the job on every rank with the given exit status. It does not return.
func (w *World) Abort(status int) {
	if w.rank.All.Size() > 1 { // else there is nobody to end, and MPI would print a banner behind the cause
		w.rank.All.Host().Abort(status)
	}
	os.Exit(status) // where the library returns, too
}

// AbortProcesses ends the processes of all ranks after Open has failed. It returns if MPI does not
// run.
func AbortProcesses(status int) { carriers.Processes.Abort(status) }

// Watch starts the watch over the job. Collective over all ranks, blocking.
func (w *World) Watch() error {
	w.job.MarkProgram()
	err := w.job.Watch()
	// a rank that closes the world at once, and MPI goes on, would leave before others have joined
	if w.rank.All.Size() > 1 {
		err = w.rank.Channel.Agree(control.Start, err)
	}
	w.job.Enter("running")
	return err
}

// AtClose has Close call fn when the streams are through and the graphs are closed. The returned
// function takes fn back.
func (w *World) AtClose(fn func() error) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := &fn
	w.closers = append(w.closers, at)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closers = slices.DeleteFunc(w.closers, func(f *func() error) bool { return f == at })
	}
}

// runClosers calls the functions of AtClose. They may take themselves back.
func (w *World) runClosers() error {
	w.mu.Lock()
	closers := slices.Clone(w.closers)
	w.closers = nil
	w.mu.Unlock()
	var errs []error
	for _, fn := range slices.Backward(closers) {
		errs = append(errs, (*fn)())
	}
	return errors.Join(errs...)
}

// Close takes the world down in the order graphs, functions of AtClose, communicators, streams,
// memory, the GPU, MPI, the watch. A second Close does nothing.
//
// Collective over all ranks, blocking.
func (w *World) Close() error {
	if w.rank.MarkClosed() {
		return nil
	}
	defer w.job.Unmark()
	w.job.Enter("ending")
	w.job.Leaving()
	err := w.rank.Drain()
	if err != nil && w.rank.All.Size() > 1 {
		return err
	}
	err = errors.Join(err, w.endDashboard())
	if err == nil && w.rank.Dev != nil {
		err = w.tell()
	}
	if f := w.traced.Swap(nil); f != nil {
		err = errors.Join(err, f.Drop())
	}
	// The watch also ends after any failure but a stream's: the other ranks wait for this one to
	// leave.
	return errors.Join(err, w.takeDown(), w.job.EndWatch())
}

// stop is the first part of Close, after the job has failed: nobody waits for other ranks any more.
// It says whether the rest is left to do.
func (w *World) stop() bool {
	if w.rank.MarkClosed() {
		return false
	}
	defer w.job.Unmark()
	_, _ = w.endDashboard(), w.rank.Drain() // what fails here fails because the job has
	return true
}

// takeDown is Close but for the streams' work and the watch.
func (w *World) takeDown() error {
	err := errors.Join(w.rank.CloseCaptures(), w.runClosers())
	if w.rank.Order.Enter(w.rank.Order.Take(1)) == nil { // not after a failure; then nobody else is in MPI
		defer w.rank.Order.Leave()
	}
	if w.rank.Dev != nil {
		w.rank.Dev.EndJobs()
	}
	err = errors.Join(err, w.rank.CloseComms())
	if w.rank.Dev != nil {
		err = errors.Join(err, w.rank.Dev.Close())
	}
	if w.json != nil {
		err = errors.Join(err, w.json.Commit())
		if lost := w.unwritten.Load(); lost != nil {
			err = errors.Join(err, fmt.Errorf("--json: %w: lines are missing", *lost))
		}
	}
	w.endShare()
	w.ranks.Lock()
	defer w.ranks.Unlock()
	return errors.Join(err, w.ranks.Leave())
}
