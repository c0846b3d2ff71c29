package spmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"lockstep/cudampi"
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
	// grace is how long run may take to return after a signal or a failed stream.
	grace = 5 * time.Second
)

// Main is the whole of a program's main function: it parses the command line into
// fs and the common flags, starts MPI, calls run on every rank, takes everything
// down again, and exits the process if anything failed.
//
// checks run after the flags are parsed and before MPI starts, with the number of
// ranks; they refuse flags that do not fit each other. What they return, an
// unknown flag, an argument that is no flag, and an error of run marked by Usage are bad input: one line on
// standard error for the whole job, exit status 2.
//
// ctx ends at SIGINT and SIGTERM, with run then given five seconds to return;
// the exit status is 128 plus the signal. Any other error of run, a panic in it,
// or a failed stream on any rank ends the job on every rank, with that rank's
// message and exit status 1. What run left enqueued is waited for.
//
// The names of the common flags (see Config) are taken: fs must not define them.
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
	var cfg Config
	cfg.flags(fs)
	j := environment()
	if err := parse(fs, os.Args[1:], j); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		return refuse(fs.Name(), j, err)
	}
	err := cfg.check()
	for _, check := range checks {
		if err == nil {
			err = check(j.size)
		}
	}
	if err != nil {
		return refuse(fs.Name(), j, err)
	}
	w, err := Open(cfg)
	if err != nil {
		if errors.As(err, new(usageError)) {
			return refuse(fs.Name(), j, err)
		}
		leaveToFirst(j.rank)
		fmt.Fprintf(os.Stderr, "%s: %v\n", fs.Name(), err)
		cudampi.Abort(exitFailed) // the others may be waiting for this rank
		return exitFailed
	}
	w.logStart()
	sig, err := w.supervise(run)
	switch {
	case err == nil:
		if err := w.Close(); err != nil { // MPI may be down: there is no Abort any more
			w.Log.Error().Msg(err.Error())
			return exitFailed
		}
		return 0
	case sig != nil:
		return w.abort(err, 128+int(sig.(syscall.Signal)))
	case errors.As(err, new(usageError)):
		speak(fs.Name(), w.Rank(), err)
		w.Abort(exitUsage)
		return exitUsage
	default:
		return w.abort(err, exitFailed)
	}
}

// parse reads the command line. --help prints once for the job.
func parse(fs *pflag.FlagSet, args []string, j job) error {
	help := io.Writer(os.Stdout)
	if j.rank != 0 {
		help = io.Discard
	}
	fs.Init(fs.Name(), pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SortFlags = false
	fs.Usage = func() { fmt.Fprintf(help, "Usage of %s:\n%s", fs.Name(), fs.FlagUsages()) }
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: all settings are flags, see --help", fs.Arg(0))
	}
	return nil
}

// refuse ends a job that has bad input, in a process where MPI does not run.
func refuse(name string, j job, err error) int {
	speak(name, j.rank, err)
	return exitUsage
}

// speak says on one line why the job ends. The exit of any rank makes the launcher
// end the others; so rank 0, which as a rule finds the same, speaks at once, and
// the others give it time, and the launcher after it, and speak only where they
// are still there.
func speak(name string, rank int, err error) {
	leaveToFirst(rank)
	if rank != 0 && errors.As(err, new(aloneError)) {
		return // each is a job of its own, but one speaks for all
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// leaveToFirst gives rank 0 the time to report what it finds too.
func leaveToFirst(rank int) {
	if rank != 0 {
		time.Sleep(speakFirst + time.Duration(rank)*50*time.Millisecond)
	}
}

// supervise calls run and watches over it: for signals, and for streams that fail
// while run is blocked somewhere else.
func (w *World) supervise(run func(context.Context, *World) error) (os.Signal, error) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		if w.gpu != nil {
			// The driver and NCCL are fastest where one thread makes all calls; and a rank
			// that mpirun has bound to one core has no other for a second one.
			runtime.LockOSThread()
		}
		done <- guard(func() error {
			if err := run(ctx, w); err != nil {
				return err
			}
			return w.drain() // what was enqueued belongs to the run
		})
	}()

	var sig os.Signal
	var end <-chan time.Time
	failed := w.failed
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
		case s := <-signals:
			if sig != nil {
				return sig, signalError(sig)
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

func signalError(s os.Signal) error { return fmt.Errorf("ended by signal: %v", s) }

// abort reports err, with the stack where it was a panic, and ends the job on
// every rank: the peers of a failed rank are usually inside a collective and
// would wait for ever. Nothing is taken down in order, that could wait for them
// too.
func (w *World) abort(err error, code int) int {
	var p *panicError
	if errors.As(err, &p) {
		fmt.Fprintf(os.Stderr, "%s\n", p.stack)
	}
	host, _ := os.Hostname() // empty where it has none
	w.Log.Error().Str("host", host).Msg(err.Error())
	w.Abort(code)
	return code
}
