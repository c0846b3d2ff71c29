package exec

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"lockstep/cuda"
	"lockstep/spmd/internal/trace"
)

// GraphParts tell how long each command of a graph takes. For some replays the driver gets another
// form of the graph. It does the same in the same order, but records an event behind each command,
// for which the next commands wait. Both forms are made at the end of the capture: they allocate,
// which must not happen while collectives run.
//
// judge says which replays count.
type GraphParts struct {
	exec   *cuda.Exec
	events []*cuda.Event // the first at the beginning of a replay, then one behind each command
	list   []graphPart
	log    *zerolog.Logger

	mu      sync.Mutex
	closed  bool
	pending bool    // a replay is timed, and not known to have run
	replays uint64  // so far
	tried   uint64  // the last of which each part was timed
	timed   uint64  // the last whose times count
	next    uint64  // that is to be timed
	plain   float64 // ns of replays in the graph's own form since then, and half of those before
	plains  float64 // how many
	faults  int     // replays in succession whose times do not count
	told    bool
}

type graphPart struct {
	from []int32 // the events of which the last is its beginning; none if that is the graph's
	end  int32   // the event behind it; 0 if it added nothing to the graph
	lane int
}

// The replays that are timed part by part: first one each time the number of replays has doubled,
// in the end one of so many. Graphs that are replayed less often than the first have no times of
// their parts.
const firstSplit, seldomSplit = 8, 256

// Limits of what is kept to time parts: graphs of a device, and commands of a graph.
const mostSplit, mostParts = 64, 1 << 13

// Limits for a replay whose times count: the ns of each event, the time of a lane's parts as a
// multiple of a replay in the graph's own form, and the ns that two events may be apart in the
// wrong order. An event between two kernels takes 6 to 9 us on an H100: the second kernel is no
// longer started ahead.
const mostOfEvent, mostOfLane, slack = 12_000, 1.05, 2000

// After so many replays in a row whose times do not count, no other is timed.
const mostFaults = 3

// PartTracker follows a capture, to know behind which nodes of the graph each command ends.
type PartTracker struct {
	ends   [][]cuda.Node // in front of each event but the first
	list   []graphPart
	at     [][]int32               // for each lane the events behind what it waits for
	marks  map[*cuda.Event][]int32 // what at was where one was recorded
	known  map[cuda.Node]bool
	failed error              // the driver does not say
	room   [maxEnds]cuda.Node // for its answers
}

// maxEnds is how many nodes a command may end with, and how many may follow one.
const maxEnds = 64

func NewPartTracker() *PartTracker {
	return &PartTracker{marks: map[*cuda.Event][]int32{}, known: map[cuda.Node]bool{}}
}

// lane returns the events that a lane waits for.
func (t *PartTracker) lane(l int) *[]int32 {
	for l >= len(t.at) {
		t.at = append(t.at, nil)
	}
	return &t.at[l]
}

// Command notes a command that a lane was given, which is captured from s.
func (t *PartTracker) Command(l int, s *cuda.Stream) {
	if t == nil || t.failed != nil {
		return
	}
	n, err := s.CaptureEnds(t.room[:])
	if err == nil && len(t.list) == mostParts {
		err = fmt.Errorf("it has more than %d commands", mostParts)
	}
	if t.failed = err; err != nil {
		return
	}
	at := t.lane(l)
	p := graphPart{from: *at, lane: l}
	for _, node := range t.room[:n] {
		if !t.known[node] {
			t.known[node], p.end = true, int32(len(t.ends)+1)
		}
	}
	if p.end > 0 {
		t.ends = append(t.ends, slices.Clone(t.room[:n]))
		*at = []int32{p.end}
	}
	t.list = append(t.list, p)
}

// Mark notes that e was recorded on a lane.
func (t *PartTracker) Mark(l int, e *cuda.Event) {
	if t != nil {
		t.marks[e] = slices.Clone(*t.lane(l))
	}
}

// Wait notes that a lane waits for e.
func (t *PartTracker) Wait(l int, e *cuda.Event) {
	if t == nil {
		return
	}
	at := t.lane(l)
	*at = slices.Clone(*at)
	for _, i := range t.marks[e] {
		if !slices.Contains(*at, i) {
			*at = append(*at, i)
		}
	}
}

// Split makes the form of a captured graph of dev that tells of its parts. It returns nil if there
// is nothing to tell, if the driver cannot do it, or if there are too many others already.
func (t *PartTracker) Split(dev *cuda.Device, g *cuda.Graph, others int, log *zerolog.Logger) *GraphParts {
	if t == nil || t.failed == nil && len(t.ends) == 0 {
		return nil
	}
	p := &GraphParts{list: t.list, next: firstSplit, log: log}
	err := t.failed
	if err == nil && others >= mostSplit {
		err = fmt.Errorf("there are %d others", mostSplit)
	}
	if err == nil {
		err = p.make(dev, g, t)
	}
	if err != nil {
		p.tell(err)
		_ = p.Close() // the summary does without
		return nil
	}
	return p
}

