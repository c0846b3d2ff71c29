package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
	"lockstep/spmd/internal/coll"
)

var must = testkit.Must

// Who traces nothing has nothing but nil, and may call all of it.
func TestNothing(t *testing.T) {
	tr := New(Options{})
	th, c := tr.Thread("x"), tr.Comm("world", 0, 2)
	call := coll.Call{Kind: coll.AllReduce, N: 1}
	if tr != nil || th != nil || c != nil || tr.Keeps() || th.Begin(Compute).Timed() ||
		th.Choose(Copy).Timed() {
		t.Error("something is noted")
	}
	th.End(Mark{}, Compute, "x", 1)
	th.EndLong(Mark{}, "x")
	th.Note(Mark{}, &Event{}, "x")
	th.Close()
	c.Begin(th, &call, nil)
	c.End(nil)
	c.Rename("y")
	c.Note(&Entry{})
	tr.Add("a", "b")
	tr.Opened()
}

// A ring that is full drops the oldest events, and says how many.
func TestDropped(t *testing.T) {
	tr := New(Options{File: "x.json", Ranks: 1 << 20})
	th := tr.Thread("work")
	const more = 100
	for i := range leastKept + more {
		th.Note(Mark{weight: 1}, &Event{Start: int64(i), End: int64(i + 1), Comm: -1, Peer: -1, From: -1}, "k")
	}
	l := tr.log(0, mostKept)
	if l.Dropped != more || l.Count != leastKept || l.Events[0].Start != more ||
		l.Events[leastKept-1].Start != leastKept+more-1 {
		t.Errorf("%d dropped, %d kept, from %d to %d",
			l.Dropped, l.Count, l.Events[0].Start, l.Events[leastKept-1].Start)
	}
	var b bytes.Buffer
	must(t, Write(&b, []*Log{l}, 1, false, time.Time{}))
	var f struct {
		OtherData struct {
			Dropped map[string]int `json:"dropped_events"`
		}
	}
	must(t, json.Unmarshal(b.Bytes(), &f))
	if f.OtherData.Dropped["0"] != more || !strings.Contains(b.String(), "100 events dropped") {
		t.Errorf("the file says that %v were dropped", f.OtherData.Dropped)
	}
	if tr.host[Compute].Count != leastKept+more {
		t.Errorf("%d are counted", tr.host[Compute].Count)
	}
}

// Events that overlap are on threads of their own; those that lie in one another, or
// behind one another, are not.
func TestThreadsOfLine(t *testing.T) {
	ev := func(start, end int64) Event { return Event{Start: start, End: end, Comm: -1, Peer: -1, From: -1} }
	l := &Log{Names: []string{"a \"b\"\n"}, Threads: []ThreadInfo{{Name: "calls"}},
		Events: []Event{ev(0, 100), ev(10, 20), ev(20, 30), ev(15, 40), ev(90, 120), ev(100, 110)}}
	var b bytes.Buffer
	must(t, Write(&b, []*Log{l}, 1, false, time.Time{}))
	var f struct {
		TraceEvents []struct {
			Ph, Name string
			Tid      int
			Ts, Dur  float64
		}
	}
	must(t, json.Unmarshal(b.Bytes(), &f))
	got := map[float64]int{}
	for _, e := range f.TraceEvents {
		if e.Ph == "X" {
			got[math.Round(e.Ts*1e3)] = e.Tid
			if e.Name != "a \"b\"\n" {
				t.Errorf("name %q", e.Name)
			}
		}
	}
	want := map[float64]int{0: 0, 10: 0, 15: 1, 20: 0, 90: 1, 100: 0}
	for at, tid := range want {
		if got[at] != tid {
			t.Errorf("the event at %v is on thread %d, want %d", at, got[at], tid)
		}
	}
}

// What is timed of many short calls stands for all of them.
func TestSampler(t *testing.T) {
	tr := New(Options{Summary: true})
	c := tr.Comm("world", 0, 2)
	th := tr.Thread("calls")
	call := coll.Call{Kind: coll.AllReduce, Type: elem.Float32, N: 2}
	const n = 200_000
	for range n {
		c.Begin(th, &call, nil)
		c.End(nil)
	}
	got := tr.host[Collective]
	if got.Count != n || got.Bytes != 8*n {
		t.Errorf("%d calls of %d bytes are counted", got.Count, got.Bytes)
	}
	// How long those took that are timed says nothing here: where one was interrupted, it
	// stands for many that were not.
	if got.Timed < 0.5*n || got.Timed > 2*n || got.Nanos <= 0 {
		t.Errorf("%.0f of %d are stood for, with %.0f ns", got.Timed, n, got.Nanos)
	}
	if c.host.shift == 0 {
		t.Error("each is timed")
	}
}

