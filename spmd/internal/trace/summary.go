package trace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// Summary says how one rank has spent its time.
type Summary struct {
	Rank    int              `json:"rank"`
	Elapsed int64            `json:"elapsed"` // ns of the run
	Called  float64          `json:"called"`  // ns of it in calls that block
	Host    [Classes]Total   `json:"host"`    // what the program called
	Streams [Classes]Total   `json:"streams"` // what its streams did
	Regions map[string]Total `json:"regions"`
	Works   map[string]Total `json:"works"` // kernels, libraries, host functions, copies and fills
	Sizes   []SizeTotal      `json:"sizes"`
	Comms   []CommInfo       `json:"comms"`
	Late    []sample         `json:"late"`
	Start   []Part           `json:"start"`
	Memory  []Memory         `json:"memory"`
	Lines   int              `json:"lines"` // that events were on: streams and what calls
}

// SizeTotal is the total of the calls of one kind whose bytes lie in one power of two.
type SizeTotal struct {
	Kind coll.Kind `json:"kind"`
	Log  uint8     `json:"log"`
	Total
}

type Part struct {
	Name string  `json:"name"`
	Ms   float64 `json:"ms"`
}

// Memory is the most memory of a kind that was in use at one time.
type Memory struct {
	Kind string `json:"kind"`
	Peak int    `json:"peak"` // bytes
}

// Opened says that the start is over. The run of a summary begins here.
func (t *Tracer) Opened() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began = Now()
}

// Totals say how a rank has spent its time until now.
type Totals struct {
	At      int64          // by Now
	Host    [Classes]Total // what the program called
	Streams [Classes]Total // what its streams did
	Regions map[string]Total
}

// Totals returns them. It may be called from any goroutine.
func (t *Tracer) Totals() Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Totals{At: Now(), Host: t.host, Streams: t.streams, Regions: make(map[string]Total, len(t.regions))}
	for name, r := range t.regions {
		s.Regions[t.named[name]] = *r
	}
	return s
}

// Summary returns how the rank has spent its time.
func (t *Tracer) Summary(rank int, start []Part, memory []Memory) *Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &Summary{Rank: rank, Elapsed: Now() - t.began, Called: t.called, Host: t.host, Streams: t.streams,
		Regions: map[string]Total{}, Works: map[string]Total{}, Start: start, Memory: memory,
		Lines: len(t.threads)}
	for name, r := range t.regions {
		s.Regions[t.named[name]] = *r
	}
	for name := range t.works {
		if w := &t.works[name]; w.Count > 0 {
			s.Works[t.named[name]] = w.ofAll()
		}
	}
	for kind, of := range t.sizes {
		for log := 0; of != nil && log < len(of); log++ {
			if of[log].Count > 0 {
				s.Sizes = append(s.Sizes, SizeTotal{coll.Kind(kind), uint8(log), of[log].ofAll()})
			}
		}
	}
	for _, c := range t.comms {
		s.Comms = append(s.Comms, CommInfo{c.name, c.rank, c.size})
	}
	s.Late = append(s.Late, t.late[:min(t.sampled, samples)]...)
	return s
}

// Gather returns on rank 0 the summaries of all ranks, with the times of all by rank 0's
// clock. Collective over the ranks.
func (s *Summary) Gather(c control.Exchange, clocks []Clock) ([]*Summary, error) {
	mine, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	parts, err := control.Gather(c, mine)
	if err != nil || c.Rank() != 0 {
		return nil, err
	}
	all := make([]*Summary, len(parts))
	for r, part := range parts {
		if err := json.Unmarshal(part, &all[r]); err != nil {
			return nil, fmt.Errorf("the summary of rank %d: %w", r, err)
		}
		all[r].align(&clocks[r])
	}
	return all, nil
}

// align converts the times to the clock of rank 0.
func (s *Summary) align(c *Clock) {
	for i := range s.Late {
		l := &s.Late[i]
		l.Start, l.End = c.ToFirst(l.Start), c.ToFirst(l.End)
	}
}

