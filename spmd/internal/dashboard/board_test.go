package dashboard

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
)

// clock is a time that tests set.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// boardAt is a board whose clock the test moves.
func boardAt(ranks int) (*Board, *clock) {
	c := &clock{time.Unix(1000, 0)}
	return NewBoard(ranks, c.at, c.now), c
}

// sampleAt is a rank's sample after some seconds, in which it has computed and waited for so many.
func sampleAt(rank int, at, compute, wait float64) *Sample {
	ns := func(s float64) int64 { return int64(s * 1e9) }
	return &Sample{Rank: rank, Node: rank / 2, Host: fmt.Sprint("h", rank/2), At: ns(at) + 77, Free: 10,
		Total: 100 + rank, Process: 1000 + rank,
		Phases: []Phase{{Name: "compute", Count: uint64(at), Nanos: ns(compute)},
			{Name: "collectives", Count: 3, Bytes: 12, Nanos: ns(wait), Meets: true}, {Name: "copies"}},
		Regions: []Phase{{Name: "forward", Count: 1, Nanos: ns(compute / 4)},
			{Name: "backward", Count: 1, Nanos: ns(compute / 2)}}}
}

// Shares are of the last seconds, not of the whole run. The rank that waits least is the slowest.
func TestView(t *testing.T) {
	b, c := boardAt(3)
	b.Describe(Facts{Program: "p", Ranks: 99, Nodes: 2, Device: "host", Collectives: "mpi-host"})
	for s := range 30 {
		c.at = time.Unix(1000+int64(s), 0)
		for r := range 3 {
			at := float64(s)
			late := max(0, at-15) // from then on rank 1 has more to do
			compute, wait := 0.5*at, 0.4*at
			if r == 1 {
				compute, wait = compute+0.3*late, wait-0.3*late
			}
			b.Hear(sampleAt(r, at, compute, wait))
		}
	}
	v := b.View(-1)
	if v.Program != "p" || v.Ranks != 3 || v.Nodes != 2 || v.Seconds != 29 || v.Ended || v.Hidden != 0 {
		t.Errorf("%+v", v)
	}
	if want := []string{"compute", "collectives"}; !slices.Equal(v.Phases, want) {
		t.Errorf("phases %q, want %q", v.Phases, want)
	}
	if want := []string{"backward", "forward"}; !slices.Equal(v.Regions, want) {
		t.Errorf("regions %q, want %q", v.Regions, want)
	}
	for r, want := range [][4]float64{{0.5, 0.4, 0.25, 0.125}, {0.8, 0.1, 0.4, 0.2}, {0.5, 0.4, 0.25, 0.125}} {
		row := v.Rows[r]
		for i, got := range append(slices.Clone(row.Shares), row.Regions...) {
			if math.Abs(got-want[i]) > 1e-6 {
				t.Errorf("rank %d: shares %v and %v, want %v", r, row.Shares, row.Regions, want)
				break
			}
		}
		if row.Age != 0 || row.Process != 1000+r || row.Host != fmt.Sprint("h", r/2) {
			t.Errorf("%+v", row)
		}
	}
	if s := v.Slowest; s == nil || s.Rank != 1 || math.Abs(s.Least-0.1) > 1e-6 || math.Abs(s.Most-0.4) > 1e-6 {
		t.Errorf("slowest: %+v", s)
	}
	if want := []Host{{0, "h0", 10, 101}, {1, "h1", 10, 102}}; !reflect.DeepEqual(v.Hosts, want) {
		t.Errorf("hosts %+v, want %+v", v.Hosts, want)
	}
	c.at = c.at.Add(7 * time.Second)
	if v := b.View(-1); v.Rows[2].Age != 7 {
		t.Errorf("%+v", v.Rows[2])
	}
}

