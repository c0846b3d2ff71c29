package blas_test

import (
	"context"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
)

// part is how many of n rows and columns a rank has: the second rank of three has none.
func part(n, rank, size int) (lo, hi int) {
	if size == 3 {
		at := [...]int{0, n / 3, n / 3, n}
		return at[rank], at[rank+1]
	}
	s := spmd.ShardOf(n, rank, size)
	return s.Off, s.Off + s.Len
}

// randomCSR is a matrix with up to most elements in a row, some rows without any, in no order.
func randomCSR[T float32 | float64](n, columns, most int) blas.CSR[T] {
	r := rand.New(rand.NewPCG(uint64(n), uint64(most)))
	a := blas.CSR[T]{Start: []int{0}}
	for row := range n {
		for range r.IntN(most+1) * (row % 7) / 6 {
			a.Column = append(a.Column, r.IntN(columns))
			a.Value = append(a.Value, T(r.NormFloat64()))
		}
		a.Start = append(a.Start, len(a.Value))
	}
	return a
}

// rowsOf are the rows of a matrix from lo to hi-1.
func rowsOf[T float32 | float64](a blas.CSR[T], lo, hi int) blas.CSR[T] {
	first := a.Start[lo]
	b := blas.CSR[T]{Column: a.Column[first:a.Start[hi]], Value: a.Value[first:a.Start[hi]]}
	for _, s := range a.Start[lo : hi+1] {
		b.Start = append(b.Start, s-first)
	}
	return b
}

func products[T float32 | float64](t *testing.T, w *spmd.World, n, columns, most int, unit float64) {
	a := randomCSR[T](n, columns, most)
	lo, hi := part(n, w.Rank(), w.Size())
	from, to := part(columns, w.Rank(), w.Size())
	m, err := blas.NewSparse(w, w.Comm(), rowsOf(a, lo, hi), to-from)
	spmdtest.Must(t, err)
	s, err := w.NewStream("sparse")
	spmdtest.Must(t, err)
	x, y := spmdtest.Alloc[T](t, w, to-from), spmdtest.Alloc[T](t, w, hi-lo)
	element := func(round, c int) float64 { return float64(round*1000 + c%97 - 40) }
	step := func() error { return m.Multiply(s, y, x) }
	g, err := s.Capture(step)
	spmdtest.Must(t, err)
	for round, run := range []func() error{step, step, func() error { return g.Launch(s) },
		func() error { return g.Launch(s) }} {
		h := make([]T, to-from)
		for i := range h {
			h[i] = T(element(round, from+i))
		}
		spmdtest.Must(t, x.CopyFrom(h))
		spmdtest.Must(t, y.SetAll(T(math.NaN())))
		spmdtest.Must(t, run())
		got := make([]T, hi-lo)
		spmdtest.Must(t, s.Synchronize())
		spmdtest.Must(t, y.CopyTo(got))
		for i := range got {
			want, size := 0.0, 0.0
			for k := a.Start[lo+i]; k < a.Start[lo+i+1]; k++ {
				v := float64(a.Value[k]) * element(round, a.Column[k])
				want, size = want+v, size+math.Abs(v)
			}
			if math.Abs(float64(got[i])-want) > unit*size*float64(most) || got[i] != got[i] {
				t.Fatalf("rank %d of %d, round %d: row %d is %v, want %v", w.Rank(), w.Size(), round,
					lo+i, got[i], want)
			}
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
	}
	spmdtest.Must(t, m.Free())
}

// Products equal dense sums in float64, for rows of few and of many elements, of any shape, and in
// a graph. The CUDA has the host's bits.
func TestMultiply(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.RunInProcess(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		products[float64](t, w, 50, 50, 3, 1e-16)
		products[float32](t, w, 40, 90, 12, 1e-7)
		products[float64](t, w, 90, 40, 150, 1e-16)
		products[float32](t, w, 5, 3, 1, 1e-7)
	})
}

// grid5 is a rank's rows of the five-point stencil of a square.
func grid5(side, lo, hi int) blas.CSR[float64] {
	a := blas.CSR[float64]{Start: []int{0}}
	add := func(c int, v float64) { a.Column, a.Value = append(a.Column, c), append(a.Value, v) }
	for row := lo; row < hi; row++ {
		i, j := row/side, row%side
		if i > 0 {
			add(row-side, -1)
		}
		if j > 0 {
			add(row-1, -1)
		}
		add(row, 4)
		if j < side-1 {
			add(row+1, -1)
		}
		if i < side-1 {
			add(row+side, -1)
		}
		a.Start = append(a.Start, len(a.Value))
	}
	return a
}