// Row is a line of the table: the times of some calls on the rank on which they took longest.
type Row struct {
	What    string  `json:"what"`
	Count   uint64  `json:"count"`   // on the slowest rank
	Bytes   uint64  `json:"bytes"`   // there
	Seconds float64 `json:"seconds"` // there
	Share   float64 `json:"share"`   // of the run there
	Ratio   float64 `json:"ratio"`   // of that to the time of the fastest rank; 0 if that is none
	Slowest int     `json:"slowest"`
	Rate    float64 `json:"rate"` // bytes that go over a link in a second, on all ranks; 0 if none are known
	// what it would take if all calls were as fast as the fastest of their kind and size, by what
	// it took; 0 if unknown
	OfBest  float64 `json:"of_best"`
	InGraph uint64  `json:"in_graph"` // of Count: calls in graphs, whose time is the graphs'
}

// rated is how many bytes a call has to have for a rate to mean something.
const rated = 1 << 12

// itself is the row of what a program does outside of calls.
const itself = "program itself"

// row compares the ranks, and says whether any has such calls.
func row(what string, all []*Summary, of func(s *Summary) Total) (r Row, some bool) {
	r.What = what
	var least, sum, moved float64
	for i, s := range all {
		t := of(s)
		seconds := t.Nanos / 1e9
		some = some || t.Count > 0
		if i == 0 || seconds > r.Seconds || seconds == r.Seconds && t.Count > r.Count {
			r.Slowest, r.Seconds, r.Count, r.Bytes, r.InGraph = s.Rank, seconds, t.Count, t.Bytes, t.InGraph
			r.Share = t.Nanos / float64(max(s.Elapsed, 1))
		}
		if i == 0 || seconds < least {
			least = seconds
		}
		sum, moved = sum+t.Nanos, moved+t.Moved
	}
	if least > 0 {
		r.Ratio = r.Seconds / least
	}
	if sum > 0 && r.Count > 0 && r.Bytes/r.Count >= rated {
		r.Rate = moved / sum * 1e9
	}
	return r, some
}

func plus(a, b Total) Total {
	a.Count, a.Bytes, a.Nanos, a.Timed, a.Moved, a.InGraph = a.Count+b.Count, a.Bytes+b.Bytes, a.Nanos+b.Nanos,
		a.Timed+b.Timed, a.Moved+b.Moved, a.InGraph+b.InGraph
	return a
}

// Table compares the summaries of all ranks, or of some if the others could not be asked.
type Table struct {
	Ranks   int      `json:"ranks"`
	Of      int      `json:"of"`      // ranks of the job
	Seconds float64  `json:"seconds"` // of the run
	Rows    []Row    `json:"rows"`
	Works   []Row    `json:"works"`   // by name, the longest first
	Calls   []Row    `json:"calls"`   // of communicators, by kind and size: those that took longest
	Regions []Row    `json:"regions"` // that took longest
	Late    Late     `json:"late"`
	Start   []Part   `json:"start"` // the longest of any rank
	Memory  []Memory `json:"memory"`
	On      []int    `json:"on"` // for each of Memory the rank
	first   int      // rank that is compared
}

// Late says how long ranks waited in collectives for the last to come, for calls that all of them
// have timed.
type Late struct {
	Compared int     `json:"compared"` // collectives
	Seconds  float64 `json:"seconds"`  // that the rank which waited longest has waited in all of its collectives
	Waited   int     `json:"waited"`   // that rank
	Last     int     `json:"last"`     // the rank that came last most often
	Share    float64 `json:"share"`    // of the collectives in which it did
}

// mostRows is the most lines of calls, and of regions.
const mostRows = 5

