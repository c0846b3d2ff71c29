package spmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"lockstep/cudampi"
	"lockstep/internal/launcher"
	"lockstep/internal/nearest"
	"lockstep/internal/plain"
	_ "lockstep/internal/stdio" // what cannot be written is an error
	"lockstep/internal/watch"
)

// Exit statuses of Main. A signal gives 128 plus its number.
const (
	exitFailed = 1 // run failed or panicked
	exitUsage  = 2 // bad flags or input
)

const (
	// speakFirst is how long a rank other than 0 leaves bad input to rank 0, which
	// finds the same, and whose exit ends the job.
	speakFirst = 3 * time.Second
	// Before the exit of a process that MPI has not started in: for each rank of the job, and at most.
	settleEach = 40 * time.Millisecond
	mostSettle = 2500 * time.Millisecond
	// grace is how long run may take to return after a signal or a failed stream.
	grace = 5 * time.Second
)

// Main is the whole of a program's main function: it parses the command line into
// fs and the common flags, starts MPI, calls run on every rank, takes everything
// down again, and exits the process if anything failed.
//
// checks run after the flags are parsed and before MPI starts, with the number of
// ranks; they refuse flags that do not fit each other. What they return, an
// unknown flag, an argument that is no flag, ranks that were started with different flags (see MayDiffer), and an error of
// run marked by Usage are bad input: one line on standard error for the whole job, exit status 2.
//
// ctx ends at SIGINT and SIGTERM, with run then given five seconds to return;
// the exit status is 128 plus the signal. Any other error of run, a panic in it,
// or a failed stream on any rank ends the job on every rank, with that rank's
// message and exit status 1. What run left enqueued is waited for.
//
// The names of the common flags (see Config) are taken: fs must not define them. What
// fs.Usage, where it is set, writes to fs.Output() stands in --help before the flags.
func Main(fs *pflag.FlagSet, run func(ctx context.Context, w *World) error, checks ...func(ranks int) error) {
	if code := start(fs, run, checks); code != 0 {
		os.Exit(code)
	}
}

// usageError marks bad input.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// Usage marks err as bad input: the job ends with one line, err's, and exit
// status 2. Every rank should find it, before any work. Usage(nil) is nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

func start(fs *pflag.FlagSet, run func(context.Context, *World) error, checks []func(int) error) int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGUSR1) // which Go would drop; what else comes during the start ends the process
	var cfg Config
	cfg.flags(fs)
	j := launcher.Environment()
	if err := parse(fs, os.Args[1:], j); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		return refuse(fs.Name(), j, err)
	}
	err := cfg.complete()
	for _, check := range checks {
		if err == nil {
			err = check(j.Size)
		}
	}
	if err != nil {
		return refuse(fs.Name(), j, err)
	}
	started := limitStart(fs.Name(), &cfg, j.Rank)
	w, err := Open(cfg)
	if err != nil {
		if errors.As(err, new(usageError)) {
			return refuse(fs.Name(), j, err)
		}
		leaveToFirst(j.Rank)
		fmt.Fprintf(os.Stderr, "%s: %s\n", fs.Name(), plain.Text(err.Error()))
		cudampi.Abort(exitFailed) // the others may be waiting for this rank
		return exitFailed
	}
	o, err := w.oversee()
	if err != nil {
		return w.abort(nil, err, exitFailed)
	}
	started()
	w.logStart()
	w.phase.Store("running")
	defer w.serveLive(o)()
	sig, err := w.supervise(o, signals, run)
	switch {
	case err == nil:
		w.phase.Store("ending")
		w.ended.Store(true)
		o.leaving()
		if err := w.compareLedgers(); err != nil {
			return w.abort(o, err, exitFailed)
		}
		o.leaving()                       // together now
		if err := w.Close(); err != nil { // MPI may be down: there is no Abort any more
			w.Log.Error().Msg(err.Error())
			return exitFailed
		}
		return 0
	case sig != nil:
		return w.abort(o, err, 128+int(sig.(syscall.Signal)))
	case errors.As(err, new(usageError)):
		speak(fs.Name(), w.Rank(), err)
		w.Abort(exitUsage)
		return exitUsage
	default:
		return w.abort(o, err, exitFailed)
	}
}

