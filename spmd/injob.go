package spmd

import (
	"fmt"
	"slices"
	"time"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/job"
)

// inJob is a world as its job sees it.
type inJob struct{ w *World }

func (in inJob) Agree(failure error) error { return in.w.channel.Agree(control.Start, failure) }

func (in inJob) Tell(root int, v any) error { return in.w.channel.Tell(control.Start, v, root) }

func (in inJob) LogStart() { in.w.logStart() }

func (in inJob) Compare() error { return in.w.compareLedgers() }

func (in inJob) Close() error { return in.w.Close() }

func (in inJob) Abort(status int) { in.w.Abort(status) }

func (in inJob) Heartbeat() []byte { return in.w.pulse() }

func (in inJob) WritesFiles() bool { return in.w.files.Used() }

// Heard compares what the ranks have called. It runs on rank 0, on one goroutine for each rank.
func (in inJob) Heard(rank int, heartbeat []byte) (why string, hang bool) {
	if text := in.w.heard.compare(rank, heartbeat); text != "" {
		return fmt.Sprintf("%v: %s", ErrContract, text), false
	}
	return in.w.heard.stuck(rank), true
}

func (in inJob) KeepSigning(every time.Duration, stop <-chan struct{}) {
	if in.w.gpu != nil {
		in.w.keepSigning(every, stop)
	}
}

// Work is the communicators, and the streams on a GPU, which end later than their calls.
func (in inJob) Work() []job.Work {
	w := in.w
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]job.Work, 0, len(w.comms)+len(w.streams))
	for _, st := range w.comms {
		list = append(list, commWork{st})
	}
	for _, s := range w.streams {
		if s.dev != nil {
			list = append(list, streamWork{s.dev})
		}
	}
	return list
}

// commWork is the calls of a communicator.
type commWork struct{ st *commState }

func (c commWork) Position() (at uint64, busy bool) {
	a := &c.st.activity
	entered, left := a.entered.Load(), a.left.Load()
	return entered, entered != left
}

func (c commWork) Stuck(time.Time, time.Duration) bool { return false }

func (c commWork) String() string {
	if c.st.id == controlID {
		return c.st.last()
	}
	return fmt.Sprintf("%s on %q", c.st.last(), c.st.id)
}

// streamWork is what is enqueued on a stream of a GPU.
type streamWork struct{ q *gpuQueue }

func (s streamWork) Position() (at uint64, busy bool) {
	passed := s.q.passed()
	return passed, passed < s.q.wrote.Load()
}

func (s streamWork) Stuck(now time.Time, limit time.Duration) bool { return s.q.stuck(now, limit) }

func (s streamWork) String() string {
	return fmt.Sprintf("what was enqueued on stream %q, collectives among it,", s.q.s.name)
}

// State takes no lock that a call holds while it waits.
func (in inJob) State() job.State {
	w := in.w
	s := job.State{Files: w.files.State(w.control.st.activity.meets())}
	w.mu.Lock()
	comms, streams := slices.Clone(w.comms), slices.Clone(w.streams)
	w.mu.Unlock()
	for _, st := range comms {
		a := &st.activity
		c := job.CommState{ID: st.id, Rank: st.rank, Size: st.size, Entered: a.entered.Load(), Left: a.over(), Calls: a.calls.Load()}
		if c.Entered > 0 {
			c.Last, c.Alone = st.last(), a.what.Load()&ofEveryone == 0
		}
		switch {
		case coll.Kind(a.what.Load()).Traits().Own: // of the framework's own
			c.Last = a.ledger.last()
		case a.flight != nil:
			c.At = a.flight.lastPlace()
		}
		s.Comms = append(s.Comms, c)
	}
	for _, st := range streams {
		if r, busy := st.q.report(); busy {
			r.Name = st.name
			for _, c := range comms {
				if what, place, ok := c.activity.on(st.dev); ok {
					r.Command, r.At = what, place
					break
				}
			}
			s.Streams = append(s.Streams, r)
		}
	}
	return s
}
