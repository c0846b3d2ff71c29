package verify

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// calls is a double of a group.
type calls []coll.Call

func (g calls) Len() int                        { return len(g) }
func (g calls) Call(i int) (*coll.Call, Memory) { return &g[i], 0 }

// passes is a double of a stream on a GPU.
type passes struct{ n atomic.Uint64 }

func (p *passes) Passed() uint64 { return p.n.Load() }

func send(to int32, n int) coll.Call {
	return coll.Call{Kind: coll.Send, Type: elem.Int32, Root: to, N: n}
}

// Calls on a GPU are over when their stream has passed them, and reports name those that are not.
func TestRecorderOnDevice(t *testing.T) {
	r := NewRecorder("world", 0, 3)
	r.OnDevice()
	var stream passes
	issue := func(seq uint64, c *coll.Call, g Group) {
		var site ccall.Site
		site.Here(0)
		r.Issue(&stream, seq, c, g, 0, &site, false)
	}
	sum := coll.Call{Kind: coll.AllReduce, Type: elem.Float32, Op: elem.Sum, N: 8}
	var group calls
	for i := range 6 {
		group = append(group, send(int32(1+i%2), i))
	}
	pair := &group
	issue(1, &sum, nil)
	issue(2, &coll.Call{Kind: coll.Group}, pair)
	r.Forget(pair) // it is used again at once
	for _, tc := range []struct {
		passed uint64
		over   uint64
		first  string
	}{
		{0, 0, "AllReduce of 8 float32 (sum)"},
		{1, 1, "Group of Send of 0 int32 to rank 1, Send of 1 int32 to rank 2, Send of 2 int32 to rank " +
			"1, Send of 3 int32 to rank 2 and 2 more"},
		{2, 2, ""},
	} {
		stream.n.Store(tc.passed)
		s := r.Snapshot()
		what, place, ok := r.On(&stream)
		if s.Entered != 2 || s.Over != tc.over || s.Calls != 1 || what != tc.first ||
			ok != (tc.first != "") || r.Meets() != ok {
			t.Errorf("after %d commands: %+v, first %q, in a call: %v", tc.passed, s, what, r.Meets())
		}
		if ok && !strings.HasPrefix(place, "from verify/recorder_test.go:") {
			t.Errorf("%s: place %q", what, place)
		}
		if !strings.HasPrefix(s.Last, "Group of Send of 0 int32") || !s.Alone {
			t.Errorf("the last call is %q, alone: %v", s.Last, s.Alone)
		}
	}
	if _, _, ok := r.On(&passes{}); ok {
		t.Error("another stream has calls")
	}
}

// A watcher and a caller do not wait for each other, and a group that is used again is not read.
func TestRecorderReadWhileWritten(t *testing.T) {
	for _, device := range []bool{false, true} {
		r := NewRecorder("world", 0, 2)
		if device {
			r.OnDevice()
		}
		var stream passes
		var site ccall.Site
		stop := make(chan struct{})
		var reader sync.WaitGroup
		reader.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if s := r.Snapshot(); s.Over > s.Entered {
					t.Errorf("%d of %d calls are over", s.Over, s.Entered)
				}
				r.position()
				r.On(&stream)
			}
		})
		group := &calls{}
		for i := range uint64(20000) {
			*group = append((*group)[:0], send(1, int(i)), send(1, 1))
			c := coll.Call{Kind: coll.Group}
			if device {
				r.Issue(&stream, i+1, &c, group, 0, &site, false)
				stream.n.Store(i)
			} else {
				r.Begin(&c, group)
				r.Leave()
			}
			r.Forget(group)
		}
		close(stop)
		reader.Wait()
	}
}

// job is some ranks, each with one communicator, and rank 0's findings from their heartbeats.
type job struct {
	ranks     []*Recorder
	reporters []*Reporter
	ended     []bool
	analyzer  Analyzer
	nodes     [][]int // whose carriers pass on the ranks' news; nil for none
}

func newJob(size int) *job {
	j := &job{ended: make([]bool, size)}
	for rank := range size {
		r := NewRecorder("world", rank, size)
		r.Place = func() string { return "at app.go:7" }
		j.ranks = append(j.ranks, r)
		j.reporters = append(j.reporters, &Reporter{Recorders: func() []*Recorder { return []*Recorder{r} },
			Ended: func() bool { return j.ended[rank] }})
	}
	return j
}

func (j *job) begin(rank int, c coll.Call) {
	j.ranks[rank].Note(j.ranks[rank].Begin(&c, nil), &c, nil, 0, nil)
}

// refuse has a rank be refused a Broadcast.
func (j *job) refuse(rank int) {
	j.ranks[rank].Refused(coll.Broadcast, true, errors.New("app.go:8: no"))
}

