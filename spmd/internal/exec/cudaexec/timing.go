package cudaexec

import (
	"errors"
	"sync"

	"lockstep/cuda"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// timing times the commands of a queue by events of the driver around them, from a pool. Nothing
// waits for these events. The queue reads them when its word, or an event that somebody waits for,
// says that the commands have run. It also does so when other commands are enqueued, and now and
// then. Under mu of the queue.
type timing struct {
	events  *trace.Thread // nil where nobody notes them
	pending []*record     // timed, and not known to have run, in order
	free    []*record
	// splitting are the parts of the graph whose replay is issued now, if they are to be timed.
	splitting *exec.GraphParts
}

// record is a command that is noted.
type record struct {
	call       trace.Entry
	comm       *trace.Ledger // whose call or graph it is
	noted      bool          // by comm
	mark       trace.Mark
	name       string
	issued     int64  // when it was handed to the driver
	seq        uint64 // of the command
	begin, end *cuda.Event
	parts      *exec.GraphParts // of a graph
	holds      *trace.Content
	stands     uint32 // for how many replays, where the parts are timed
}

// mostPending bounds the commands of a queue that are timed and have not run. A command beyond that
// is only counted.
const mostPending = 4096

// base is an event whose time is known.
type base struct {
	mu sync.Mutex
	e  *cuda.Event
	at float64 // ns, by trace.Now
}

// rebase is the ns after which another event becomes the base: the driver tells the time between
// two events as a float32.
const rebase = 1e9

// open finds the base on a stream that is idle, and returns within how many ns it is known. It
// waits for some microseconds, once.
func (b *base) open(q *Queue) (within int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.e != nil {
		return 0, nil
	}
	const rounds, enough = 100, 30_000 // ns
	e, err := q.g.Dev.NewTimedEvent()
	if err != nil {
		return 0, err
	}
	if b.e, err = q.g.Dev.NewTimedEvent(); err != nil {
		return 0, errors.Join(err, e.Close())
	}
	within = 1 << 62
	for range rounds {
		before := trace.Now()
		if err := errors.Join(e.Record(q.h), e.Synchronize()); err != nil {
			return 0, errors.Join(err, e.Close())
		}
		if half := (trace.Now() - before) / 2; half < within { // who is interrupted has a poor pair
			within, b.at, b.e, e = half, float64(before+half), e, b.e
		}
		if within < enough {
			break
		}
	}
	return within, e.Close()
}

// times returns when a record began and ended, by trace.Now. Both of its events have been reached.
// Facts of the host correct the base: a command does not begin before it was issued, nor end after
// it was seen to have ended.
func (b *base) times(r *record) (begin, end int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, err := r.begin.Elapsed(b.e)
	if err != nil {
		return 0, 0, err
	}
	took, err := r.end.Elapsed(r.begin)
	if err != nil {
		return 0, 0, err
	}
	at := b.at + float64(since)
	if early := float64(r.issued) - at; early > 0 {
		b.at, at = b.at+early, at+early
	}
	if late := at + float64(took) - float64(trace.Now()); late > 0 {
		b.at, at = b.at-late, at-late
	}
	if since > rebase {
		b.e, r.end = r.end, b.e
		b.at = at + float64(took)
	}
	return int64(at), int64(at) + int64(took), nil
}

// observe begins to note the queue's commands.
func (q *Queue) observe() error {
	if q.d.Trace == nil {
		return nil
	}
	q.timing.events = q.d.Trace.DeviceThread("stream " + q.name)
	within, err := q.d.base.open(q)
	q.d.Trace.KnownWithin(within)
	return err
}

// begins begins the noting of a command that is about to be issued; nil if none is noted. The
// caller holds q.mu.
func (q *Queue) begins(c *exec.Command) *record {
	t := &q.timing
	if t.events == nil {
		return nil
	}
	class, name, bytes := c.Describe()
	if class == trace.Classes && c.Kind != exec.DoCall {
		return nil
	}
	var r *record
	if n := len(t.free); n > 0 {
		r, t.free = t.free[n-1], t.free[:n-1]
	} else {
		r = &record{}
	}
	r.comm, r.noted, r.name, r.parts, r.stands = nil, true, name, nil, 0
	switch {
	case c.Kind == exec.DoCall:
		r.comm = c.Call.Traced()
	case c.Kind == exec.DoGraph && len(c.Capture.Parties) > 0:
		r.comm = c.Capture.Parties[0].Traced()
	}
	switch {
	case c.Kind == exec.DoCall:
		r.mark = r.comm.Issue(&r.call, t.events, c.Plan.What, c.Plan.Group)
	case c.Kind == exec.DoGraph && r.comm != nil:
		r.mark = r.comm.Replay(&r.call, t.events, &c.Capture.Replay.(*graph).holds)
	default:
		r.noted = false
		if c.Kind == exec.DoGraph {
			q.d.Trace.Holds(&c.Capture.Replay.(*graph).holds)
		}
		r.call.Event = trace.Event{Class: class, Bytes: int64(bytes), Comm: -1, Peer: -1, From: -1}
		r.mark = t.events.Choose(class)
	}
	if r.mark.Timed() && (len(t.pending) >= mostPending || !r.timed(q)) {
		r.mark = trace.Mark{}
		r.call.Untimed()
	}
	if c.Kind == exec.DoGraph {
		g := c.Capture.Replay.(*graph)
		if r.parts, r.holds = g.parts, &g.holds; r.parts != nil {
			if r.stands = r.parts.Due(r.mark.Timed()); r.stands > 0 {
				t.splitting = r.parts
			}
		}
	}
	return r
}

// timed records the event before the command, and says whether that is there.
func (r *record) timed(q *Queue) bool {
	for _, e := range []**cuda.Event{&r.begin, &r.end} {
		if *e == nil {
			var err error
			if *e, err = q.g.Dev.NewTimedEvent(); err != nil {
				return false
			}
		}
	}
	r.issued = trace.Now()
	return r.begin.Record(q.h) == nil
}

// ends ends the noting of command number seq, which was issued unless it has failed. The caller
// holds q.mu.
func (q *Queue) ends(r *record, seq uint64, failed error) {
	if r == nil {
		return
	}
	t := &q.timing
	t.splitting = nil
	if r.stands > 0 && (failed != nil || !r.mark.Timed()) {
		r.parts.Given()
	}
	switch {
	case failed != nil:
		t.free = append(t.free, r)
	case r.mark.Timed() && r.end.Record(q.h) == nil:
		r.seq = seq
		t.pending = append(t.pending, r)
		q.harvest(asKnown)
	default:
		r.mark = trace.Mark{}
		r.call.Untimed()
		q.note(r)
	}
}

// The ask of harvest.
const asKnown, asked = false, true

// harvest notes the timed commands that have run. If that is not known it asks the driver, if ask
// says so, and now and then if many wait. The caller holds q.mu.
func (q *Queue) harvest(ask bool) {
	const many = 64
	t := &q.timing
	if len(t.pending) == 0 {
		return
	}
	n, passed := 0, q.Passed()
	ask = ask || len(t.pending)%many == 0
	for ; n < len(t.pending); n++ {
		r := t.pending[n]
		if passed < r.seq {
			if !ask {
				break
			}
			if done, err := r.end.Query(); !done || err != nil {
				break // who uses the queue learns of the failure
			}
		}
		begin, end, err := q.d.base.times(r)
		if err != nil {
			r.mark = trace.Mark{}
			r.call.Untimed()
		}
		r.call.Start, r.call.End = begin, end
		if r.parts != nil {
			q.noteParts(r, err)
		}
		q.note(r)
	}
	if n > 0 {
		rest := copy(t.pending, t.pending[n:])
		clear(t.pending[rest:])
		t.pending = t.pending[:rest]
	}
}

// noteParts notes how long the parts of a replay took, or all of it.
func (q *Queue) noteParts(r *record, failed error) {
	switch {
	case failed != nil && r.stands > 0:
		r.parts.Given()
	case failed != nil:
	case r.stands == 0:
		r.parts.Took(r.call.End - r.call.Start)
	default:
		if spans, err := r.parts.Spans(r.begin, r.call.Start, r.call.End); err == nil {
			q.d.Trace.Split(q.timing.events, r.holds, spans, r.stands)
		}
	}
}

// note notes a record, which is free then.
func (q *Queue) note(r *record) {
	t := &q.timing
	if r.noted {
		r.comm.Note(&r.call)
	} else {
		t.events.Note(r.mark, &r.call.Event, r.name)
	}
	t.free = append(t.free, r)
}

// catchUp notes the commands that have run on a queue that nobody enqueues on.
func (q *Queue) catchUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.read()
}

// read notes the timed commands that are known to have run. The caller holds q.mu.
func (q *Queue) read() {
	if q.timing.events != nil && !q.closed {
		q.harvest(asKnown)
	}
}

// Harvest notes the timed commands of all queues. It leaves out commands that have not run.
func (d *CUDA) Harvest() {
	for _, q := range d.All() {
		q := q.(*Queue)
		q.mu.Lock()
		if !q.closed {
			q.harvest(asked)
		}
		q.mu.Unlock()
	}
}

// drop gives back the events of the queue, whose work is over. The caller holds q.mu.
func (q *Queue) drop() (err error) {
	t := &q.timing
	if t.events == nil {
		return nil
	}
	q.harvest(asked)
	t.events.Close()
	for _, r := range append(t.free, t.pending...) {
		for _, e := range []*cuda.Event{r.begin, r.end} {
			if e == nil {
				continue
			}
			if e := e.Close(); err == nil {
				err = e
			}
		}
	}
	t.free, t.pending = nil, nil
	return err
}
