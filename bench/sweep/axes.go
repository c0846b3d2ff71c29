package sweep

import (
	"fmt"
	"math"

	"gonum.org/v1/plot"

	"lockstep/bench/measure"
)

// sizeTicks marks powers of two, with about eight of them named.
func sizeTicks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	first, last := int(math.Ceil(math.Log2(lo))), int(math.Floor(math.Log2(hi)))
	every := (last-first)/8 + 1
	for e := first; e <= last; e++ {
		t := plot.Tick{Value: math.Exp2(float64(e))}
		if (e-first)%every == 0 && e >= 0 {
			t.Label = measure.SizeText(1 << e)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// onRanks returns a number of ranks in words.
func onRanks(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}