// Compare compares the summaries of all ranks of a job, or of some.
func Compare(all []*Summary, of int) *Table {
	t := &Table{Ranks: len(all), Of: of, first: all[0].Rank}
	for _, s := range all {
		t.Seconds = max(t.Seconds, float64(s.Elapsed)/1e9)
	}
	add := func(what string, of func(s *Summary) Total) {
		if r, some := row(what, all, of); some {
			t.Rows = append(t.Rows, r)
		}
	}
	both := func(c Class) func(*Summary) Total {
		return func(s *Summary) Total { return plus(s.Host[c], s.Streams[c]) }
	}
	add("compute", both(Compute))
	add("collectives", both(Collective))
	if n := len(t.Rows); n > 0 && t.Rows[n-1].What == "collectives" {
		t.Rows[n-1].OfBest = ofBest(all,
			func(z *SizeTotal) bool { return !z.Kind.Traits().Message && z.Kind != coll.Group })
	}
	add("messages", both(Message))
	add("copies", both(Copy))
	add("graphs", both(Replay))
	add("streams wait", func(s *Summary) Total { return s.Streams[Wait] })
	add("program waits", func(s *Summary) Total { return s.Host[Wait] })
	// If several goroutines call at the same time, nobody knows what one of them does meanwhile.
	if !slices.ContainsFunc(all, func(s *Summary) bool { return s.Called > float64(s.Elapsed) }) {
		add(itself, func(s *Summary) Total { return Total{Count: 1, Nanos: float64(s.Elapsed) - s.Called} })
	}
	t.calls(all)
	t.Works = named(all, func(s *Summary) map[string]Total { return s.Works })
	t.Regions = named(all, func(s *Summary) map[string]Total { return s.Regions })
	t.Regions = t.Regions[:min(len(t.Regions), mostRows)]
	t.late(all)
	t.most(all)
	return t
}

// named returns a row for each name that some ranks have, the longest first.
func named(all []*Summary, of func(*Summary) map[string]Total) (rows []Row) {
	names := map[string]bool{}
	for _, s := range all {
		for name := range of(s) {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		r, _ := row(name, all, func(s *Summary) Total { return s.possible(of(s)[name]) })
		rows = append(rows, r)
	}
	longestFirst(rows)
	return rows
}

// possible returns a total without a time if the estimate for calls in graphs cannot be: each line
// of events had only the time of the run.
func (s *Summary) possible(t Total) Total {
	if t.InGraph > 0 && s.Lines > 0 && t.Nanos > 1.05*float64(s.Elapsed)*float64(s.Lines) {
		t.Nanos, t.Moved, t.Timed = 0, 0, 0
	}
	return t
}

// ofAll returns the total with the time of all calls if more than a small part of them was timed,
// else with none.
func (t Total) ofAll() Total {
	part := 0.0
	if t.Timed > 0 && 4*t.Timed >= float64(t.Count) {
		part = float64(t.Count) / t.Timed
	}
	t.Nanos, t.Moved, t.Timed = t.Nanos*part, t.Moved*part, t.Timed*part
	return t
}

// calls finds the calls of communicators that took longest.
func (t *Table) calls(all []*Summary) {
	keys := map[sizeKey]bool{}
	for _, s := range all {
		for i := range s.Sizes {
			keys[sizeKey{s.Sizes[i].Kind, s.Sizes[i].Log}] = true
		}
	}
	for k := range keys {
		is := func(z *SizeTotal) bool { return z.Kind == k.kind && z.Log == k.log }
		r, _ := row(k.String(), all, func(s *Summary) Total {
			if i := slices.IndexFunc(s.Sizes, func(z SizeTotal) bool { return is(&z) }); i >= 0 {
				return s.possible(s.Sizes[i].Total)
			}
			return Total{}
		})
		if r.Seconds > 0 {
			r.OfBest = ofBest(all, is)
		}
		t.Calls = append(t.Calls, r)
	}
	slices.SortFunc(t.Calls, func(a, b Row) int { return cmp.Compare(a.What, b.What) })
	longestFirst(t.Calls)
	t.Calls = t.Calls[:min(len(t.Calls), mostRows)]
}

// String names calls of a size.
func (k sizeKey) String() string {
	if k.log == 0 {
		return k.kind.String()
	}
	return fmt.Sprintf("%v, %s or more", k.kind, Bytes(1<<(k.log-1)))
}

// longestFirst sorts rows by their times.
func longestFirst(rows []Row) {
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.Seconds, a.Seconds) })
}

