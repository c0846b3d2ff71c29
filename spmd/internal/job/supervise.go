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

	"lockstep/internal/launcher"
	"lockstep/internal/process"
)

const (
	// grace is how long the program may take to return after a signal or a failed stream.
	grace = 5 * time.Second
	// lastWords is how long it takes, with some room, that the cause of a job is printed.
	lastWords = 750 * time.Millisecond
	// tellLimit is how long a failed job may take to say where its time went: the other ranks wait
	// for the cause. saveCause is the rest of it for the cause if the launcher kills.
	tellLimit = 2 * time.Second
	saveCause = 200 * time.Millisecond
)

// patience returns how long the program may take to return after a signal. It is less than grace if
// the launcher kills it before, and nobody would say why.
func patience() time.Duration {
	if kill := launcher.Environment().KillAfter(os.Getenv); kill > 0 {
		return min(grace, kill-lastWords)
	}
	return grace
}

// tellLast says where the time went of a job that has failed, or that a signal ends. ask returns
// its ranks' accounts of that within a time.
func (j *Job) tellLast(failed bool, ask func(limit time.Duration) [][]byte) {
	until := time.Now().Add(tellLimit)
	kill := launcher.Environment().KillAfter(os.Getenv)
	if at := j.signalled.Load(); at != 0 && kill > 0 {
		if end := time.Unix(0, at).Add(kill - saveCause); end.Before(until) {
			until = end
		}
	}
	told := make(chan struct{})
	go func() { // which may wait for a disk
		defer close(told)
		j.world.TellLast(failed, until, func() [][]byte { return ask(time.Until(until) / 2) })
	}()
	select {
	case <-told:
	case <-time.After(time.Until(until)):
	}
}

// ErrExited is the error of a program's function that has not returned, and does not run any more.
var ErrExited = errors.New("the program has ended its goroutine (runtime.Goexit)")

// supervise calls run and watches over it: for signals, and for streams that fail while run is
// blocked elsewhere. received has the signals that came during the start, which started ends.
func (j *Job) supervise(
	received chan os.Signal, started func(), run func(context.Context) error,
) (sig os.Signal, err error) {
	process.Notify(received, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1)
	started()
	// which ends nothing; a shell ignores it for what it starts in the background
	signal.Notify(received, syscall.SIGQUIT)
	defer MarkKeeper()()
	early := &preemption{told: make(chan struct{}), hears: make(chan struct{})}
	defer func() {
		if err == nil {
			go j.leaveSignals(received, early)
		} else {
			signal.Stop(received)
		}
	}()
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), preemptionKey{}, early))
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		err := ErrExited
		defer func() { done <- err }()
		j.MarkProgram()
		err = run(ctx)
	}()

	var end <-chan time.Time
	failed, hears := j.failed.Done(), early.hears
	var kept os.Signal // SIGUSR1, until the program listens or deaf ends
	deaf := time.After(grace)
	var asked os.Signal // that the program has heard, until say
	var say <-chan time.Time
	for {
		select {
		case <-say:
			j.sayAsked(asked, "")
			asked, say = nil, nil
		case err := <-done:
			if asked != nil {
				j.sayAsked(asked, "")
			}
			if sig != nil {
				return sig, signalError(sig)
			}
			if failure := context.Cause(j.failed); failure != nil && !errors.As(err, new(panicked)) {
				err = failure // it caused run's error, or run did not notice it
			}
			return nil, err
		case <-failed:
			failed = nil
			cancel(context.Cause(j.failed))
			end = time.After(grace / 5)
		case <-hears:
			hears, deaf = nil, nil
			if kept != nil && early.take() {
				j.sayAsked(kept, ", before the program listened")
			}
		case <-deaf:
			hears, deaf = nil, nil
			if kept != nil && sig == nil {
				sig = kept
				end = j.endBy(sig, cancel)
			}
		case s := <-received:
			switch {
			case sig != nil:
				return sig, fmt.Errorf("%w%s", signalError(sig), j.whereabouts())
			case s == syscall.SIGQUIT:
				go func() { fmt.Fprint(os.Stderr, j.show(j.LogFormat == "json")) }()
				continue
			case s != syscall.SIGINT && early.take():
				asked, say = s, time.After(j.lookEvery()) // a launcher asks, too, where a rank has died
				continue
			case s == syscall.SIGUSR1 && deaf != nil:
				kept = s
				continue
			}
			sig = s
			end = j.endBy(sig, cancel)
		case <-end:
			if sig != nil {
				return sig, fmt.Errorf("%w%s", signalError(sig), j.whereabouts())
			}
			return nil, context.Cause(j.failed)
		}
	}
}

// sayAsked logs a request to end early, unless the job has ended: the launcher then asks.
func (j *Job) sayAsked(s os.Signal, when string) {
	if j.watchdog != nil {
		select {
		case <-j.watchdog.ended:
			return
		default:
		}
	}
	j.Log.Warn().Str("signal", s.String()).Msg("asked to end early" + when)
}

// endBy has the program end because of a signal. The other ranks learn it first: this one may not
// make the calls that they make. end receives a value when the program has had its time.
func (j *Job) endBy(sig os.Signal, cancel context.CancelCauseFunc) (end <-chan time.Time) {
	j.signalled.Store(time.Now().UnixNano())
	if j.watchdog != nil {
		j.watchdog.warn(sig)
	}
	cancel(signalError(sig))
	return time.After(patience())
}

// leaveSignals gives signals back to the system once run has ended well. It ignores the first
// request to end early: an earlier one, to another node, may have been the reason why run has
// ended.
func (j *Job) leaveSignals(received chan os.Signal, early *preemption) {
	for s := range received {
		if s == syscall.SIGINT || s == syscall.SIGQUIT || !early.take() {
			signal.Stop(received)
			_ = syscall.Kill(os.Getpid(), s.(syscall.Signal)) // to end as it would have
			return
		}
		j.sayAsked(s, ", at the end")
	}
}

func signalError(s os.Signal) error { return fmt.Errorf("ended by signal: %v", s) }

// signalStatus returns the exit status of a job that a signal has ended.
func signalStatus(s os.Signal) int { return 128 + int(s.(syscall.Signal)) }

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

// Preempted is spmd.Preempted. ctx is run's.
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
