package spmd

import (
	"fmt"
	"slices"
	"time"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/verify"
)

// inJob is a world as its job sees it.
type inJob struct{ w *World }

func (in inJob) Agree(failure error) error { return in.w.channel.Agree(control.Start, failure) }

func (in inJob) Tell(root int, v any) error { return in.w.channel.Tell(control.Start, v, root) }

func (in inJob) LogStart() { in.w.logStart() }

func (in inJob) Compare() error { return verify.AtEnd(in.w.channel, in.w.recorders()) }

func (in inJob) Close() error { return in.w.Close() }

func (in inJob) Abort(status int) { in.w.Abort(status) }

func (in inJob) Heartbeat() []byte { return in.w.reporter.Heartbeat() }

func (in inJob) WritesFiles() bool { return in.w.files.Used() }

// Heard runs on rank 0, on one goroutine for each rank.
func (in inJob) Heard(rank int, heartbeat []byte) (why string, hang bool) {
	return in.w.analyzer.Hear(rank, heartbeat)
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
		list = append(list, st.recorder)
	}
	for _, s := range w.streams {
		if s.dev != nil {
			list = append(list, streamWork{s.dev})
		}
	}
	return list
}

// streamWork is what is enqueued on a stream of a GPU.
type streamWork struct{ q *gpuQueue }

func (s streamWork) Position() (at uint64, busy bool) {
	passed := s.q.Passed()
	return passed, passed < s.q.wrote.Load()
}

func (s streamWork) Stuck(now time.Time, limit time.Duration) bool { return s.q.stuck(now, limit) }

func (s streamWork) String() string {
	return fmt.Sprintf("what was enqueued on stream %q, collectives among it,", s.q.s.name)
}

// State takes no lock that a call holds while it waits.
func (in inJob) State() job.State {
	w := in.w
	s := job.State{Files: w.files.State(w.control.st.recorder.Meets())}
	w.mu.Lock()
	comms, streams := slices.Clone(w.comms), slices.Clone(w.streams)
	w.mu.Unlock()
	for _, st := range comms {
		r := st.recorder.Snapshot()
		s.Comms = append(s.Comms, job.CommState{ID: st.id, Rank: st.rank, Size: st.size,
			Entered: r.Entered, Left: r.Over, Calls: r.Calls, Last: r.Last, Alone: r.Alone, At: r.At})
	}
	for _, st := range streams {
		if r, busy := st.q.report(); busy {
			r.Name = st.name
			if st.dev != nil {
				r.Command, r.At = firstCall(comms, st.dev)
			}
			s.Streams = append(s.Streams, r)
		}
	}
	return s
}

// firstCall is the first call on a stream of a GPU that is not known to be over, and its place.
func firstCall(comms []*commState, q *gpuQueue) (what, place string) {
	for _, st := range comms {
		if what, place, ok := st.recorder.On(q); ok {
			return what, place
		}
	}
	return "", ""
}

var cmdNames = [...]string{cmdCopy: "Copy", cmdFill: "Fill", cmdKernel: "kernel", cmdLibrary: "library",
	cmdFunc: "HostFunc", cmdRecord: "Record", cmdWait: "Wait", cmdGraph: "graph", cmdCall: "call"}

func (k cmdKind) String() string { return cmdNames[k] }

func (q *hostQueue) report() (job.StreamState, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := q.done.Load()
	if done == q.tail {
		return job.StreamState{}, false
	}
	c := &q.ring[done%uint64(len(q.ring))]
	r := job.StreamState{Waiting: q.tail - done, Command: c.kind.String(), At: "from " + c.site.String()}
	switch c.kind {
	case cmdCall:
		r.Command = c.call.String()
	case cmdLibrary:
		r.Command = c.lib.name
	}
	return r, true
}

func (q *gpuQueue) report() (job.StreamState, bool) {
	passed, tail := q.Passed(), q.tail.Load()
	return job.StreamState{Waiting: tail - min(passed, tail), Device: true}, tail > passed
}