// hear sends some heartbeats of each rank; the second is of ranks that have not got on. It returns
// why the job ends.
func (j *job) hear() (why string, hang bool) {
	hear := func(rank int, said []byte) {
		if said != nil && why == "" {
			why, hang = j.analyzer.Hear(rank, said)
		}
	}
	carriers := make([]Carrier, len(j.nodes))
	for range lateAfter {
		for node, ranks := range j.nodes {
			for _, rank := range ranks {
				hear(rank, carriers[node].Hear(rank, j.reporters[rank].Heartbeat()))
			}
			hear(ranks[0], carriers[node].Pages())
		}
		for rank, r := range j.reporters {
			hear(rank, r.Heartbeat()) // nothing, where a carrier has had it
		}
	}
	return why, hang
}

// Ranks are found that wait in a circle, that wait for one whose program has returned, or that have
// made different calls.
func TestAnalyzer(t *testing.T) {
	recv := func(from int32) coll.Call { return coll.Call{Kind: coll.Recv, Type: elem.Int32, Root: from, N: 4} }
	broadcast := func(root int32) coll.Call {
		return coll.Call{Kind: coll.Broadcast, Type: elem.Int32, Root: root, N: 4}
	}
	for _, tc := range []struct {
		name string
		act  func(j *job)
		want []string
		hang bool
	}{
		{"in a circle", func(j *job) {
			for rank := range 3 {
				j.begin(rank, recv(int32((rank+1)%3)))
			}
		}, []string{"the ranks wait for each other: rank 0 is in Recv of 4 int32 from rank 1 at app.go:7 " +
			"and waits for rank 1; rank 1 is in",
			"rank 2 is in Recv of 4 int32 from rank 0 at app.go:7 and waits for rank 0"}, true},
		{"in a row", func(j *job) {
			j.begin(0, recv(1))
			j.begin(1, recv(2))
		}, nil, false},
		{"of long messages", func(j *job) { // a short one may be over before it is received
			j.begin(0, send(1, longMessage))
			j.begin(1, send(0, longMessage))
		}, []string{"rank 0 is in Send of 1048576 int32 to rank 1 at app.go:7 and waits for rank 1; rank 1 is in"},
			true},
		{"of short messages", func(j *job) {
			j.begin(0, send(1, 1))
			j.begin(1, send(0, 1))
		}, nil, false},
		{"a barrier beside a message", func(j *job) {
			j.begin(0, recv(1))
			j.begin(1, coll.Call{Kind: coll.Barrier})
			j.begin(2, coll.Call{Kind: coll.Barrier})
		}, []string{"rank 0 is in Recv of 4 int32 from rank 1",
			"rank 1 is in Barrier at app.go:7 and waits for rank 0"}, true},
		{"left alone", func(j *job) {
			j.begin(0, recv(1))
			j.ended[1] = true
		}, []string{"rank 1 has returned from the program; rank 0 is in Recv of 4 int32 from rank 1 at " +
			"app.go:7, and waits for message 1 from it on \"world\": it has sent 0"}, false},
		{"another root", func(j *job) {
			for rank := range 3 {
				j.begin(rank, broadcast(int32(rank/2)))
				j.ranks[rank].Leave()
			}
		}, []string{ErrMismatch.Error(), "Broadcast of 4 int32, root 0", "Broadcast of 4 int32, root 1",
			`(call 1 on "world")`}, false},
		{"refused on one rank", func(j *job) {
			j.refuse(1)
			j.begin(0, broadcast(1))
			j.begin(2, broadcast(1))
		}, []string{"rank 1 was refused Broadcast, and goes on without it: app.go:8: no; rank 0 is in Broadcast of " +
			`4 int32 (root 1) at app.go:7, call 1`}, false},
		{"refused where others have gone on", func(j *job) {
			j.refuse(0)
			j.begin(1, broadcast(1))
			j.ranks[1].Leave()
			j.begin(1, coll.Call{Kind: coll.Barrier})
		}, []string{"rank 0 was refused Broadcast, and goes on without it: app.go:8: no; rank 1 is in Barrier"}, false},
		{"refused, and returned", func(j *job) {
			j.refuse(1)
			j.begin(0, broadcast(1))
			j.ended[1] = true
		}, []string{"rank 1 has returned from the program after call 0 on \"world\"; rank 0 is in Broadcast"}, false},
		{"refused alike", func(j *job) {
			for rank := range 3 {
				j.refuse(rank)
			}
			j.begin(0, broadcast(1))
			j.begin(2, broadcast(1))
		}, nil, false},
		{"refused another call than others wait in", func(j *job) {
			j.refuse(1)
			j.begin(0, coll.Call{Kind: coll.Barrier})
		}, nil, false},
		{"refused behind calls that are enqueued", func(j *job) {
			j.ranks[1].Refused(coll.Broadcast, false, errors.New("app.go:8: no"))
			j.begin(0, broadcast(1))
		}, nil, false},
		{"refused, and made after all", func(j *job) {
			j.refuse(1)
			j.hear()
			j.begin(1, broadcast(1))
			j.ranks[1].Leave()
			j.begin(0, broadcast(1))
			j.ranks[0].Leave()
			j.begin(0, broadcast(1))
		}, nil, false},
		{"in order", func(j *job) {
			for rank := range 3 {
				j.begin(rank, broadcast(1))
				j.ranks[rank].Leave()
				j.ended[rank] = true
			}
		}, nil, false},
	} {
		for _, nodes := range [][][]int{nil, {{0, 1, 2}}, {{0, 1}, {2}}, {{0}, {1, 2}}} {
			j := newJob(3)
			j.nodes = nodes
			tc.act(j)
			why, hang := j.hear()
			if (why != "") != (tc.want != nil) || why != "" && hang != tc.hang {
				t.Errorf("%s, nodes %v: %q, a hang: %v", tc.name, nodes, why, hang)
			}
			for _, want := range tc.want {
				if !strings.Contains(why, want) {
					t.Errorf("%s, nodes %v: no %q in %q", tc.name, nodes, want, why)
				}
			}
		}
	}
}

