package readable

import "testing"

func TestRanges(t *testing.T) {
	for _, tc := range []struct {
		numbers []int
		want    string
	}{{nil, ""}, {[]int{7}, "7"}, {[]int{5, 1, 0, 2}, "0-2, 5"}, {[]int{4, 3}, "3-4"}, {[]int{2, 2, 3}, "2, 2-3"}} {
		if got := Ranges(tc.numbers, ", "); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.numbers, got, tc.want)
		}
	}
}

// Ranks leaves its argument as it is.
func TestRanks(t *testing.T) {
	ranks := []int{5, 0, 1}
	if got := Ranks(ranks); got != "ranks 0-1, 5" || ranks[0] != 5 {
		t.Errorf("%q, and %v is left", got, ranks)
	}
	if got := Ranks(nil) + ", " + Ranks(ranks[:1]); got != "no rank, rank 5" {
		t.Errorf("%q", got)
	}
}

func TestSpan(t *testing.T) {
	for _, tc := range []struct {
		part   string
		lo, hi int
		ok     bool
	}{{"3", 3, 3, true}, {"8-11", 8, 11, true}, {"4-4", 4, 4, true}, {"3-1", 0, 0, false}, {"-1", 0, 0, false},
		{"1-", 0, 0, false}, {"", 0, 0, false}, {"x", 0, 0, false}, {"1-2-3", 0, 0, false},
		{"99999999999999999999", 0, 0, false}} {
		if lo, hi, ok := Span(tc.part); ok != tc.ok || ok && (lo != tc.lo || hi != tc.hi) {
			t.Errorf("%q: %d to %d, %v", tc.part, lo, hi, ok)
		}
	}
}