// summaryOf is the summary of a rank with collectives of a length each,
// that it began at a time each.
func summaryOf(rank int, compute float64, starts, ends []int64) *Summary {
	s := &Summary{Rank: rank, Elapsed: 10e9, Called: 4e9, Comms: []CommInfo{{"world", rank, 3}},
		Regions: map[string]Total{"step": {Count: 2, Nanos: 1e9 * float64(rank+1)}}}
	s.Streams[Compute] = Total{Count: 5, Nanos: compute, Timed: 5}
	z := SizeTotal{Kind: coll.AllReduce, Log: logOf(1 << 20)}
	for i := range starts {
		took := ends[i] - starts[i]
		z.Count, z.Bytes, z.Timed = z.Count+1, z.Bytes+1<<20, z.Timed+1
		z.Nanos += float64(took)
		z.Moved += float64(1<<20) * 4 / 3
		if z.Least == 0 || took < z.Least {
			z.Least = took
		}
		s.Late = append(s.Late, sample{0, uint64(i + 1), starts[i], ends[i]})
	}
	s.Host[Collective], s.Sizes = z.Total, []SizeTotal{z}
	s.Start = []Part{{"mpi", 100 * float64(rank)}}
	s.Memory = []Memory{{"host memory", 1000 * (3 - rank)}}
	return s
}

