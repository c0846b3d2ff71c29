package schedule

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// closedLength is the length of a run with one slow stage. The others take equally long: for both
// passes together, or less than the slow one forward. With slow below 0 no stage is slow.
//
// The slow stage k never waits from its first pass on, if there are as many micro-batches m as
// stages from it on. Before it, the first micro-batch comes to it; behind it, the last one goes
// back. With fewer, the stages behind it have nothing to do between the last micro-batch and the
// first gradient: n-k-m of them in turn.
func closedLength(n, micro, slow int, fast, own PassTime) float64 {
	one, m := fast.Forward+fast.Backward, float64(micro)
	if slow < 0 {
		return (m + float64(n-1)) * one
	}
	return m*(own.Forward+own.Backward) + float64(slow+max(0, n-slow-micro))*one
}

// A run is as long as closed forms say, if all stages take equally long, and if one is slow, at any
// place.
func TestScheduleClosed(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for micro := 1; micro <= 20; micro++ {
			for slow := -1; slow < n; slow++ {
				fast := PassTime{1, 2}
				for _, own := range []PassTime{{3, 3}, {3, 6}, {5, 17}, {100, 200}} {
					stages := slices.Repeat([]PassTime{fast}, n)
					if slow >= 0 {
						stages[slow] = own
					}
					what := fmt.Sprintf("%d micro-batches, stage %d of %d takes %v", micro, slow, n, own)
					s, want := New(stages, micro), closedLength(n, micro, slow, fast, own)
					if s.Length != want || s.Length != slices.Max(s.Ends) {
						t.Fatalf("%s: %v, want %v; the stages end at %v", what, s.Length, want, s.Ends)
					}
					for r, x := range stages {
						if idle := 1 - float64(micro)*(x.Forward+x.Backward)/want; math.Abs(s.Idle[r]-idle) > 1e-12 {
							t.Fatalf("%s: stage %d waits %v of the time, want %v", what, r, s.Idle[r], idle)
						}
						if r > slow && slow >= 0 {
							continue
						}
						// Behind its last pass the last gradient goes through the stages before it,
						// which wait for it.
						back := 0.0
						for _, before := range stages[:r] {
							back += before.Backward
						}
						if s.Ends[r] != want-back {
							t.Fatalf("%s: stage %d ends at %v, want %v", what, r, s.Ends[r], want-back)
						}
					}
				}
			}
		}
	}
}

// Runs of two stages, calculated by hand.
func TestScheduleOfTwo(t *testing.T) {
	for _, tc := range []struct {
		first, second PassTime
		micro         int
		length, end   float64
	}{
		{PassTime{2, 3}, PassTime{4, 5}, 1, 14, 11},
		{PassTime{2, 3}, PassTime{4, 5}, 3, 32, 29},
		{PassTime{0, 0}, PassTime{4, 5}, 3, 27, 27},
		{PassTime{4, 5}, PassTime{0, 0}, 3, 27, 17},
		// The second one's passes end at 5, 10, 11 and 16, those of the first at 4, 8, 15 and 21.
		{PassTime{4, 5}, PassTime{1, 5}, 2, 21, 16},
		{PassTime{0, 0}, PassTime{0, 0}, 3, 0, 0},
	} {
		s := New([]PassTime{tc.first, tc.second}, tc.micro)
		if s.Length != tc.length || s.Ends[0] != tc.length || s.Ends[1] != tc.end {
			t.Errorf("%+v: %+v", tc, s)
		}
	}
}

// A run takes at least as long as its slowest stage works, and as one micro-batch takes. It takes
// at most as long as if all stages were as slow as the slowest pass each way.
func TestScheduleBounds(t *testing.T) {
	times := []float64{3, 0, 7, 1, 11, 2, 5, 0.5, 13}
	for i := range 200 {
		n, micro := 1+i%7, 1+i%11
		stages := make([]PassTime, n)
		var most PassTime
		busiest, through := 0.0, 0.0
		for r := range stages {
			x := PassTime{times[(i+r*r)%len(times)], times[(i*r+3)%len(times)]}
			stages[r] = x
			most = PassTime{max(most.Forward, x.Forward), max(most.Backward, x.Backward)}
			busiest, through = max(busiest, float64(micro)*(x.Forward+x.Backward)), through+x.Forward+x.Backward
		}
		s := New(stages, micro)
		if least := max(busiest, through); s.Length < least || s.Length > closedLength(n, micro, -1, most, most) {
			t.Errorf("%d micro-batches through %v take %v, at least %v", micro, stages, s.Length, least)
		}
		for r, idle := range s.Idle {
			if idle < 0 || idle > 1 {
				t.Errorf("%d micro-batches through %v: stage %d waits %v of the time", micro, stages, r, idle)
			}
		}
	}
}

func TestScheduleRefuses(t *testing.T) {
	one := []PassTime{{1, 2}}
	for _, tc := range []struct {
		stages []PassTime
		micro  int
	}{{nil, 1}, {one, 0}, {[]PassTime{{-1, 2}}, 1}, {[]PassTime{{1, math.NaN()}}, 1},
		{[]PassTime{{math.Inf(1), 0}}, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d micro-batches through %v are taken", tc.micro, tc.stages)
				}
			}()
			New(tc.stages, tc.micro)
		}()
	}
}