// make adds the events to the graph and has the driver make it ready. It first asks which nodes
// follow each command, so that events do not wait for each other.
func (p *GraphParts) make(dev *cuda.Device, g *cuda.Graph, t *PartTracker) error {
	ends := append([][]cuda.Node{nil}, t.ends...)
	follow := make([][]cuda.Node, len(ends))
	for i, of := range ends {
		if i == 0 {
			of = []cuda.Node{0}
		}
		for _, node := range of {
			n, err := g.Followers(node, t.room[:])
			if err != nil {
				return err
			}
			follow[i] = append(follow[i], t.room[:n]...)
		}
		slices.Sort(follow[i])
		follow[i] = slices.Compact(follow[i])
	}
	for i, after := range ends {
		e, err := dev.NewTimedEvent()
		if err != nil {
			return err
		}
		p.events = append(p.events, e)
		if err := g.Records(e, after, follow[i]); err != nil {
			return err
		}
	}
	var err error
	p.exec, err = g.Instantiate()
	return err
}

// tell logs, once, why the times of the graph's commands do not count. The caller holds p.mu, or
// nobody else knows p.
func (p *GraphParts) tell(why error) {
	if !p.told {
		p.told = true
		p.log.Debug().Err(why).Int("commands", len(p.list)).Msg("the parts of a graph were not timed")
	}
}

// Close gives back the resources of the parts. Their replays have run.
func (p *GraphParts) Close() (err error) {
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

// Due counts a replay, which is timed or not, and says for how many it stands if its parts are to
// be timed, too; else 0. It takes a replay in the graph's own form to compare it with.
func (p *GraphParts) Due(timed bool) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replays++
	if !timed || p.pending || p.replays < p.next || p.plains == 0 || p.faults >= mostFaults {
		return 0
	}
	p.pending, p.tried, p.next = true, p.replays, p.replays+min(p.replays, seldomSplit)
	return uint32(min(p.replays-p.timed, 1<<31))
}

// Given says that a replay was not issued or not timed after all.
func (p *GraphParts) Given() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = false
}

// Took notes how long a replay in the graph's own form took, in ns.
func (p *GraphParts) Took(ns int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plain, p.plains = p.plain+float64(ns), p.plains+1
}

// Launch enqueues a replay whose parts are timed.
func (p *GraphParts) Launch(s *cuda.Stream) error { return p.exec.Launch(s) }

// Spans are when each command of a replay ran, whose parts were timed. The replay began and ended
// at times; from is an event at its beginning.
func (p *GraphParts) Spans(from *cuda.Event, begin, end int64) ([]trace.Span, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = false
	if p.closed {
		return nil, errors.New("the graph is closed")
	}
	first, err := p.events[0].Elapsed(from)
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
	list, err := p.judge(at, begin, end)
	if err != nil {
		p.tell(err)
		return nil, err
	}
	p.faults, p.timed = 0, p.tried
	p.plain, p.plains = p.plain/2, p.plains/2
	return list, nil
}

// judge returns when each command ran by the times at which the events came, of a replay that began
// and ended at times. It refuses times that cannot be: an event came before one that it waits for,
// or outside of the replay. It also refuses a replay that is not like those in the graph's own
// form: the events took too long, or the parts of a lane take longer than all of such a replay.
//
// The events took what the replay took longer than one in the graph's own form. Each part has its
// share of that taken off.
func (p *GraphParts) judge(at []int64, begin, end int64) ([]trace.Span, error) {
	plain := p.plain / p.plains
	ends := make([]int, 0, 4) // events of each lane
	for i, t := range at {
		if t < begin-slack || t > end+slack {
			p.faults = mostFaults
			return nil, fmt.Errorf("event %d came %d ns after the beginning of a replay of %d ns",
				i, t-begin, end-begin)
		}
	}
	list := make([]trace.Span, len(p.list))
	for i, c := range p.list {
		start := at[0]
		for _, e := range c.from {
			start = max(start, at[e])
		}
		list[i] = trace.Span{Start: start, End: start}
		for len(ends) <= c.lane {
			ends = append(ends, 0)
		}
		if c.end == 0 {
			continue
		}
		if early := start - at[c.end]; early > slack {
			p.faults = mostFaults
			return nil, fmt.Errorf("the event behind command %d came %d ns before one that it waits for", i, early)
		}
		list[i].End = max(start, at[c.end])
		ends[c.lane]++
	}
	each := max(0, int64(float64(slices.Max(at)-at[0])-plain)/int64(slices.Max(ends)))
	if each > mostOfEvent {
		p.faults++
		return nil, fmt.Errorf("each event took %d ns", each)
	}
	sums := make([]int64, len(ends))
	for i, c := range p.list {
		s := &list[i]
		s.End = max(s.Start, s.End-each)
		sums[c.lane] += s.End - s.Start
	}
	if most := slices.Max(sums); float64(most) > mostOfLane*plain+slack {
		p.faults++
		return nil, fmt.Errorf("the parts of a lane took %d ns, all of a replay without events %.0f ns", most, plain)
	}
	return list, nil
}
