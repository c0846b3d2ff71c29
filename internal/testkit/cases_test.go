package testkit

import (
	"slices"
	"testing"
)

// quiet is a test whose log nobody reads, so that the suite does not show the lines of this test.
type quiet struct{ testing.TB }

func (quiet) Logf(string, ...any) {}

// WithoutSymbols the variable the cases are the kept ones, with it all.
func TestSome(t *testing.T) {
	cases := []int{1, 2, 3, 4}
	even := func(n int) bool { return n%2 == 0 }
	for value, want := range map[string][]int{"": {2, 4}, "some": {2, 4}, "all": cases} {
		t.Setenv(variable, value)
		if got := Some(quiet{t}, "numbers", cases, even); !slices.Equal(got, want) {
			t.Errorf("LOCKSTEP_TESTS=%s: %v, want %v", value, got, want)
		}
		few, skipped := Few(quiet{t}, "tries", 1, 5), true
		t.Run("only", func(t *testing.T) {
			defer func() { skipped = t.Skipped() }()
			Only(quiet{t}, "a long one")
		})
		if all := value == "all"; (few == 5) != all || skipped == all {
			t.Errorf("LOCKSTEP_TESTS=%s: %d tries, skipped %v", value, few, skipped)
		}
	}
}