// ofBest returns how long calls would take if each were as fast as the fastest of its kind and size
// on any rank, as a part of their time. The rank that comes last to a collective finds all others
// there, so its time is the collective's own.
func ofBest(all []*Summary, is func(*SizeTotal) bool) float64 {
	least := map[sizeKey]int64{}
	for _, s := range all {
		for i := range s.Sizes {
			z := &s.Sizes[i]
			k := sizeKey{z.Kind, z.Log}
			if was := least[k]; z.Least > 0 && (was == 0 || z.Least < was) {
				least[k] = z.Least
			}
		}
	}
	var took, best float64
	for _, s := range all {
		for i := range s.Sizes {
			if z := &s.Sizes[i]; is(z) {
				took += z.Nanos
				best += z.Timed * float64(least[sizeKey{z.Kind, z.Log}])
			}
		}
	}
	if took == 0 {
		return 0
	}
	return best / took
}

// late compares the times at which ranks came to collectives that all ranks of a communicator have
// timed.
func (t *Table) late(all []*Summary) {
	type call struct {
		comm string
		seq  uint64
	}
	type entry struct{ rank, index int }
	calls := map[call][]entry{}
	for i, s := range all {
		for j := range s.Late {
			k := call{s.Comms[s.Late[j].Comm].Name, s.Late[j].Seq}
			calls[k] = append(calls[k], entry{i, j})
		}
	}
	waited, took, last := make([]float64, len(all)), make([]float64, len(all)), make([]int, len(all))
	for _, entries := range calls {
		first := all[entries[0].rank]
		if n := first.Comms[first.Late[entries[0].index].Comm].Size; n < 2 || len(entries) != n {
			continue
		}
		at := func(e entry) *sample { return &all[e.rank].Late[e.index] }
		latest := slices.MaxFunc(entries, func(a, b entry) int { return cmp.Compare(at(a).Start, at(b).Start) })
		for _, e := range entries {
			s := at(e)
			took[e.rank] += float64(s.End - s.Start)
			waited[e.rank] += float64(max(min(at(latest).Start, s.End)-s.Start, 0))
		}
		last[latest.rank]++
		t.Late.Compared++
	}
	if t.Late.Compared == 0 {
		return
	}
	for i, s := range all {
		if took[i] == 0 {
			continue
		}
		seconds := waited[i] / took[i] * (s.Host[Collective].Nanos + s.Streams[Collective].Nanos) / 1e9
		if seconds > t.Late.Seconds {
			t.Late.Seconds, t.Late.Waited = seconds, s.Rank
		}
		if last[i] > last[t.Late.Last] {
			t.Late.Last = i
		}
	}
	t.Late.Share = float64(last[t.Late.Last]) / float64(t.Late.Compared)
	t.Late.Last = all[t.Late.Last].Rank
}

// most finds the longest parts of the start, and the most memory, of any rank.
func (t *Table) most(all []*Summary) {
	for _, s := range all {
		for _, p := range s.Start {
			if i := slices.IndexFunc(t.Start, func(o Part) bool { return o.Name == p.Name }); i >= 0 {
				t.Start[i].Ms = max(t.Start[i].Ms, p.Ms)
			} else {
				t.Start = append(t.Start, p)
			}
		}
		for _, m := range s.Memory {
			i := slices.IndexFunc(t.Memory, func(o Memory) bool { return o.Kind == m.Kind })
			switch {
			case i < 0:
				t.Memory, t.On = append(t.Memory, m), append(t.On, s.Rank)
			case m.Peak > t.Memory[i].Peak:
				t.Memory[i], t.On[i] = m, s.Rank
			}
		}
	}
}
