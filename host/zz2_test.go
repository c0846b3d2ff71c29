package host

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestZY(t *testing.T) {
	const m, n = 2000, 60000
	a := make([]float32, m*n)
	for i := range a {
		a[i] = float32(i%977) + 1
	}
	y := make([]float32, m)
	yt := make([]float32, n)
	names := []string{"rd", "sum", "sum1", "gemv", "gemvT"}
	fs := []func(){
		func() { Parallel(len(a), 1, func(lo, hi int) { zRd(a[lo:hi]) }) },
		func() { SumParallel(a) },
		func() {
			Parallel(len(a), 1, func(lo, hi int) { var p [1]float64; zSum(p[:], a[lo:hi]) })
		},
		func() { Gemv(false, m, n, 1, a, n, a[:n], 0, y) },
		func() { Gemv(true, m, n, 1, a, n, a[:m], 0, yt) },
	}
	ts := make([][]float64, len(fs))
	base := []float64{}
	for range 60 {
		base = append(base, zTwo(a))
		for i, f := range fs {
			b := time.Now()
			f()
			ts[i] = append(ts[i], float64(time.Since(b).Nanoseconds())/1e3/base[len(base)-1])
		}
	}
	slices.Sort(base)
	fmt.Printf("pthreads %.0f min %.0f\n", base[30], base[0])
	for i := range fs {
		slices.Sort(ts[i])
		fmt.Printf("%-6s ratio to pthreads: median %.3f  p25 %.3f p75 %.3f\n", names[i], ts[i][30], ts[i][15], ts[i][45])
	}
}