// A table of three ranks, against what a person works out. Rank 2 comes last to each of two
// collectives, which take 1 ms from there on.
func TestCompare(t *testing.T) {
	const ms = int64(1e6)
	all := []*Summary{
		summaryOf(0, 1e9, []int64{0, 100 * ms}, []int64{10 * ms, 104 * ms}),
		summaryOf(1, 4e9, []int64{4 * ms, 101 * ms}, []int64{10 * ms, 104 * ms}),
		summaryOf(2, 2e9, []int64{9 * ms, 103 * ms}, []int64{10 * ms, 104 * ms}),
	}
	tb := Compare(all, len(all))
	find := func(rows []Row, what string) Row {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.What == what })
		if i < 0 {
			t.Fatalf("no row %q in %+v", what, rows)
		}
		return rows[i]
	}
	if r := find(tb.Rows, "compute"); r.Slowest != 1 || r.Seconds != 4 || r.Ratio != 4 || r.Count != 5 || r.Rate != 0 {
		t.Errorf("%+v", r)
	}
	r := find(tb.Rows, "collectives")
	took := 14. + 9 + 2 // ms, of all ranks
	if r.Slowest != 0 || r.Seconds != 0.014 || r.Ratio != 7 || r.Bytes != 2<<20 || math.Abs(r.OfBest-6/took) > 1e-9 ||
		math.Abs(r.Rate/(6*(1<<20)*4/3/(took*1e-3))-1) > 1e-9 {
		t.Errorf("%+v", r)
	}
	if call := find(tb.Calls, "AllReduce, 1 MiB or more"); call.Seconds != r.Seconds || call.OfBest != r.OfBest {
		t.Errorf("%+v", call)
	}
	if tb.Late != (Late{Compared: 2, Seconds: 0.012, Waited: 0, Last: 2, Share: 1}) {
		t.Errorf("%+v", tb.Late)
	}
	if r := find(tb.Rows, itself); r.Seconds != 6 || r.Ratio != 1 {
		t.Errorf("%+v", r)
	}
	if r := find(tb.Regions, "step"); r.Seconds != 3 || r.Slowest != 2 || r.Ratio != 3 {
		t.Errorf("%+v", r)
	}
	if !slices.Equal(tb.Start, []Part{{"mpi", 200}}) || !slices.Equal(tb.Memory, []Memory{{"host memory", 3000}}) ||
		tb.On[0] != 0 {
		t.Errorf("%+v, %+v on %v", tb.Start, tb.Memory, tb.On)
	}
	text := tb.Text([]Fact{{"tokens a second", "1,234"}})
	for _, want := range []string{"summary of 3 ranks in 10 s",
		"rank 0 waited 12 ms for the last to come; rank 2 came last most often: in 100 % of 2 collectives",
		"start: mpi 200 ms", "host memory 2.93 KiB (rank 0)", "  tokens a second: 1,234\n", "  region step"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	long := &Table{Ranks: 2, Rows: []Row{{What: "compute"}}, Calls: []Row{{What: "ReduceScatterV, 256 KiB or more"}},
		Regions: []Row{{What: "evaluation of all that was kept"}}}
	for _, want := range []string{"\n  compute  ", "\n    ReduceScatterV", "\n    region evaluation"} {
		if text := long.Text(nil); !strings.Contains(text, want) {
			t.Errorf("a name does not begin where it should, at %q:\n%s", want, text)
		}
	}
	for x, want := range map[float64]string{
		1: "1.00", 1.335: "1.33", 9.996: "10.0", 99.94: "99.9", 99.96: "100", 15819.25: "15,819",
	} {
		if got := ratio(x); got != want {
			t.Errorf("a ratio of %g is shown as %s, want %s", x, got, want)
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 140 {
			t.Errorf("a line of %d bytes: %s", len(line), line)
		}
	}
}

// The parts of a replay that was timed stand for those of others, by name or by kind and size. The
// file has them, and for how many they stand; what the streams did is not counted twice.
func TestSplit(t *testing.T) {
	tr := New(Options{File: "x.json", Ranks: 1 << 20})
	tr.Thread("calls")
	stream := tr.DeviceThread("stream work")
	var g Content
	g.Add(Compute, "scale", 512)
	g.Add(Replay, "", 0) // what has no row
	g.AddCall(&coll.Call{Kind: coll.AllReduce, Type: elem.Float32, N: 256}, nil, 2)
	g.Add(Copy, "Copy", 100)
	g.Add(Compute, "scale", 1024)
	if len(g.parts) != 5 {
		t.Fatalf("%d parts", len(g.parts))
	}
	const replays = 10
	for range replays {
		tr.Holds(&g)
	}
	tr.Split(stream, &g, []Span{{100, 300}, {}, {300, 1300}, {1300, 1310}, {1310, 1810}}, 8)
	s := tr.Summary(0, nil, nil)
	want := map[string]Total{ // of 10 replays, of which the one that was timed stands for 8
		"scale": {Count: 20, Bytes: 15360, InGraph: 20, Timed: 20, Nanos: 7000, Least: 200, Moved: 15360},
		"Copy":  {Count: 10, Bytes: 1000, InGraph: 10, Timed: 10, Nanos: 100, Least: 10, Moved: 1000},
	}
	if !maps.Equal(s.Works, want) {
		t.Errorf("%+v\nwant\n%+v", s.Works, want)
	}
	if len(s.Sizes) != 1 || s.Sizes[0].Total !=
		(Total{Count: 10, Bytes: 10240, InGraph: 10, Timed: 10, Nanos: 10000, Least: 1000, Moved: 10240}) {
		t.Errorf("%+v", s.Sizes)
	}
	if c := s.Streams[Compute]; c != (Total{Count: 20, InGraph: 20}) {
		t.Errorf("%+v", c)
	}
	var b bytes.Buffer
	must(t, Write(&b, []*Log{tr.log(0, mostKept)}, 1, false, time.Time{}))
	// on average
	for _, want := range []string{`"dur":0.200,"name":"scale","cat":"compute","args":{"bytes":768,"replays":8}}`,
		`"dur":1.000,"name":"AllReduce","cat":"collective","args":{"bytes":1024,"replays":8}}`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the file lacks %s:\n%s", want, b.String())
		}
	}
}

