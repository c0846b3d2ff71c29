package spmd

import (
	"context"
	"os"

	"github.com/spf13/pflag"

	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/world"
)

// Main is the whole of a program's main function. It parses the command line into fs and the common
// flags, starts MPI, and calls run on every rank. Then it takes everything down again, and exits
// the process if anything failed.
//
// With --ranks Main calls run on several goroutines of one process at the same time. run changes
// only its own variables: if it fills in settings, it works on a copy of the settings of fs.
//
// Main calls checks after the flags are parsed and before MPI starts, with the number of ranks.
// They refuse flags that do not fit each other. Bad input gives one line on standard error for the
// whole job, and exit status 2. It is an error of checks, an unknown flag, an argument that is no
// flag, ranks with different flags (see MayDiffer), or an error of run marked by Usage.
//
// ctx ends at SIGINT, SIGTERM and SIGHUP. run then has five seconds to return, or 0.25 s under Open
// MPI's mpirun, which kills after one. The exit status is 128 plus the signal. Main waits for work
// that run has left enqueued. An error of run, a panic in it, or a failed stream on any rank ends
// the job on every rank. It ends with that rank's message and exit status 1.
//
// --version prints the versions of Lockstep and of the libraries found, once, and ends. fs must not
// define the names of the common flags (see Config), nor version. If fs.Usage is set, --help shows
// its output to fs.Output() before the flags.
func Main(fs *pflag.FlagSet, run func(ctx context.Context, w *World) error, checks ...func(ranks int) error) {
	var cfg Config
	var w *world.World
	status := job.Main(&job.Program{
		Flags:    fs,
		Config:   cfg.forJob(),
		Carriers: world.Carriers(),
		Checks:   checks,
		Versions: func() string { return world.Versions(fs.Name()) },
		Abort:    world.AbortProcesses,
		Local: func(ctx context.Context, lead *job.Job) error {
			return world.Local(ctx, cfg.start(fs), cfg.Ranks, lead, inWorld(run))
		},
		Open: func() (j *job.Job, err error) {
			if w, err = world.Open(cfg.start(fs)); err != nil {
				return nil, err
			}
			return w.Job(), nil
		},
		Run: func(ctx context.Context) error { return w.Run(ctx, inWorld(run)) },
	})
	if status != 0 {
		os.Exit(status)
	}
}

// Usage marks err as bad input: the job ends with err in one line, and exit status 2. Every rank
// should find the error, before any work. Usage(nil) is nil.
func Usage(err error) error { return job.Usage(err) }

// Preempted returns a channel that is closed when this rank receives SIGTERM, SIGHUP or SIGUSR1.
// Batch systems send these before they take a job's machines. ctx is the context that Main gave to
// run.
//
// After a call of Preempted the first such signal does nothing else: the program saves its state
// and returns, on all ranks in the same step. A second signal, and SIGINT, end the job as without
// Preempted. A SIGUSR1 that comes before the call, during the start too, waits for it, up to five
// seconds from the beginning of run.
func Preempted(ctx context.Context) <-chan struct{} { return job.Preempted(ctx) }