// A carrier passes on one page of each communicator, the newest, with its rank.
func TestCarrier(t *testing.T) {
	j := newJob(3)
	var c Carrier
	for rank := range 3 {
		for range 1 + rank%2 {
			j.begin(rank, coll.Call{Kind: coll.Barrier})
			j.ranks[rank].Leave()
		}
		if on := c.Hear(rank, j.reporters[rank].Heartbeat()); on != nil {
			t.Errorf("rank %d: %s goes on by itself", rank, on)
		}
	}
	if h := parse(c.Pages()); len(h.Pages) != 1 || h.Pages[0].of(0) != 1 || h.Pages[0].count() != 2 {
		t.Errorf("%+v goes on, want the page of rank 1", h)
	}
	if on := c.Pages(); on != nil {
		t.Errorf("%s goes on once more", on)
	}
	call := func() {
		j.begin(0, coll.Call{Kind: coll.Barrier})
		j.ranks[0].Leave()
		c.Hear(0, j.reporters[0].Heartbeat())
	}
	for turn, want := range []bool{true, false, true, false} {
		call()
		if on := c.Pages(); (on != nil) != want {
			t.Errorf("heartbeat %d: %q, want a page: %v", turn, on, want)
		}
	}
	call()
	if c.Pages() == nil {
		t.Error("no page in the heartbeat after one without")
	}
	j.begin(0, coll.Call{Kind: coll.Barrier})
	for c.Hear(0, j.reporters[0].Heartbeat()) == nil { // until it does not get on
	}
	if c.Pages() == nil {
		t.Error("no page in the heartbeat of a rank that stands in a call")
	}
}

// A page is compared with those of all ranks, though rank 0 looks at the sums alone. It is so if
// the sum that it knew is that of a page which has been replaced, and if old sums are forgotten.
func TestPages(t *testing.T) {
	said := func(at ...uint64) *page {
		p := &page{Comm: "c"}
		for i := 0; i < len(at); i += 2 {
			p.Levels = append(p.Levels, [2]uint64{at[i], at[i+1]})
			p.Last = []line{{at[i], at[i+1], fmt.Sprintf("at a.go:1: call of sum %d", at[i+1])}}
		}
		return p
	}
	var p pages
	for i, step := range []struct {
		rank   int
		said   *page
		differ bool
	}{
		{0, said(8, 1), false}, {0, said(16, 5), false}, // rank 0 has gone on: nothing tells of its call 8 any more
		{1, said(8, 2), false}, {2, said(8, 2), false}, {3, said(8, 1), true},
		{3, said(8, 2, 16, 5), false}, {2, said(16, 6), true},
	} {
		if got := p.hear(step.rank, step.said); (got != "") != step.differ {
			t.Errorf("step %d: %q, want a difference: %v", i, got, step.differ)
		}
	}
	var long pages
	for n := uint64(1); n < 5000; n++ {
		for rank := range 2 {
			if got := long.hear(rank, said(4*n, 12*n, 5*n, 15*n)); got != "" {
				t.Fatalf("call %d: %s", n, got)
			}
		}
	}
	if len(long.sums) > 200 {
		t.Errorf("%d sums are kept of two pages", len(long.sums))
	}
	if long.hear(0, said(4*4999, 1)) == "" {
		t.Error("a page that differs is not found among many")
	}
}