// Each name has its row: what it was called for, what it moved, and its part of the run. Ranks that
// do not have it count as none.
func TestWorks(t *testing.T) {
	var all []*Summary
	for rank := range 3 {
		tr := New(Options{Summary: true})
		host, stream := tr.Thread("calls"), tr.DeviceThread("stream work")
		note := func(on *Thread, c Class, name string, bytes, took int64, weight uint32) {
			on.Note(Mark{weight: weight}, &Event{Start: 1000, End: 1000 + took, Class: c, Bytes: bytes, Comm: -1,
				Peer: -1, From: -1}, name)
		}
		for range 4 {
			note(stream, Compute, "scale", 1<<20, int64(1e6*(rank+1)), 1)
			// counted alone, and of a name that lies elsewhere
			note(stream, Compute, strings.Clone("scale"), 1<<20, 0, 0)
			note(stream, Copy, "Copy", 1<<10, 5e5, 1)
		}
		note(host, Copy, "Copy", 1<<10, 5e5, 1)
		if rank == 1 {
			note(stream, Compute, "seldom", 0, 7e6, 1)
		}
		note(stream, Wait, "wait for a stream", 0, 9e6, 1)
		s := tr.Summary(rank, nil, nil)
		s.Elapsed = 1e9
		all = append(all, s)
	}
	works := Compare(all, 3).Works
	want := []Row{
		{What: "scale", Count: 8, Bytes: 8 << 20, Seconds: 0.024, Share: 0.024, Ratio: 3, Slowest: 2,
			Rate: 3 * 8 * (1 << 20) / 0.048},
		{What: "seldom", Count: 1, Seconds: 0.007, Share: 0.007, Slowest: 1},
		{What: "Copy", Count: 5, Bytes: 5 << 10, Seconds: 0.0025, Share: 0.0025, Ratio: 1, Slowest: 0},
	}
	if !slices.Equal(works, want) {
		t.Errorf("%+v\nwant\n%+v", works, want)
	}
	if r := Compare(all, 3).Rows[0]; r.What != "compute" || r.Bytes != 0 || r.Count != 9 {
		t.Errorf("%+v", r)
	}
}

// People see as many rows as a screen has, and one for the others. A row without a time has none.
func TestManyWorks(t *testing.T) {
	s := &Summary{Elapsed: 1e9, Works: map[string]Total{}}
	for i := range 30 {
		s.Works[fmt.Sprintf("kernel %02d", i)] = Total{Count: 1, Nanos: 1e6 * float64(30-i), Timed: 1}
	}
	s.Works["in a graph"] = Total{Count: 5, InGraph: 5}
	text := Compare([]*Summary{s}, 1).Text(nil)
	fields := map[string][]string{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 3 {
			fields[f[0]+" "+f[1]] = f[2:]
		}
	}
	if got := strings.Join(fields["kernel 18"], " "); got != "1 - 12 ms 1.2 % - - - -" {
		t.Errorf("%q\n%s", got, text)
	}
	// 11 + 10 + ... + 1 ms, and what has no time.
	if got := strings.Join(fields["12 others,"],
		" "); got != "of their slowest ranks 16 (5 in graphs) - 66 ms 6.6 % - - - -" || fields["kernel 19"] != nil {
		t.Errorf("%q\n%s", got, text)
	}
	s.Works = map[string]Total{"in a graph": s.Works["in a graph"]}
	if text := Compare([]*Summary{s}, 1).Text(nil); !strings.Contains(strings.Join(strings.Fields(text), " "),
		"in a graph 5 (5 in graphs) - - - - - - -") {
		t.Error(text)
	}
}

// What takes long but is timed in part stands for all of its kind. Where too little
// is timed, there is no time.
func TestOfAll(t *testing.T) {
	for _, tc := range []struct{ in, want Total }{
		{Total{Count: 8, Nanos: 30, Timed: 6, Moved: 60}, Total{Count: 8, Nanos: 40, Timed: 8, Moved: 80}},
		{Total{Count: 100, Nanos: 30, Timed: 6, Moved: 60, InGraph: 94}, Total{Count: 100, InGraph: 94}},
		{Total{Count: 5, InGraph: 5}, Total{Count: 5, InGraph: 5}},
	} {
		if got := tc.in.ofAll(); got != tc.want {
			t.Errorf("%+v: %+v, want %+v", tc.in, got, tc.want)
		}
	}
}