// A rank gets each element once, and only from neighbours; a product allocates nothing.
func TestHalo(t *testing.T) {
	const side = 12
	spmdtest.RunInProcess(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		s := spmd.ShardOf(side*side, w.Rank(), w.Size())
		m, err := blas.NewSparse(w, w.Comm(), grid5(side, s.Off, s.Off+s.Len), s.Len)
		spmdtest.Must(t, err)
		want := side * (min(w.Rank(), 1) + min(w.Size()-1-w.Rank(), 1))
		if m.Halo() != want {
			t.Errorf("rank %d of %d gets %d elements, want %d", w.Rank(), w.Size(), m.Halo(), want)
		}
		if w.Size() > 1 {
			return
		}
		st, err := w.NewStream("sparse")
		spmdtest.Must(t, err)
		x, y := spmdtest.Alloc[float64](t, w, s.Len), spmdtest.Alloc[float64](t, w, s.Len)
		product := func() { spmdtest.Must(t, m.Multiply(st, y, x)) }
		for range 200 { // every slot of the stream's queue has held one
			product()
			spmdtest.Must(t, st.HostFunc(func() error { return nil }))
			spmdtest.Must(t, st.Synchronize())
		}
		hold := make(chan bool)
		spmdtest.Must(t, st.HostFunc(func() error { <-hold; return nil }))
		if n := testkit.Allocations(5, product); n > 0 {
			t.Errorf("a product allocates %v times", n)
		}
		close(hold)
		spmdtest.Must(t, st.Synchronize())
		if err := m.Multiply(st, y.Slice(0, 5), x); err == nil ||
			!strings.Contains(err.Error(), "y has 5 elements and x 144") {
			t.Errorf("a product of other lengths: %v", err)
		}
	})
}

// A bad matrix on one rank is an error on all.
func TestSparseRefused(t *testing.T) {
	wrong := map[string]func(a *blas.CSR[float64]){
		"element 1 is in column 9 of 9":                 func(a *blas.CSR[float64]) { a.Column[1] = 9 },
		"row 1 begins at element 3 and ends at 2":       func(a *blas.CSR[float64]) { a.Start[1] = 3; a.Start[2] = 2 },
		"the first of Start is not 0":                   func(a *blas.CSR[float64]) { a.Start[0] = 1 },
		"3 values and 4 columns, but Start ends with 4": func(a *blas.CSR[float64]) { a.Value = a.Value[:3] },
	}
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		for _, text := range []string{"element 1 is in column 9 of 9", "row 1 begins at element 3 and ends at 2",
			"the first of Start is not 0", "3 values and 4 columns, but Start ends with 4"} {
			a := blas.CSR[float64]{Start: []int{0, 1, 3, 4}, Column: []int{0, 1, 2, 3}, Value: []float64{1, 2, 3, 4}}
			want := "the rows of another rank are wrong"
			if w.Rank() == 1 {
				wrong[text](&a)
				want = text
			}
			if _, err := blas.NewSparse(w, w.Comm(), a, 3); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %q", w.Rank(), err, want)
			}
		}
	})
}

// BenchmarkMultiply times products with five elements a row, as bench/peers/cupy_sparse.py does; on
// the host they are small. On a GPU:
//
//	SPMDTEST_DEVICE=cuda go test -run '^$' -bench . ./spmd/blas
func BenchmarkMultiply(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		for _, n := range []int{1e4, 1e6, 1e8} {
			if w.OnHost() && n > 1e4 {
				break
			}
			b.Run(strconv.Itoa(n), func(b *testing.B) {
				side := int(math.Sqrt(float64(n) / 5))
				m, err := blas.NewSparse(w, w.Comm(), grid5(side, 0, side*side), side*side)
				spmdtest.Must(b, err)
				defer func() { spmdtest.Must(b, m.Free()) }()
				x, err := spmd.Alloc[float64](w, side*side)
				spmdtest.Must(b, err)
				y, err := spmd.Alloc[float64](w, side*side)
				spmdtest.Must(b, err)
				spmdtest.Must(b, x.SetAll(1))
				s, err := w.NewStream("sparse")
				spmdtest.Must(b, err)
				stats, err := telemetry.MeasureStream(w.Comm(), s, telemetry.Graph, 3, 30, func() error {
					for range 10 {
						if err := m.Multiply(s, y, x); err != nil {
							return err
						}
					}
					return nil
				})
				spmdtest.Must(b, err)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(stats.MedianUS/10, "us")
			})
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
