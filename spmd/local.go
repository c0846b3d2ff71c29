package spmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/transport/inproc"
	"lockstep/spmd/internal/verify"
)

// Local runs run on a number of ranks that are goroutines of this process. Each has a World of its own, with a device,
// streams and memory, and run is the same as Main's. Where the machine has GPUs, each rank has one of its own, or Local fails
// for want of GPUs; otherwise, or with Config.Device "host", it has host memory. There is no MPI. On the host a job starts
// and ends in less than a millisecond, and a process may run several, one after another or at the same time.
//
// A rank that fails or panics ends all: ranks that wait for it get an error from their calls, and ctx, which is what Local got
// but ends with the job, says why. So does a rank that returns while another waits for it, ranks that wait for each other, and
// a collective that does not end within Config.Timeout. Local returns the error of the first rank that failed, with its number,
// when all have returned; those that do not return within five seconds after a failure it leaves behind. What failed ranks
// had on GPUs stays taken until the process ends.
//
// What belongs to a process, such as the working folder, the ranks share. They divide its cores.
func Local(ctx context.Context, cfg Config, ranks int, run func(ctx context.Context, w *World) error) error {
	if ranks < 1 {
		return Usage(fmt.Errorf("%d ranks: want 1 or more", ranks))
	}
	return (&local{cfg: cfg, run: run}).start(ctx, ranks)
}

// grace is how long ranks may take to return after one has failed.
const grace = 5 * time.Second

// local is a call of Local, or of Main for ranks of this process.
type local struct {
	cfg   Config
	flags *pflag.FlagSet // that set cfg; nil where none have
	lead  *job.Job       // Main's, that stands for all ranks; else nil
	team  *inproc.Team
	watch *job.Team
	fail  func(rank int, err error)
	run   func(ctx context.Context, w *World) error
}

// start runs the ranks until all have returned, or one has failed.
func (l *local) start(ctx context.Context, ranks int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	team := inproc.NewTeam(ranks)
	l.team = team
	ended := make(chan struct{})
	l.fail = func(rank int, err error) {
		team.Fail(rank, err)
		cancel(team.Err())
	}
	l.watch = job.NewTeam(ranks, l.fail)
	defer l.watch.Close()
	var wait sync.WaitGroup
	for i := range ranks {
		wait.Go(func() { l.rank(ctx, i) })
	}
	go func() {
		wait.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
		case <-time.After(grace):
			return cmp.Or(team.Err(), context.Cause(ctx))
		}
	}
	return team.Err()
}

// rank is one rank, from its beginning to its end.
func (l *local) rank(ctx context.Context, i int) {
	w, err := open(l.team.Rank(i), l.cfg, l.flags)
	if err != nil {
		l.fail(i, err)
		return
	}
	if w.gpu != nil { // who waits for the GPU may wait for a rank that has failed
		w.gpu.GPU.Watch(l.team.Rank(i), l.team.Err)
		defer w.gpu.GPU.Unwatch(l.team.Rank(i))
	}
	left := errors.New("the program has ended its goroutine (runtime.Goexit)")
	defer func() {
		if left != nil {
			l.fail(i, left)
		}
		if l.team.Finish(i) != nil {
			w.abandon()
			return
		}
		if err := errors.Join(verify.AtEnd(w.channel, w.recorders()), w.Close()); err != nil {
			l.fail(i, err)
		}
	}()
	defer context.AfterFunc(w.job.Failed(), func() { l.fail(i, context.Cause(w.job.Failed())) })()
	l.watch.Add(w.job)
	if i == 0 && l.lead != nil {
		l.lead.Lead(l.watch, w.job)
	}
	w.job.MarkProgram()
	w.job.Enter("running")
	left = exec.Guard(func() error {
		if err := l.run(ctx, w); err != nil {
			return err
		}
		return w.drain()
	})
	w.job.Leaving()
}

// abandon is Close where the job has failed: nobody waits for other ranks any more.
func (w *World) abandon() {
	w.mu.Lock()
	closed := w.closed
	w.closed = true
	w.mu.Unlock()
	if closed {
		return
	}
	defer w.job.Unmark()
	_ = w.drain() // what fails here and below fails because the job has
	if w.gpu != nil {
		return // the driver and NCCL would wait for kernels that wait for other ranks
	}
	_ = w.takeDown()
}