// parse reads the command line. --help prints once for the job.
func parse(fs *pflag.FlagSet, args []string, j launcher.Job) error {
	help := io.Writer(os.Stdout)
	if j.Rank != 0 {
		help = io.Discard
	}
	fs.Init(fs.Name(), pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SortFlags = false
	preface := fs.Usage
	fs.Usage = func() {
		if preface != nil {
			fs.SetOutput(help)
			preface()
		}
		fmt.Fprintf(help, "Usage of %s:\n%s", fs.Name(), fs.FlagUsages())
	}
	if err := fs.Parse(args); err != nil {
		if hint := misplaced(fs, args); hint != nil {
			return hint
		}
		return nearest.Flag(fs, err)
	}
	if fs.NArg() > 0 {
		if flag := withoutEquals(fs, args); flag != "" {
			return fmt.Errorf("unexpected argument %q: type --%s=%s", fs.Arg(0), flag, fs.Arg(0))
		}
		return fmt.Errorf("unexpected argument %q: all settings are flags, see --help", fs.Arg(0))
	}
	if t := fs.Lookup("timeout"); t != nil && t.Changed && t.Value.String() == "0s" {
		return fmt.Errorf("--timeout 0: must be at least %v; there is no way to wait for ever", leastTimeout)
	}
	return nil
}

// withoutEquals returns the flag whose value stands behind it as an argument of its own,
// which a flag that needs no value does not take; "" where there is none.
func withoutEquals(fs *pflag.FlagSet, args []string) string {
	at := slices.Index(args, fs.Arg(0))
	if at < 1 {
		return ""
	}
	name, ok := strings.CutPrefix(args[at-1], "--")
	if f := fs.Lookup(name); !ok || f == nil || f.NoOptDefVal == "" {
		return ""
	}
	return name
}

// ofLauncher are flags that people give to the program and mean for what starts it.
var ofLauncher = map[string]string{
	"np": "mpirun", "n": "mpirun", "H": "mpirun", "host": "mpirun", "hostfile": "mpirun", "machinefile": "mpirun", "x": "mpirun",
	"map-by": "mpirun", "bind-to": "mpirun", "rank-by": "mpirun", "oversubscribe": "mpirun", "allow-run-as-root": "mpirun", "mca": "mpirun",
	"report-bindings": "mpirun", "tag-output": "mpirun", "npernode": "mpirun", "ppn": "mpirun", "display-map": "mpirun",
	"ntasks": "srun", "nodes": "srun", "N": "srun", "mpi": "srun", "gpus-per-node": "srun", "ntasks-per-node": "srun", "partition": "srun",
	"nproc_per_node": "torchrun", "nproc-per-node": "torchrun", "nnodes": "torchrun",
}

// misplaced says which flag of a launcher stands among the program's, which lack it.
func misplaced(fs *pflag.FlagSet, args []string) error {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, _, whole := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		tool := ofLauncher[name]
		if tool == "" || !strings.HasPrefix(arg, "-") || fs.Lookup(name) != nil || len(name) == 1 && fs.ShorthandLookup(name) != nil {
			continue
		}
		if tool == "torchrun" {
			return fmt.Errorf("%s is a flag of torchrun; type: mpirun -np 4 %s", arg, fs.Name())
		}
		value := ""
		if !whole && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			value = " " + args[i+1]
		}
		return fmt.Errorf("%s is a flag of %s, before the program; type: %s %s%s %s", arg, tool, tool, arg, value, fs.Name())
	}
	return nil
}

// refuse ends a job that has bad input, in a process where MPI does not run. Open MPI 4's mpirun may wait for ever where one
// process ends while it starts the others: 64 of them on 2 cores made it do so in 5 of 5 runs.
func refuse(name string, j launcher.Job, err error) int {
	settle := time.Duration(0)
	if j.Size > 1 {
		settle = min(time.Duration(j.Size)*settleEach, mostSettle)
	}
	if j.Rank != 0 {
		time.Sleep(settle) // rank 0 is still there
	}
	speak(name, j.Rank, err)
	if j.Rank == 0 {
		time.Sleep(settle)
	}
	return exitUsage
}

