package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/internal/launcher"
	"lockstep/internal/process"
	"lockstep/internal/readable"
	"lockstep/spmd/internal/watch"
)

// Exit statuses of Main. A signal gives 128 plus its number.
const (
	exitFailed = 1 // run failed or panicked
	exitUsage  = 2 // bad flags or input
)

// usageError marks bad input.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// Usage is spmd.Usage.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// panicked is the error that a panic of the program becomes, with the stack of the panic.
type panicked interface {
	error
	Stack() []byte
}

// Program is what Main runs on every rank.
type Program struct {
	Flags    *pflag.FlagSet
	Config   *Flags                  // set by the common flags
	Carriers []string                // values that --collectives may have
	Checks   []func(ranks int) error // refuse flags that do not fit each other
	Versions func() string           // what --version prints
	Open     func() (*Job, error)    // starts MPI and joins the job. Collective
	// the program's own function, and the wait for the work that it left enqueued
	Run   func(context.Context) error
	Abort func(status int)                  // ends the job after Open has failed. It returns if MPI does not run
	Local func(context.Context, *Job) error // runs all ranks as goroutines; for Config.Ranks above one
}

// Main parses the command line, joins the job, runs the program and ends the job. It returns the
// exit status.
func Main(p *Program) int { return cli.Ended(p.Flags.Name(), p.main()) }

func (p *Program) main() int {
	received := make(chan os.Signal, 4)
	process.Notify(received, syscall.SIGUSR1) // Go would drop it
	fs, cfg := p.Flags, p.Config
	cfg.Flags(fs, p.Carriers)
	version := fs.Bool("version", false, "print the versions of the framework and of the libraries found, and end")
	cli.Group(fs, cli.Output, "version")
	if args := os.Args[1:]; cli.CompletionAsked(args) {
		cli.Choices(fs, "collectives", p.Carriers...)
		cli.AnswerCompletion(cli.Stdout, fs, args)
		return 0
	}
	env := launcher.Environment()
	speaks := env.Rank == 0 || !launcher.Launched() // else rank 0 does
	if err := parse(fs, os.Args[1:], speaks); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		return refuse(fs.Name(), env.Rank, env.Size, err)
	}
	if *version {
		if speaks {
			fmt.Fprint(cli.Stdout, p.Versions())
		}
		return 0
	}
	err := cfg.Complete(p.Carriers)
	ranks := env.Size
	if cfg.Ranks > 1 {
		ranks = cfg.Ranks
		if err == nil && env.Size > 1 && !env.Script(os.Getenv) {
			err = fmt.Errorf("--ranks %d: %s says %d tasks already; start one, or leave --ranks out",
				cfg.Ranks, env.Source, env.Size)
		}
	}
	for _, check := range p.Checks {
		if err == nil {
			err = check(ranks)
		}
	}
	if err != nil {
		return refuse(fs.Name(), env.Rank, env.Size, err)
	}
	if cfg.Ranks > 1 {
		return p.local(received)
	}
	return p.rank(env, received)
}

// rank runs the program on this process's rank, and returns the exit status.
func (p *Program) rank(env launcher.Job, received chan os.Signal) int {
	fs, cfg := p.Flags, p.Config
	started := limitStart(fs.Name(), cfg, env.Rank, env.Size, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	j, err := p.Open()
	if err != nil {
		if errors.As(err, new(usageError)) {
			return refuse(fs.Name(), env.Rank, env.Size, err)
		}
		leaveToFirst(env.Rank)
		fmt.Fprintf(os.Stderr, "%s: %s\n", fs.Name(), readable.Text(err.Error()))
		p.Abort(exitFailed) // the others may be waiting for this rank
		return exitFailed
	}
	if err := j.Watch(); err != nil {
		return j.abort(err, exitFailed)
	}
	j.world.LogStart()
	j.Enter("running")
	defer j.serveLive()()
	sig, err := j.supervise(received, started, p.Run)
	switch {
	case err == nil:
		return j.end()
	case sig != nil:
		return j.abort(err, signalStatus(sig))
	case errors.As(err, new(usageError)):
		speak(fs.Name(), j.Rank, err)
		j.world.Abort(exitUsage)
		return exitUsage
	default:
		return j.abort(err, exitFailed)
	}
}

// end takes the job down in order. Collective.
func (j *Job) end() int {
	cli.Stderr.Close()
	j.Enter("ending")
	j.ended.Store(true)
	j.Leaving()
	if err := j.world.Compare(); err != nil {
		return j.abort(err, exitFailed)
	}
	j.Leaving()                             // together now
	if err := j.world.Close(); err != nil { // MPI may be down: there is no Abort any more
		j.Log.Error().Msg(err.Error())
		return exitFailed
	}
	return 0
}

// abort ends the job on every rank with err as its cause, which is printed last and once, behind
// the stack of a panic. Nothing is taken down in order: the other ranks are usually inside a
// collective and would wait for ever.
func (j *Job) abort(err error, code int) int {
	cli.Stderr.Close()
	kind := watch.KindError
	stack := ""
	if p := panicked(nil); errors.As(err, &p) {
		kind, stack = watch.KindPanic, string(p.Stack())
	}
	if code > 128 {
		kind = watch.KindSignal
	}
	if j.watchdog != nil {
		j.watchdog.fail(kind, failure{code, err.Error(), stack})
	}
	j.printCause(j.Rank, err, func() {
		j.tellLast(kind != watch.KindSignal, func(time.Duration) [][]byte { return [][]byte{j.world.Account()} })
	})
	j.world.Abort(code)
	return code
}

// printCause prints a rank's error as the cause, behind the stack of a panic, the report of a hang,
// and what tell says.
func (j *Job) printCause(rank int, err error, tell func()) {
	text := err.Error()
	if p := panicked(nil); errors.As(err, &p) {
		fmt.Fprintf(os.Stderr, "%s\n", p.Stack())
	}
	if hang := (*Hang)(nil); errors.As(err, &hang) {
		fmt.Fprint(os.Stderr, hang.Report)
		text = hang.What
	}
	tell()
	host, _ := os.Hostname() // empty if it has none
	log := j.Logger(rank, j.Size, os.Stderr)
	log.Error().Str("host", host).Msg(text)
}
