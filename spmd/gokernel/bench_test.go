package gokernel_test

import (
	"context"
	"errors"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
)

// The benchmarks compare kernels in Go with a copy, and with kernels written by hand. On a GPU:
//
//	SPMDTEST_DEVICE=cuda go test -run '^$' -bench . ./spmd/gokernel
//
// Sizes are large for a GPU, so that memory sets the speed; on the host they are small.

// measure reports the median time of the commands that step enqueues, and the bandwidth for so many
// bytes.
func measure(b *testing.B, w *spmd.World, bytes int, step func(s *spmd.Stream) error) {
	b.Helper()
	s, err := w.NewStream("measure")
	spmdtest.Must(b, err)
	const each = 10 // steps of a repetition: a launch costs the host little beside them
	stats, err := telemetry.MeasureStream(w.Comm(), s, telemetry.Graph, 3, max(b.N, 20), func() error {
		var err error
		for range each {
			err = errors.Join(err, step(s))
		}
		return err
	})
	spmdtest.Must(b, err)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(stats.MedianUS/each, "us")
	b.ReportMetric(float64(bytes)*each/stats.MedianUS/1e3, "GB/s")
}

// bench runs fn on one rank of the device that the tests are for.
func bench(b *testing.B, fn func(w *spmd.World, large bool)) {
	b.Helper()
	c := spmdtest.Config()
	if err := spmd.Local(b.Context(), c, 1, func(_ context.Context, w *spmd.World) error {
		fn(w, !w.OnHost())
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

func filled[T spmd.Elem](b *testing.B, w *spmd.World, n int, v T) spmd.Buffer[T] {
	b.Helper()
	x, err := spmd.Alloc[T](w, n)
	if err == nil {
		err = x.SetAll(v)
	}
	spmdtest.Must(b, err)
	return x
}

// Element-wise kernels against the driver's copy of as many bytes. Goal: 0.95 of its bandwidth.
func BenchmarkElements(b *testing.B) {
	bench(b, func(w *spmd.World, large bool) {
		n := 1 << 16
		if large {
			n = 1 << 27
		}
		x, y := filled(b, w, n, float32(1)), filled(b, w, n, float32(2))
		x8, y8 := filled(b, w, n/2, 1.0), filled(b, w, n/2, 2.0)
		b.Run("copy", func(b *testing.B) {
			measure(b, w, 8*n, func(s *spmd.Stream) error { return spmd.Copy(s, y, x) })
		})
		b.Run("float32/apart", func(b *testing.B) { // y = a x + b
			measure(b, w, 8*n, func(s *spmd.Stream) error { return launchLine(s, n, y, x, 0.5, 1) })
		})
		b.Run("float64/apart", func(b *testing.B) {
			measure(b, w, 8*n, func(s *spmd.Stream) error { return launchLine(s, n/2, y8, x8, 0.5, 1) })
		})
		b.Run("float32/in_place", func(b *testing.B) { // y += a x
			measure(b, w, 12*n, func(s *spmd.Stream) error { return launchAxpy(s, n, y, 1e-9, x) })
		})
		b.Run("float64/in_place", func(b *testing.B) {
			measure(b, w, 12*n, func(s *spmd.Stream) error { return launchAxpy(s, n/2, y8, 1e-9, x8) })
		})
	})
}

// The stencil by hand: a thread for each cell, 32-bit indices, as heat in Go.
const heatByHand = `
extern "C" __global__ void __launch_bounds__(256)
heat_by_hand(float *__restrict__ next, const float *__restrict__ u, int ni, int nj, int nk, float rate) {
	int k = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 8 + threadIdx.y, i = blockIdx.z;
	if (k >= nk || j >= nj) return;
	int c = (i * nj + j) * nk + k;
	if (i == 0 || j == 0 || k == 0 || i == ni - 1 || j == nj - 1 || k == nk - 1) {
		next[c] = u[c];
		return;
	}
	next[c] = u[c] + rate * (u[c - nj * nk] + u[c + nj * nk] + u[c - nk] + u[c + nk] + u[c - 1] + u[c + 1] - 6 * u[c]);
}
`

var heatKernel32 = spmd.NewKernel("heat_by_hand", heatByHand, func(a spmd.Args) error {
	ni, nj, nk := a.I32(2), a.I32(3), a.I32(4)
	next, u := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	for i := range ni {
		for j := range nj {
			for k := range nk {
				heat(i, j, k, next, u, ni, nj, nk, a.F32(5))
			}
		}
	}
	return nil
})

// A stencil of seven points. Goal: 0.90 of the speed of the one by hand.
func BenchmarkStencil(b *testing.B) {
	bench(b, func(w *spmd.World, large bool) {
		n := 32
		if large {
			n = 512
		}
		u, next := filled(b, w, n*n*n, float32(1)), filled(b, w, n*n*n, float32(0))
		b.Run("go", func(b *testing.B) {
			measure(b, w, 8*n*n*n, func(s *spmd.Stream) error { return launchHeat(s, n, n, n, next, u, n, n, n, 0.1) })
		})
		b.Run("by_hand", func(b *testing.B) {
			g := spmd.Grid{Blocks: [3]int{(n + 31) / 32, (n + 7) / 8, n}, Threads: [3]int{32, 8, 1}}
			measure(b, w, 8*n*n*n, func(s *spmd.Stream) error {
				return heatKernel32.Launch(s, g, next.Arg(), u.Arg(), spmd.I32(n), spmd.I32(n),
					spmd.I32(n), spmd.F32(0.1))
			})
		})
	})
}
