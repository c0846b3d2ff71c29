package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// grace is how long the program may take to return after a signal or a failed stream.
const grace = 5 * time.Second

// supervise calls run and watches over it: for signals, and for streams that fail while run is blocked elsewhere. signals
// has those that came during the start.
func (j *Job) supervise(signals chan os.Signal, run func(context.Context) error) (sig os.Signal, err error) {
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGQUIT)
	defer MarkKeeper()()
	early := &preemption{told: make(chan struct{}), hears: make(chan struct{})}
	defer func() {
		if err == nil {
			go j.leaveSignals(signals, early)
		} else {
			signal.Stop(signals)
		}
	}()
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), preemptionKey{}, early))
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		j.MarkProgram()
		done <- run(ctx)
	}()

	var end <-chan time.Time
	failed, hears := j.failed.Done(), early.hears
	var kept os.Signal // SIGUSR1, until the program listens or deaf ends
	deaf := time.After(grace)
	for {
		select {
		case err := <-done:
			if sig != nil {
				return sig, signalError(sig)
			}
			if failure := context.Cause(j.failed); failure != nil && !errors.As(err, new(panicked)) {
				err = failure // it caused what run returned, or run did not notice it
			}
			return nil, err
		case <-failed:
			failed = nil
			cancel(context.Cause(j.failed))
			end = time.After(grace / 5)
		case <-hears:
			hears, deaf = nil, nil
			if kept != nil && early.take() {
				j.Log.Warn().Str("signal", kept.String()).Msg("asked to end early, before the program listened")
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
			case s == syscall.SIGQUIT && j.beside:
				continue
			case s == syscall.SIGQUIT:
				go func() { fmt.Fprint(os.Stderr, j.show(j.LogFormat == "json")) }()
				continue
			case s != syscall.SIGINT && early.take():
				j.Log.Warn().Str("signal", s.String()).Msg("asked to end early")
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
			return nil, context.Cause(j.failed)
		}
	}
}

// leaveSignals gives signals back to the system once run has ended well. It ignores the first request to end early: an
// earlier one, to another node, may have been the reason why run has ended.
func (j *Job) leaveSignals(signals chan os.Signal, early *preemption) {
	for s := range signals {
		if s == syscall.SIGINT || s == syscall.SIGQUIT || !early.take() {
			signal.Stop(signals)
			_ = syscall.Kill(os.Getpid(), s.(syscall.Signal)) // to end as it would have
			return
		}
		j.Log.Warn().Str("signal", s.String()).Msg("asked to end early, at the end")
	}
}

func signalError(s os.Signal) error { return fmt.Errorf("ended by signal: %v", s) }

// preemption is the request to end early, for a program that has said that it listens.
type preemption struct {
	mu    sync.Mutex
	told  chan struct{}
	hears chan struct{} // closed when the program listens
	heard bool          // hears is closed
	taken bool
}

type preemptionKey struct{}

// take passes the request on to a program that listens. It reports whether this is the first time.
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

// Preempted is spmd.Preempted. ctx is what run was given.
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
