package cudaexec

import (
	"errors"
	"slices"
	"sync"

	"lockstep/cuda"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// parts tell how long each command of a graph takes. Of some of its replays the driver is given
// another form of the graph, in which each command is followed by the record of an event, for which
// nothing waits. It does the same in the same order. Both are made where the capture ends: what
// allocates must not come while collectives run.
type parts struct {
	exec   *cuda.Exec
	events []*cuda.Event // the first at the beginning of a replay, then one behind each command
	from   [][]int32     // for each command the events of which the last is its beginning

	mu      sync.Mutex
	closed  bool
	pending bool    // a replay is timed, and not known to have run
	replays uint64  // so far
	timed   uint64  // the last of which each part was timed
	next    uint64  // that is to be
	plain   float64 // ns of replays in the graph's own form since then, and half of those before
	plains  float64 // how many
}

// Which replays are timed part by part: at first one when there were twice as many, in the end one
// of so many. Graphs that are replayed less than the first have no times of their parts.
const firstSplit, seldomSplit = 8, 256

// Limits of what is kept to time parts: graphs of a device, and commands of a graph.
const mostSplit, mostParts = 64, 1 << 13

// tracker follows a capture, to know behind which nodes of the graph each command ends.
type tracker struct {
	ends   [][]cuda.Node      // of each command
	from   [][]int32          // as parts.from
	at     [][]int32          // for each lane the events behind what it waits for
	marks  map[*Mark][]int32  // what at was where a mark was recorded
	failed bool               // the driver does not say
	room   [maxEnds]cuda.Node // for its answers
}

// maxEnds is how many nodes a command may end with.
const maxEnds = 64

// lane returns what a lane waits for.
func (t *tracker) lane(l *exec.Lane) *[]int32 {
	for l.Index >= len(t.at) {
		t.at = append(t.at, nil)
	}
	return &t.at[l.Index]
}

// command notes a command that a lane was given.
func (t *tracker) command(l *exec.Lane) {
	if t == nil || t.failed {
		return
	}
	n, err := l.Q.(*Queue).h.CaptureEnds(t.room[:])
	if err != nil || len(t.ends) == mostParts { // then the graph's time is not split
		t.failed = true
		return
	}
	at := t.lane(l)
	t.ends, t.from = append(t.ends, slices.Clone(t.room[:n])), append(t.from, *at)
	*at = []int32{int32(len(t.ends))} // the event behind the command has that place
}

// mark notes that a lane was recorded.
func (t *tracker) mark(l *exec.Lane, m *Mark) {
	if t != nil {
		t.marks[m] = slices.Clone(*t.lane(l))
	}
}

// wait notes that a lane waits for a mark.
func (t *tracker) wait(l *exec.Lane, m *Mark) {
	if t == nil {
		return
	}
	at := t.lane(l)
	*at = slices.Clone(*at)
	for _, e := range t.marks[m] {
		if !slices.Contains(*at, e) {
			*at = append(*at, e)
		}
	}
}

// split makes of a graph the form that tells of its parts; nil where there is nothing to tell, or
// the driver cannot.
func (d *Device) split(g *cuda.Graph, t *tracker) *parts {
	if t == nil || t.failed || len(t.ends) == 0 || d.splits.Add(1) > mostSplit {
		return nil
	}
	p := &parts{from: t.from, next: firstSplit}
	if err := p.make(d.GPU.Dev, g, t); err != nil {
		_ = p.close() // the summary does without
		return nil
	}
	return p
}

func (p *parts) make(dev *cuda.Device, g *cuda.Graph, t *tracker) (err error) {
	for i := range len(t.ends) + 1 {
		e, err := dev.NewEvent(true)
		if err != nil {
			return err
		}
		p.events = append(p.events, e)
		var after []cuda.Node
		if i > 0 {
			after = t.ends[i-1]
		}
		if err := g.Records(e, after...); err != nil {
			return err
		}
	}
	p.exec, err = g.Instantiate()
	return err
}

// close gives back what the parts have. Their replays have run.
func (p *parts) close() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.exec != nil {
		err = p.exec.Close()
	}
	for _, e := range p.events {
		err = errors.Join(err, e.Close())
	}
	return err
}

// due counts a replay, which is timed or not, and says for how many it stands if its parts are to
// be timed, too; else 0.
func (p *parts) due(timed bool) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replays++
	if !timed || p.pending || p.replays < p.next {
		return 0
	}
	stands := p.replays - p.timed
	p.pending, p.timed, p.next = true, p.replays, p.replays+min(p.replays, seldomSplit)
	return uint32(min(stands, 1<<31))
}

// given says that a replay was not issued or not timed after all.
func (p *parts) given() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = false
}

// took notes how long a replay in the graph's own form took, in ns.
func (p *parts) took(ns int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plain, p.plains = p.plain+float64(ns), p.plains+1
}

// spans are when each command of a replay ran, whose parts were timed. The replay began and ended
// at times. By how much it took longer than those in the graph's own form is what the records took:
// each has its part of that.
func (p *parts) spans(r *record, begin, end int64) ([]trace.Span, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = false
	if p.closed {
		return nil, errors.New("the graph is closed")
	}
	first, err := p.events[0].Elapsed(r.begin)
	if err != nil {
		return nil, err
	}
	at := make([]int64, len(p.events))
	at[0] = begin + int64(first)
	for i, e := range p.events[1:] {
		since, err := e.Elapsed(p.events[0])
		if err != nil {
			return nil, err
		}
		at[i+1] = at[0] + int64(since)
	}
	records := int64(0) // what one takes
	if p.plains > 0 {
		records = max(0, end-begin-int64(p.plain/p.plains)) / int64(len(p.from))
	}
	p.plain, p.plains = p.plain/2, p.plains/2
	list := make([]trace.Span, len(p.from))
	for i, from := range p.from {
		start := at[0]
		for _, e := range from {
			start = max(start, at[e])
		}
		list[i] = trace.Span{Start: start, End: max(start, at[i+1]-records)}
	}
	return list, nil
}
