package vector_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/random"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
	"lockstep/spmd/vector"
)

// BenchmarkLibrary times the functions that bench/peers/cupy_vector.py times of CuPy. On a GPU:
//
//	SPMDTEST_DEVICE=cuda go test -run '^$' -bench Library -benchtime 1x ./spmd/vector > ours.txt
//	python3 bench/peers/cupy_vector.py ours.txt
//
// Goal: at most 1.05 of CuPy's times. On the host sizes are small.
func BenchmarkLibrary(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		sizes := []int{10_000, 1_000_000, 100_000_000}
		if w.OnHost() {
			sizes = sizes[:1]
		}
		for _, n := range sizes {
			reductions(b, w, n)
			scans(b, w, n)
			sorts(b, w, n)
			fills(b, w, n)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// measure reports the median time of the commands that step enqueues, in a graph.
func measure(b *testing.B, w *spmd.World, what string, n int, step func(s *spmd.Stream) error) {
	b.Helper()
	b.Run(fmt.Sprintf("%s/%d", what, n), func(b *testing.B) {
		s, err := w.NewStream("measure")
		spmdtest.Must(b, err)
		const each = 10 // steps of a repetition: a launch costs the host little beside them
		stats, err := telemetry.MeasureStream(w.Comm(), s, telemetry.Graph, 3, 20, func() error {
			var err error
			for range each {
				err = errors.Join(err, step(s))
			}
			return err
		})
		if err = errors.Join(err, s.Close()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(stats.MedianUS/each, "us")
	})
}

// room is memory for n numbers.
func room[T spmd.Elem](b *testing.B, w *spmd.World, n int) spmd.Buffer[T] {
	b.Helper()
	x, err := spmd.Alloc[T](w, n)
	spmdtest.Must(b, err)
	return x
}

// drawn has normal numbers.
func drawn[T float32 | float64](b *testing.B, w *spmd.World, n int) spmd.Buffer[T] {
	b.Helper()
	x := room[T](b, w, n)
	s, err := w.NewStream("draw")
	if err == nil {
		err = errors.Join(random.Normal(s, x, 1, 0), s.Synchronize(), s.Close())
	}
	spmdtest.Must(b, err)
	return x
}

func free[T spmd.Elem](b *testing.B, x spmd.Buffer[T]) {
	b.Helper()
	if err := x.Free(); err != nil {
		b.Error(err)
	}
}

func reductions(b *testing.B, w *spmd.World, n int) {
	x, y, out, at := drawn[float32](b, w, n), drawn[float32](b, w, n), room[float32](b, w, 1), room[int64](b, w, 1)
	defer free(b, x)
	defer free(b, y)
	measure(b, w, "sum", n, func(s *spmd.Stream) error { return vector.Sum(s, out, x) })
	measure(b, w, "dot", n, func(s *spmd.Stream) error { return vector.Dot(s, out, x, y) })
	measure(b, w, "max", n, func(s *spmd.Stream) error { return vector.Max(s, out, x) })
	measure(b, w, "argmin", n, func(s *spmd.Stream) error { return vector.ArgMin(s, out, at, x) })
	counts := room[int64](b, w, 256)
	measure(b, w, "histogram", n, func(s *spmd.Stream) error { return vector.Histogram(s, counts, x, -4, 4) })
	keep := room[uint8](b, w, n)
	defer free(b, keep)
	half := make([]uint8, n)
	for i := range half {
		half[i] = uint8(spmd.UniformBits(2, uint64(i)) & 1)
	}
	spmdtest.Must(b, keep.CopyFrom(half))
	measure(b, w, "select", n, func(s *spmd.Stream) error { return vector.Select(s, y, at, x, keep) })
}

func scans(b *testing.B, w *spmd.World, n int) {
	x, y, x8, y8 := drawn[float32](b, w, n), room[float32](b, w, n), drawn[float64](b, w, n), room[float64](b, w, n)
	defer free(b, x)
	defer free(b, y)
	defer free(b, x8)
	defer free(b, y8)
	measure(b, w, "scan_float32", n, func(s *spmd.Stream) error { return vector.Scan(s, y, x) })
	measure(b, w, "scan_float64", n, func(s *spmd.Stream) error { return vector.Scan(s, y8, x8) })
	measure(b, w, "scan_int32", n, func(s *spmd.Stream) error {
		return vector.Scan(s, spmd.View[int32](y), spmd.View[int32](x))
	})
}

func sorts(b *testing.B, w *spmd.World, n int) {
	x, y, x8, y8 := drawn[float32](b, w, n), room[float32](b, w, n), drawn[float64](b, w, n), room[float64](b, w, n)
	defer free(b, x)
	defer free(b, y)
	defer free(b, x8)
	defer free(b, y8)
	measure(b, w, "sort_float32", n, func(s *spmd.Stream) error { return vector.Sort(s, y, x) })
	measure(b, w, "sort_uint32", n, func(s *spmd.Stream) error {
		return vector.Sort(s, spmd.View[uint32](y), spmd.View[uint32](x))
	})
	measure(b, w, "sort_float64", n, func(s *spmd.Stream) error { return vector.Sort(s, y8, x8) })
	measure(b, w, "sort_int64", n, func(s *spmd.Stream) error {
		return vector.Sort(s, spmd.View[int64](y8), spmd.View[int64](x8))
	})
	measure(b, w, "argsort_float32", n, func(s *spmd.Stream) error {
		return vector.SortPairs(s, y, spmd.View[int64](y8), x, spmd.View[int64](x8))
	})
}

func fills(b *testing.B, w *spmd.World, n int) {
	x, x8 := room[float32](b, w, n), room[float64](b, w, n)
	defer free(b, x)
	defer free(b, x8)
	measure(b, w, "uniform_float32", n, func(s *spmd.Stream) error { return random.Uniform(s, x, 1, 0) })
	measure(b, w, "uniform_float64", n, func(s *spmd.Stream) error { return random.Uniform(s, x8, 1, 0) })
	measure(b, w, "normal_float32", n, func(s *spmd.Stream) error { return random.Normal(s, x, 1, 0) })
	measure(b, w, "normal_float64", n, func(s *spmd.Stream) error { return random.Normal(s, x8, 1, 0) })
}