// A row of calls in graphs has no time that its streams did not have.
func TestPossible(t *testing.T) {
	s := &Summary{Elapsed: 1e9, Lines: 2, Works: map[string]Total{
		"can be":       {Count: 4, InGraph: 4, Timed: 4, Nanos: 2e9, Moved: 8e9, Bytes: 8e9},
		"cannot be":    {Count: 4, InGraph: 4, Timed: 4, Nanos: 2.2e9, Moved: 8e9, Bytes: 8e9},
		"of the host":  {Count: 4, Timed: 4, Nanos: 3e9},
		"of no stream": {Count: 4, InGraph: 4},
	}, Sizes: []SizeTotal{{coll.AllReduce, 11, Total{Count: 3, InGraph: 3, Timed: 3, Nanos: 9e9, Least: 1e9}}}}
	tb := Compare([]*Summary{s}, 1)
	for what, want := range map[string]float64{"can be": 2, "cannot be": 0, "of the host": 3, "of no stream": 0} {
		i := slices.IndexFunc(tb.Works, func(r Row) bool { return r.What == what })
		if r := tb.Works[i]; r.Seconds != want || r.Share != want || (r.Rate > 0) != (what == "can be") {
			t.Errorf("%+v, want %v s", r, want)
		}
	}
	if c := tb.Calls[0]; c.Count != 3 || c.Seconds != 0 || c.OfBest != 0 {
		t.Errorf("%+v", c)
	}
}

// Collectives that not all ranks have timed are not compared, nor those of one rank.
func TestLateOfSome(t *testing.T) {
	all := []*Summary{summaryOf(0, 0, []int64{0}, []int64{5}), summaryOf(1, 0, []int64{0}, []int64{5})}
	alone := summaryOf(2, 0, []int64{0}, []int64{5})
	alone.Comms[0] = CommInfo{"alone", 0, 1}
	if tb := Compare(append(all, alone), len(all)+1); tb.Late.Compared != 0 {
		t.Errorf("%+v", tb.Late)
	}
}

// What a graph holds counts with each replay, and takes the time of the graph.
func TestHolds(t *testing.T) {
	tr := New(Options{Summary: true})
	c := tr.Comm("world", 1, 3)
	tr.Thread("calls")
	stream := tr.DeviceThread("stream work")
	var g Content
	for range 2 {
		g.Add(Compute, "scale", 512)
		g.AddCall(&coll.Call{Kind: coll.AllReduce, Type: elem.Float32, N: 256}, nil, 3)
	}
	g.AddCall(&coll.Call{Kind: coll.AllGather, Type: elem.Float32, N: 256}, nil, 3)
	g.AddCall(&coll.Call{Kind: coll.Send, Type: elem.Float32, N: 1, Root: 2}, nil, 3)
	var call Entry
	for i := range 4 {
		m := c.Replay(&call, stream, &g)
		if !m.Timed() || call.Seq != uint64(i+1) {
			t.Fatalf("replay %d is number %d, timed %v", i, call.Seq, m.Timed())
		}
		call.Start, call.End = 100, 600
		c.Note(&call)
	}
	s := tr.Summary(1, nil, nil)
	want := map[Class]Total{Compute: {Count: 8, InGraph: 8},
		Collective: {Count: 12, Bytes: 4 * (2*1024 + 3*1024), InGraph: 12},
		Message:    {Count: 4, Bytes: 16, InGraph: 4},
		Replay:     {Count: 4, Bytes: 4 * (5*1024 + 4), Nanos: 2000, Least: 500, Timed: 4}}
	for class, total := range want {
		if s.Streams[class] != total {
			t.Errorf("%v: %+v, want %+v", class, s.Streams[class], total)
		}
	}
	if got, want := s.Works["scale"], (Total{Count: 8, Bytes: 4 * 2 * 512, InGraph: 8}); got != want ||
		len(s.Works) != 1 {
		t.Errorf("%+v, want %+v", s.Works, want)
	}
	if text := Compare([]*Summary{s}, 1).Text(nil); !strings.Contains(text, "12 (12 in graphs)") ||
		strings.Count(text, "AllReduce, 1 KiB or more") != 1 {
		t.Errorf("%s", text)
	}
	if text := Compare([]*Summary{s}, 3).Text(nil); !strings.HasPrefix(text, "summary of rank 1 of 3 in ") {
		t.Errorf("%s", text)
	}
}

// A part of the best below a hundredth is said as such, since 0 % looks like a fault.
func TestOfBestText(t *testing.T) {
	for part, want := range map[float64]string{0.0001: "<1 %", 0.0099: "<1 %", 0.01: "1 %", 0.196: "20 %", 1: "100 %"} {
		if got := ofBestText(part); got != want {
			t.Errorf("%v: %s, want %s", part, got, want)
		}
	}
}
