package spmd

import (
	"slices"
	"time"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
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
	in.w.dev.KeepSigning(every, stop)
}

// Work is the communicators, and the streams whose work ends later than their calls.
func (in inJob) Work() []job.Work {
	w := in.w
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]job.Work, 0, len(w.comms))
	for _, st := range w.comms {
		list = append(list, st.recorder)
	}
	for _, q := range w.queues() {
		if work, ok := q.(job.Work); ok {
			list = append(list, work)
		}
	}
	return list
}

// State takes no lock that a call holds while it waits.
func (in inJob) State() job.State {
	w := in.w
	s := job.State{Files: w.files.State(w.control.st.recorder.Meets())}
	w.mu.Lock()
	comms := slices.Clone(w.comms)
	w.mu.Unlock()
	for _, st := range comms {
		r := st.recorder.Snapshot()
		s.Comms = append(s.Comms, job.CommState{ID: st.id, Rank: st.rank, Size: st.size,
			Entered: r.Entered, Left: r.Over, Calls: r.Calls, Last: r.Last, Alone: r.Alone, At: r.At})
	}
	for _, q := range w.queues() {
		r, busy := q.State()
		if !busy {
			continue
		}
		now := job.StreamState{Name: q.Name(), Waiting: r.Waiting, Command: r.Command, At: r.At, Device: r.Device}
		if r.Device {
			now.Command, now.At = firstCall(comms, q)
		}
		s.Streams = append(s.Streams, now)
	}
	return s
}

// firstCall is the first call on a stream of a GPU that is not known to be over, and its place.
func firstCall(comms []*commState, q exec.Queue) (what, place string) {
	for _, st := range comms {
		if what, place, ok := st.recorder.On(q); ok {
			return what, place
		}
	}
	return "", ""
}
