package host

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"
)

func med(f func()) string {
	for range 3 {
		f()
	}
	var t []float64
	for range 20 {
		b := time.Now()
		f()
		t = append(t, float64(time.Since(b).Nanoseconds())/1e3)
	}
	slices.Sort(t)
	return fmt.Sprintf("%.0f (min %.0f, p25 %.0f)", (t[9]+t[10])/2, t[0], t[5])
}

func TestZZ(t *testing.T) {
	const m, n = 2000, 60000
	a := make([]float32, m*n)
	for i := range a {
		a[i] = float32(i%977) + 1
	}
	y := make([]float32, m)
	yt := make([]float32, n)
	for range 4 {
		out, _ := exec.Command("/tmp/readloop", "480000000", "2", "20").Output()
		fmt.Print(string(out))
		fmt.Println("gemv  ", med(func() { Gemv(false, m, n, 1, a, n, a[:n], 0, y) }))
		fmt.Println("gemvT ", med(func() { Gemv(true, m, n, 1, a, n, a[:m], 0, yt) }))
		fmt.Println("sum480", med(func() { SumParallel(a) }))
		out, _ = exec.Command("/tmp/readloop", "120000000", "2", "40").Output()
		fmt.Print(string(out))
		fmt.Println("sum120", med(func() { SumParallel(a[:30000000]) }))
	}
}
func TestZG(t *testing.T) {
	for range 3 {
		for _, s := range [][3]int{{512, 512, 512}, {256, 3072, 768}, {256, 768, 3072}, {256, 50304, 768}, {64, 64, 64}} {
			m, n, k := s[0], s[1], s[2]
			x, y, c := make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
			for _, th := range []int{1, 2} {
				SetThreads(th)
				fmt.Println(s, th, med(func() { Gemm(false, false, m, n, k, 1, x, k, y, n, 0, c, n) }))
			}
		}
	}
}
