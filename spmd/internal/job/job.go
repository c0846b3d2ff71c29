// Package job is a rank's part in its job: the command line and the ranks' common settings, the
// log, the start, signals, the watchdog with its report of a hang, and the end. It knows no CUDA,
// NCCL or MPI. It learns through World what carries messages and where work stands.
package job

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"lockstep/spmd/internal/watch"
)

// World is a rank's world, as its job sees it.
type World interface {
	Control
	Watched
	Ends
}

// Control carries the framework's own messages between all ranks. Its methods are collective and
// block.
type Control interface {
	// Agree returns an error on every rank if failure is one on any.
	Agree(failure error) error
	// Tell copies rank root's v, as JSON, to every rank.
	Tell(root int, v any) error
}

// Watched is the watchdog's view of a rank. Its methods are not collective. They are called while
// the rank hangs, so they do not enter MPI or wait, but KeepSigning may wait for the driver.
type Watched interface {
	// Work returns the things that may stand still.
	Work() []Work
	// State returns the rank's account of its communicators, streams and files.
	State() State
	// Heartbeat returns the message for rank 0 with the next sign of life, as JSON; nil for
	// nothing. One goroutine calls it.
	Heartbeat() []byte
	// Carry turns heartbeats of this node's ranks into the message for rank 0. One goroutine calls
	// it, in a job of many ranks.
	Carry(beats []watch.Beat) []watch.Beat
	// Heard takes a heartbeat, on rank 0. It returns why the job has to end, or "". hang says that
	// it ends because ranks wait for each other.
	Heard(rank int, heartbeat []byte) (why string, hang bool)
	// WritesFiles reports whether ranks may wait for files, which have a limit of their own.
	WritesFiles() bool
	// KeepSigning has streams note how far they have got, again and again until stop is closed.
	KeepSigning(every time.Duration, stop <-chan struct{})
}

// Work is something that may stand still: the calls of a communicator, or a stream. Two values for
// the same one are equal.
type Work interface {
	// Position returns how far the work has got, and whether it is busy: something has begun and is
	// not over.
	Position() (at uint64, busy bool)
	// Stuck reports whether the host has waited for the work longer than limit.
	Stuck(now time.Time, limit time.Duration) bool
	// String names the work that is not over.
	String() string
}

// Ends is how a world ends.
type Ends interface {
	// LogStart logs the job's configuration.
	LogStart()
	// Compare compares what all ranks have called. Collective, blocking.
	Compare() error
	// Account is this rank's account of its time when the job ends before its program does; nil if
	// nobody wants it. It enters neither MPI nor CUDA.
	Account() []byte
	// TellLast says where the time went, if Close has not said it, of the ranks whose accounts ask
	// returns; nil is a rank without one. failed says that no signal ends the job. TellLast should
	// have ended at until, and enters neither MPI nor CUDA.
	TellLast(failed bool, until time.Time, ask func() [][]byte)
	// Close takes the world down. Collective, blocking.
	Close() error
	// Abort ends the processes of all ranks. It does not return.
	Abort(status int)
}

// Job is this rank's part in its job.
type Job struct {
	Flags       // of the command line
	Rank, Size  int
	Node, Nodes int
	Log         zerolog.Logger
	Started     time.Time // of the process
	world       World
	phase       atomic.Pointer[string]
	ended       atomic.Bool
	left        atomic.Int64 // when the program had returned, in Unix ns; 0 before
	signalled   atomic.Int64 // when a signal came that ends the program, in Unix ns; 0 before
	team        bool         // the ranks are goroutines of one process
	// Fields of a job that stands for such ranks, and has no world:
	led      atomic.Pointer[Team]
	starting func() // ends the limit of the start
	stopLive atomic.Pointer[func()]
	watchdog *Watchdog // nil without a watch, and for one rank, which has
	alone    *Team
	failed   context.Context
	fail     context.CancelCauseFunc
}

// New returns the part of a rank whose world is about to start.
func New(cfg *Flags, world World) *Job {
	j := &Job{Flags: *cfg, world: world}
	j.failed, j.fail = context.WithCancelCause(context.Background())
	j.Enter("starting")
	return j
}

// Enter says what the rank is at: "starting", "running" or "ending".
func (j *Job) Enter(phase string) { j.phase.Store(&phase) }

// Fail records the first failure of a stream. Main then ends the job.
func (j *Job) Fail(err error) { j.fail(err) }

// Failed returns a context that ends with the first failure of a stream as its cause.
func (j *Job) Failed() context.Context { return j.failed }

// Ended reports whether the program's own function has returned.
func (j *Job) Ended() bool { return j.ended.Load() }
