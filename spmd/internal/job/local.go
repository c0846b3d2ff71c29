package job

import (
	"context"
	"errors"
	"os"

	"lockstep/spmd/internal/control"
)

// local is Main for ranks that are goroutines of this process. Its job stands for all of them.
func (p *Program) local(received chan os.Signal) int {
	cfg := p.Config
	j := New(cfg, nil)
	j.Size, j.Log, j.Started = cfg.Ranks, cfg.Logger(0, cfg.Ranks, os.Stderr), NewStartup().Started
	j.starting = limitStart(p.Flags.Name(), cfg, 0, cfg.Ranks)
	sig, err := j.supervise(received, func() {}, func(ctx context.Context) error { return p.Local(ctx, j) })
	if stop := j.stopLive.Load(); stop != nil {
		(*stop)()
	}
	if err == nil {
		return 0
	}
	of := &control.RankError{Err: err}
	errors.As(err, &of)
	if errors.As(err, new(usageError)) && sig == nil {
		speak(p.Flags.Name(), 0, of.Err)
		return exitUsage
	}
	status := exitFailed
	if sig != nil {
		status = signalStatus(sig)
	}
	j.printCause(of.Rank, of.Err, func() {
		if t := j.led.Load(); t != nil {
			t.jobs[0].signalled.Store(j.signalled.Load())
			t.TellLast(sig == nil)
		}
	})
	return status
}

// Lead makes the job stand for the ranks of a team. Rank 0 has started.
func (j *Job) Lead(t *Team, first *Job) {
	j.starting()
	j.led.Store(t)
	first.world.LogStart()
	j.Enter("running")
	stop := j.serveLive()
	j.stopLive.Store(&stop)
}