// speak says on one line why the job ends. The exit of any rank makes the launcher
// end the others; so rank 0, which as a rule finds the same, speaks at once, and
// the others give it time, and the launcher after it, and speak only where they
// are still there.
func speak(name string, rank int, err error) {
	leaveToFirst(rank)
	if rank != 0 && errors.As(err, new(launcher.AloneError)) {
		return // each is a job of its own, but one speaks for all
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", name, plain.Line(strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// leaveToFirst gives rank 0 the time to report what it finds too, and then rank 1.
func leaveToFirst(rank int) { time.Sleep(time.Duration(min(rank, 2)) * speakFirst) }

// supervise calls run and watches over it: for signals, and for streams that fail
// while run is blocked somewhere else. signals has those that came during the start.
func (w *World) supervise(o *overseer, signals chan os.Signal, run func(context.Context, *World) error) (sig os.Signal, err error) {
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGQUIT)
	early := &preemption{told: make(chan struct{}), hears: make(chan struct{})}
	defer func() {
		if err == nil {
			go w.leaveSignals(signals, early)
		} else {
			signal.Stop(signals)
		}
	}()
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), preemptionKey{}, early))
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		done <- guard(func() error {
			if err := run(ctx, w); err != nil {
				return err
			}
			return w.drain() // what was enqueued belongs to the run
		})
	}()

	var end <-chan time.Time
	failed, hears := w.failed, early.hears
	var kept os.Signal // SIGUSR1, until the program listens or has had the time to
	deaf := time.After(grace)
	for {
		select {
		case err := <-done:
			if sig != nil {
				return sig, signalError(sig)
			}
			select {
			case <-w.failed: // the cause of what run returned, or unnoticed by it
				if err == nil || !errors.As(err, new(*panicError)) {
					err = w.failure
				}
			default:
			}
			return nil, err
		case <-failed:
			failed = nil
			cancel(w.failure)
			end = time.After(grace / 5)
		case <-hears:
			hears, deaf = nil, nil
			if kept != nil && early.take() {
				w.Log.Warn().Str("signal", kept.String()).Msg("asked to end early, before the program listened")
			}
		case <-deaf:
			hears, deaf = nil, nil
			if kept != nil && sig == nil {
				sig = kept
				cancel(signalError(sig))
				end = time.After(grace)
			}
		case s := <-signals:
			switch {
			case sig != nil:
				return sig, signalError(sig)
			case s == syscall.SIGQUIT:
				go func() { fmt.Fprint(os.Stderr, o.show(w, w.cfg.LogFormat == "json")) }()
				continue
			case s != syscall.SIGINT && early.take():
				w.Log.Warn().Str("signal", s.String()).Msg("asked to end early")
				continue
			case s == syscall.SIGUSR1 && deaf != nil:
				kept = s
				continue
			}
			sig = s
			cancel(signalError(s))
			end = time.After(grace)
		case <-end:
			if sig != nil {
				return sig, signalError(sig)
			}
			return nil, w.failure
		}
	}
}

// leaveSignals gives signals back to the system once run has ended well, but for the
// first request to end early: the ranks may have followed one that came sooner, to
// another node.
func (w *World) leaveSignals(signals chan os.Signal, early *preemption) {
	for s := range signals {
		if s == syscall.SIGINT || s == syscall.SIGQUIT || !early.take() {
			signal.Stop(signals)
			_ = syscall.Kill(os.Getpid(), s.(syscall.Signal)) // to end as it would have
			return
		}
		w.Log.Warn().Str("signal", s.String()).Msg("asked to end early, at the end")
	}
}

func signalError(s os.Signal) error { return fmt.Errorf("ended by signal: %v", s) }

// preemption is the request to end early, where the program has said that it
// listens.
type preemption struct {
	mu    sync.Mutex
	told  chan struct{}
	hears chan struct{} // closed when the program listens
	heard bool          // it is
	taken bool
}

type preemptionKey struct{}

// take passes the request on, once, and says whether it did.
func (p *preemption) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.heard || p.taken {
		return false
	}
	p.taken = true
	close(p.told)
	return true
}

// Preempted returns a channel that is closed when this rank receives SIGTERM or
// SIGUSR1, the warning that batch systems give before they take a job's machines.
// From the first call on the first such signal does nothing else: the program saves
// what it has and returns, on all ranks in the same step. A second one, and SIGINT,
// end the job as without. ctx is what Main gave to run. SIGUSR1 that comes before that call, during the start too,
// waits for it, up to five seconds from the beginning of run.
func Preempted(ctx context.Context) <-chan struct{} {
	p, ok := ctx.Value(preemptionKey{}).(*preemption)
	if !ok {
		return nil // not a context of Main's: nothing ever comes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.heard {
		p.heard = true
		close(p.hears)
	}
	return p.told
}

// abort ends the job on every rank with err as its cause, printed last and once. The
// stack of a panic is printed here. Nothing is taken down in order: the peers of a
// failed rank are usually inside a collective and would wait for ever.
func (w *World) abort(o *overseer, err error, code int) int {
	kind := watch.KindError
	var p *panicError
	if errors.As(err, &p) {
		kind = watch.KindPanic
		fmt.Fprintf(os.Stderr, "%s\n", p.stack)
	}
	if code > 128 {
		kind = watch.KindSignal
	}
	if o != nil {
		o.fail(kind, code, err.Error())
	}
	host, _ := os.Hostname() // empty where it has none
	w.Log.Error().Str("host", host).Msg(err.Error())
	w.Abort(code)
	return code
}