// Unknown things are not made up: ranks that were never heard, that are alone, that wait in graphs,
// that differ by little.
func TestSlowestUnknown(t *testing.T) {
	both := func(b *Board, c *clock, change func(s *Sample)) *View {
		for s := range 5 {
			c.at = c.at.Add(time.Second)
			for r := range len(b.ranks) {
				one := sampleAt(r, float64(s), 0, float64(s)*0.5+0.01*float64(r*s))
				change(one)
				b.Hear(one)
			}
		}
		return b.View(-1)
	}
	b, c := boardAt(2)
	if v := b.View(-1); v.Slowest != nil || v.Apart || v.Rows[0].Age != -1 || len(v.Phases) != 0 {
		t.Errorf("nothing was heard: %+v", v)
	}
	if v := both(b, c, func(*Sample) {}); v.Slowest != nil || !v.Apart {
		t.Errorf("by a hundredth: %+v, %v", v.Slowest, v.Apart)
	}
	b, c = boardAt(2)
	if v := both(b, c, func(s *Sample) { s.Phases[1].Meets = false }); v.Slowest != nil || v.Apart {
		t.Errorf("in graphs: %+v, %v", v.Slowest, v.Apart)
	}
	b, c = boardAt(1)
	if v := both(b, c, func(*Sample) {}); v.Slowest != nil {
		t.Errorf("alone: %+v", v.Slowest)
	}
}

// Samples of no rank, and old ones, are left out. A page has 64 ranks, and the slowest in any case.
func TestHear(t *testing.T) {
	b, _ := boardAt(100)
	b.Hear(nil)
	b.Hear(&Sample{Rank: -1})
	b.Hear(&Sample{Rank: 100})
	for r := range 100 {
		wait := 0.5
		if r == 90 {
			wait = 0.1
		}
		b.Hear(sampleAt(r, 0, 0, 0))
		b.Hear(sampleAt(r, 2, 0, 2*wait))
		b.Hear(sampleAt(r, 1, 0, 1000)) // late
	}
	v := b.View(-1)
	if len(v.Rows) != mostShown || v.Hidden != 100-mostShown || v.Rows[mostShown-1].Rank != 90 ||
		v.Rows[mostShown-2].Rank != mostShown-2 {
		t.Errorf("%d rows, %d hidden, the last ones of %d and %d", len(v.Rows), v.Hidden,
			v.Rows[len(v.Rows)-2].Rank, v.Rows[len(v.Rows)-1].Rank)
	}
	if v.Slowest == nil || v.Slowest.Rank != 90 || v.Slowest.Most != 0.5 {
		t.Errorf("%+v", v.Slowest)
	}
}

// A series keeps few of many points, from the whole run, in order. A viewer that has some gets the
// others.
func TestNumbers(t *testing.T) {
	b, c := boardAt(1)
	const n = 50_000
	for i := range n {
		c.at = time.Unix(1000, 0).Add(time.Duration(i) * 100 * time.Millisecond)
		b.Set("loss", float64(i))
		if i%1000 == 0 {
			b.Set("other", 1)
		}
	}
	b.Set("loss", math.NaN())
	b.Set("loss", math.Inf(1))
	v := b.View(-1)
	p := v.Numbers[0].Points
	if v.Numbers[0].Name != "loss" || v.Numbers[0].Last != n-1 || len(p) > mostPoints ||
		len(p) < mostPoints/2 || p[0] != [2]float64{0, 0} {
		t.Fatalf("%s is %v last, %d points from %v", v.Numbers[0].Name, v.Numbers[0].Last, len(p), p[0])
	}
	for i := 1; i < len(p); i++ {
		if gap := p[i][0] - p[i-1][0]; gap <= 0 || gap > 3*n*0.1/mostPoints || math.Abs(p[i][1]-10*p[i][0]) > 1e-6 {
			t.Fatalf("point %d is %v, after %v", i, p[i], p[i-1])
		}
	}
	have := p[len(p)-3][0]
	if got := b.View(have).Numbers[0].Points; !slices.Equal(got, p[len(p)-2:]) {
		t.Errorf("after %v: %v, want %v", have, got, p[len(p)-2:])
	}
	for i := range 2 * mostNumbers {
		b.Set(fmt.Sprint(i), 0)
	}
	if got := len(b.View(-1).Numbers); got != mostNumbers {
		t.Errorf("%d numbers", got)
	}
}
