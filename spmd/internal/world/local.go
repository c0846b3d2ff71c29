package world

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"lockstep/spmd/internal/exec/hostexec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/verify"
)

// Local runs ranks that are goroutines of this process, until all have returned, or one has failed.
// lead is Main's job, which stands for all of them; it may be nil.
func Local(
	ctx context.Context, s Start, ranks int, lead *job.Job, run func(ctx context.Context, w *World) error,
) error {
	return (&local{with: s, lead: lead, ranks: ranks, run: run}).start(ctx)
}

// grace is how long ranks may take to return after one has failed.
const grace = 5 * time.Second

type local struct {
	with  Start
	lead  *job.Job
	ranks int
	team  *transport.Team
	watch *job.Team
	fail  func(rank int, err error)
	run   func(ctx context.Context, w *World) error
	mu    sync.Mutex
	left  []*World // of ranks that have returned after a failure; nil for those that had none
}

// start runs the ranks until all have returned, or one has failed.
func (l *local) start(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	team := transport.NewTeam(l.ranks)
	l.team = team
	ended := make(chan struct{})
	l.fail = func(rank int, err error) {
		team.Fail(rank, l.watch.Because(err))
		cancel(team.Err())
	}
	l.watch = job.NewTeam(l.ranks, l.fail)
	defer l.watch.Close()
	defer func() {
		if l.lead == nil && team.Err() != nil { // Main says it with the rest
			l.watch.TellLast(job.Failed)
		}
	}()
	var wait sync.WaitGroup
	for i := range l.ranks {
		wait.Go(func() { l.rank(ctx, i) })
	}
	go func() {
		wait.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return team.Err()
	case <-ctx.Done():
	}
	if within(ended, grace) {
		return team.Err()
	}
	if team.Err() == nil { // the caller has ended it, and ranks that have not heard of that wait for each other
		team.Stop(fmt.Errorf("%w, and some ranks have not returned in %v", context.Cause(ctx), grace))
		within(ended, grace)
	}
	return team.Err()
}

// within says whether it ends in time.
func within(ended <-chan struct{}, limit time.Duration) bool {
	select {
	case <-ended:
		return true
	case <-time.After(limit):
		return false
	}
}

// rank is one rank, from its beginning to its end.
func (l *local) rank(ctx context.Context, i int) {
	w, err := open(l.team.Rank(i), l.with)
	if err != nil {
		l.fail(i, err)
		l.leave(nil)
		return
	}
	w.keepApart(i)
	if w.rank.GPU != nil { // who waits for the GPU may wait for a rank that has failed
		w.rank.GPU.GPU.Watch(l.team.Rank(i), l.team.Err)
		defer w.rank.GPU.GPU.Unwatch(l.team.Rank(i))
	}
	left := job.ErrExited
	defer func() {
		if left != nil {
			l.fail(i, left)
		}
		if l.team.Finish(i) != nil {
			l.leave(w)
			return
		}
		if err := errors.Join(verify.AtEnd(w.rank.Channel, w.rank.Recorders()), w.Close()); err != nil {
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
	left = w.Run(ctx, l.run)
	w.job.Leaving()
}

// leave is the end of a rank after the job has failed. Others may still be in calls, in which they
// read its memory. So the ranks' memory goes when the last has returned. If one never does it
// stays.
func (l *local) leave(w *World) {
	if w != nil && !w.stop() {
		w = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left = append(l.left, w); len(l.left) < l.ranks {
		return
	}
	for _, w := range l.left {
		if w != nil && w.rank.GPU == nil { // the driver and NCCL would wait for kernels that wait for other ranks
			_ = w.takeDown() // what fails, fails because the job has
		}
	}
}

// keepApart lets the streams of a rank compute on cores of its own, if it has no GPU and nobody has
// bound this process. Linux may else leave two ranks on one core of a busy machine. No thread is
// bound: a goroutine with a thread of its own would be handed to that for each short call, which
// takes 50 us in place of one.
func (w *World) keepApart(i int) {
	host, ok := w.rank.Dev.(*hostexec.Host)
	list, own := job.OwnCores("/sys", i, w.rank.All.Size())
	if !ok || list == "" {
		return
	}
	w.cores = list + ", where the streams compute"
	var once sync.Once
	host.Near = func() {
		if err := job.NudgeThread(&own); err != nil {
			once.Do(func() { w.rank.Log.Warn().Err(err).Msg("ranks may compute on the same cores") })
		}
	}
}
