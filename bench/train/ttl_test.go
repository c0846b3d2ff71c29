package train

import (
	"math"
	"testing"
)

// A loss counts as reached in a line between two validations, by the run that is there first.
func TestSecondsTo(t *testing.T) {
	runs := [][]reached{
		{{Seconds: 2, Loss: 6}, {Seconds: 4, Loss: 4}, {Seconds: 6, Loss: 3}},
		{{Seconds: 1, Loss: 5}, {Seconds: 2, Loss: 5.5}, {Seconds: 8, Loss: 2.5}},
	}
	for _, c := range []struct{ loss, want float64 }{
		{7, 1}, {6, 1}, {5, 1}, {4.5, 3.5}, {4, 4}, {3.5, 5}, {3, 6}, {2.8, 7.4}, {2, math.Inf(1)},
	} {
		if got := secondsTo(c.loss, runs); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("to %v: %v s, want %v", c.loss, got, c.want)
		}
	}
	if got := secondsTo(1, nil); !math.IsInf(got, 1) {
		t.Errorf("without runs: %v s", got)
	}
}
