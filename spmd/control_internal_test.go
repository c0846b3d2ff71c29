package spmd

import "testing"

// What goes through the hands of several ranks names the one that began.
func TestByRank(t *testing.T) {
	for _, tc := range []struct{ said, want string }{
		{"no space left", "rank 3: no space left"},
		{"rank 12: no space left", "rank 12: no space left"},
		{"rank x: no space left", "rank 3: rank x: no space left"},
		{"a file of rank 1: gone", "rank 3: a file of rank 1: gone"},
	} {
		if got := byRank(3, tc.said); got != tc.want {
			t.Errorf("%q becomes %q, want %q", tc.said, got, tc.want)
		}
	}
}
