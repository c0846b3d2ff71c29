package world

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"lockstep/host"
	"lockstep/internal/readable"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/verify"
	"lockstep/spmd/internal/watch"
)

// inJob is a world as its job sees it.
type inJob struct{ w *World }

func (in inJob) Agree(failure error) error { return in.w.rank.Channel.Agree(control.Start, failure) }

func (in inJob) Tell(root int, v any) error { return in.w.rank.Channel.Tell(control.Start, v, root) }

func (in inJob) LogStart() { in.w.logStart() }

func (in inJob) Compare() error { return verify.AtEnd(in.w.rank.Channel, in.w.rank.Recorders()) }

func (in inJob) Account() []byte { return in.w.account() }

func (in inJob) TellLast(failed bool, until time.Time, ask func() [][]byte) {
	in.w.tellLast(failed, until, ask)
}

func (in inJob) Close() error { return in.w.Close() }

func (in inJob) Abort(status int) { in.w.Abort(status) }

func (in inJob) Heartbeat() []byte { return in.w.heartbeat() }

func (in inJob) WritesFiles() bool { return in.w.files.Used() }

func (in inJob) Carry(beats []watch.Beat) []watch.Beat { return in.w.carry(beats) }

// Heard runs on rank 0, on one goroutine for each rank.
func (in inJob) Heard(rank int, heartbeat []byte) (why string, hang bool) {
	return in.w.heard(rank, heartbeat)
}

func (in inJob) KeepSigning(every time.Duration, stop <-chan struct{}) {
	in.w.rank.Dev.KeepSigning(every, stop)
}

// Work returns the communicators, and the streams whose work ends later than their calls.
func (in inJob) Work() []job.Work {
	recorders := in.w.rank.Recorders()
	list := make([]job.Work, 0, len(recorders))
	for _, r := range recorders {
		list = append(list, r)
	}
	for _, q := range in.w.rank.Queues() {
		if work, ok := q.(job.Work); ok {
			list = append(list, work)
		}
	}
	return list
}

// State takes no lock that a call holds while it waits.
func (in inJob) State() job.State {
	w := in.w
	s := job.State{Files: w.files.State(w.rank.Control.Recorder().Meets())}
	recorders := w.rank.Recorders()
	if text, err := json.Marshal(heartbeat{Calls: verify.LastCalls(recorders)}); err == nil {
		s.History = text
	}
	for _, r := range recorders {
		now := r.Snapshot()
		s.Comms = append(s.Comms, job.CommState{ID: r.ID, Rank: r.Rank, Size: r.Size,
			Entered: now.Entered, Left: now.Over, Calls: now.Calls, Last: now.Last, Alone: now.Alone, At: now.At,
			Refused: now.Refused})
	}
	for _, q := range w.rank.Queues() {
		r, busy := q.State()
		if !busy {
			continue
		}
		now := job.StreamState{Name: q.Name(), Waiting: r.Waiting, Command: r.Command, At: r.At, Device: r.Device}
		if r.Device {
			now.Command, now.At = firstCall(recorders, q)
		}
		s.Streams = append(s.Streams, now)
	}
	return s
}

// firstCall returns the first call on a stream of a GPU that is not known to be over, and its
// place.
func firstCall(recorders []*verify.Recorder, q exec.Queue) (what, place string) {
	for _, r := range recorders {
		if what, place, ok := r.On(q); ok {
			return what, place
		}
	}
	return "", ""
}

// logStart logs the job's configuration, and why it was chosen if it was asked for or is a warning.
// More is for programs, and for who asks for it.
func (w *World) logStart() {
	line := w.rank.Log.Info()
	if w.fellBack {
		line = w.rank.Log.Warn()
	}
	line = line.Str("launcher", w.launched.Name).Int("ranks", w.rank.All.Size()).Int("nodes", w.nodes).
		Str("device", w.rank.Dev.Name()).Str("collectives", w.rank.All.Routes().Name())
	whole := w.start.Config.LogFormat == "json" || w.rank.Log.GetLevel() <= zerolog.DebugLevel
	asked := w.start.Config.Collectives
	if whole || w.fellBack || asked != "" && asked != "auto" {
		line = line.Str("why", w.why)
	}
	line = line.Int("threads", w.threads)
	if w.nodes > 1 {
		line = w.describeNodes(line)
	}
	if whole {
		line = w.describe(line).Dict("startup_ms", w.startup.Log())
	} else {
		line = line.Str("took", readable.Amount(time.Since(w.startup.Started).Seconds(), "s"))
	}
	line.Msg("start")
	if w.apartBy != "" {
		w.rank.Log.Warn().Str("set", w.apartBy).Msgf("this rank is in a container of its own, with its own %v "+
			"namespace: MPI's messages to ranks of this host take a slower way", w.apart)
	}
}

// describe adds what was found of libraries, cores and the devices.
func (w *World) describe(line *zerolog.Event) *zerolog.Event {
	line = line.Str("mpi", w.ranks.Library()).Str("blas", host.BLAS())
	if w.cores != "" {
		line = line.Str("cores", w.cores)
	}
	w.rank.Dev.Describe(line)
	w.rank.All.Routes().Describe(line)
	return line
}

// describeNodes adds facts about several nodes: the order in which they hold the ranks, if it is
// mixed, and the interfaces by which this rank's connections leave the node. Fabrics other than TCP
// show none.
func (w *World) describeNodes(line *zerolog.Event) *zerolog.Event {
	if !w.byNode {
		line = line.Str("rank_order", "mixed: neighbours in rank are on different nodes")
	}
	line = line.Str("mpi_tcp", cmp.Or(job.Interfaces(w.mpiSockets), "none"))
	if !w.rank.OnHost() {
		now := slices.DeleteFunc(w.ncclSockets, func(s job.Socket) bool { return slices.Contains(w.mpiSockets, s) })
		line = line.Str("nccl_tcp", cmp.Or(job.Interfaces(now), "none"))
	}
	return line
}
