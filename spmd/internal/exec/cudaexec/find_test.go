package cudaexec

import (
	"strings"
	"testing"
)

// TestFirstFree: which GPU the last of the ranks of a node takes; a word is what a
// rank sees.
func TestFirstFree(t *testing.T) {
	for _, tc := range []struct {
		seen string
		want int
	}{
		{"abcd", 0},
		{"abcd abcd", 1},
		{"abcd abcd abcd abcd", 3},
		{"a b", 0}, // each its own
		{"b a ab", -1},
		{"ab a", -1}, // the first could have had b, but that is not looked for
		{"ab bc", 0},
		{"ab ab bc", 1}, // b is taken
		{"ab bc ca", 0},
		{"ba ab", 0}, // in another order
		{"a a", -1},
		{"a a b", 0}, // the second has none and takes none
		{"a a a", -1},
		{"- a", 0}, // the first sees none
		{"-", -1},
		{"a -", -1},
	} {
		var seen [][]string
		for _, word := range strings.Fields(tc.seen) {
			seen = append(seen, strings.Split(strings.Trim(word, "-"), ""))
		}
		if got := firstFree(seen); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.seen, got, tc.want)
		}
	}
}
