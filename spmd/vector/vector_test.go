package vector

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

func of[T spmd.Elem](t *testing.T, w *spmd.World, v []T) spmd.Buffer[T] {
	t.Helper()
	b := spmdtest.Alloc[T](t, w, len(v))
	spmdtest.Must(t, b.CopyFrom(v))
	return b
}

// values are numbers whose sums and products are small enough for every type.
func values[T Number](n int, seed uint64) []T {
	r := rand.New(rand.NewPCG(seed, 7))
	v := make([]T, n)
	for i := range v {
		x := r.Float64() * 100
		v[i] = T(x)
		if T(0)-1 < 0 && i%3 == 0 { // signed
			v[i] = -v[i]
		}
	}
	return v
}

// exactly is the sum of x[i] y[i], rounded once.
func exactly[T Number](x, y []T) float64 {
	sum := new(big.Float).SetPrec(2000)
	for i := range x {
		a, b := new(big.Float).SetPrec(2000).SetFloat64(float64(x[i])),
			new(big.Float).SetPrec(2000).SetFloat64(float64(y[i]))
		sum.Add(sum, a.Mul(a, b))
	}
	f, _ := sum.Float64()
	return f
}

// check compares all functions with exact sums, over ranks too. Integers are exact.
func check[T Number](t *testing.T, w *spmd.World, eps float64) {
	t.Helper()
	name := fmt.Sprintf("%T on %s", T(0), w.Device())
	s := spmdtest.Stream(t, w, "vector")
	out := spmdtest.Alloc[T](t, w, 8)
	at := func(i int) spmd.Buffer[T] { return out.Slice(i, i+1) }
	for _, n := range []int{0, 1, 2047, 2048, 2049, 70_001} {
		all, allY := values[T](n*w.Size(), 1), values[T](n*w.Size(), 2)
		from := n * w.Rank()
		x, y := all[from:from+n], allY[from:from+n]
		bx, by := of(t, w, x), of(t, w, y)
		ones := make([]T, len(all))
		for i := range ones {
			ones[i] = 1
		}
		c := w.Comm().On(s)
		spmdtest.Must(t, Sum(s, at(0), bx))
		spmdtest.Must(t, Dot(s, at(1), bx, by))
		spmdtest.Must(t, Min(s, at(2), bx))
		spmdtest.Must(t, Max(s, at(3), bx))
		spmdtest.Must(t, SumOver(c, s, at(4), bx))
		spmdtest.Must(t, DotOver(c, s, at(5), bx, by))
		spmdtest.Must(t, MinOver(c, s, at(6), bx))
		spmdtest.Must(t, MaxOver(c, s, at(7), bx))
		spmdtest.Must(t, s.Synchronize())
		got := make([]T, 8)
		spmdtest.Must(t, out.CopyTo(got))
		near := func(i int, want, size float64) {
			t.Helper()
			if math.Abs(float64(got[i])-want) > eps*size {
				t.Errorf("%s, %d elements: result %d is %v, want %v", name, n, i, got[i], want)
			}
		}
		size := 1e4 * float64(n*w.Size()) // of the summands
		near(0, exactly(x, ones[:n]), size)
		near(1, exactly(x, y), size)
		near(4, exactly(all, ones), size)
		near(5, exactly(all, allY), size)
		if n == 0 {
			continue
		}
		least, most, leastAll, mostAll := x[0], x[0], all[0], all[0]
		for _, v := range x {
			least, most = min(least, v), max(most, v)
		}
		for _, v := range all {
			leastAll, mostAll = min(leastAll, v), max(mostAll, v)
		}
		if got[2] != least || got[3] != most || got[6] != leastAll || got[7] != mostAll {
			t.Errorf("%s, %d elements: %v, want %v %v %v %v", name, n, got, least, most, leastAll, mostAll)
		}
		spmdtest.Must(t, Axpy(s, by, 3, bx))
		spmdtest.Must(t, Scale(s, bx, 2))
		spmdtest.Must(t, s.Synchronize())
		gx, gy := make([]T, n), make([]T, n)
		spmdtest.Must(t, bx.CopyTo(gx))
		spmdtest.Must(t, by.CopyTo(gy))
		for i := range gx {
			if gx[i] != 2*x[i] || gy[i] != y[i]+3*x[i] {
				t.Fatalf("%s, element %d of %d: %v and %v of %v and %v", name, i, n, gx[i], gy[i], x[i], y[i])
			}
		}
	}
}

func all(t *testing.T, w *spmd.World) {
	check[int32](t, w, 0)
	check[uint32](t, w, 0)
	check[int64](t, w, 0)
	check[uint64](t, w, 0)
	check[float32](t, w, 1e-6)
	check[float64](t, w, 1e-15)
	norms[float32](t, w, 1e-6)
	norms[float64](t, w, 1e-15)
}

func norms[T float32 | float64](t *testing.T, w *spmd.World, eps float64) {
	t.Helper()
	s := spmdtest.Stream(t, w, "norms")
	x := values[T](3001*w.Size(), 5)
	mine := x[3001*w.Rank() : 3001*w.Rank()+3001]
	out := spmdtest.Alloc[T](t, w, 2)
	b := of(t, w, mine)
	spmdtest.Must(t, Norm2(s, out.Slice(0, 1), b))
	spmdtest.Must(t, Norm2Over(w.Comm().On(s), s, out.Slice(1, 2), b))
	spmdtest.Must(t, s.Synchronize())
	for i, want := range []float64{math.Sqrt(exactly(mine, mine)), math.Sqrt(exactly(x, x))} {
		if got := float64(out.At(i)); math.Abs(got-want) > eps*want {
			t.Errorf("norm %d of %T on %s is %v, want %v", i, T(0), w.Device(), got, want)
		}
	}
	for _, unit := range []float64{1e-23, 5e-23, 1e-44, 1e30} { // whose squares float32 has not
		unit = float64(T(unit))
		spmdtest.Must(t, Norm2Over(w.Comm().On(s), s, out.Slice(0, 1), of(t, w, []T{T(3 * unit), T(4 * unit)})))
		spmdtest.Must(t, s.Synchronize())
		want := 5 * unit * math.Sqrt(float64(w.Size()))
		if got := float64(out.At(0)); math.Abs(got-want) > eps*want+1e-45 {
			t.Errorf("norm of %T on %s is %v, want %v", T(0), w.Device(), got, want)
		}
	}
	nan := of(t, w, []T{1, T(math.NaN()), 3})
	spmdtest.Must(t, Min(s, out.Slice(0, 1), nan))
	spmdtest.Must(t, Max(s, out.Slice(1, 2), nan))
	spmdtest.Must(t, s.Synchronize())
	if a, b := out.At(0), out.At(1); a == a || b == b {
		t.Errorf("the smallest and largest of a NaN and numbers are %v and %v", a, b)
	}
}

func TestVector(t *testing.T) { spmdtest.RunInProcess(t, []int{1, 3}, all) }

// The CUDA gives the host's bits.
func TestEmulated(t *testing.T) {
	x := values[float32](30_001, 9)
	var sums [2]float32
	for i, device := range both() {
		c := spmdtest.Config()
		c.Device = device
		err := spmd.Local(t.Context(), c, 1, func(_ context.Context, w *spmd.World) error {
			all(t, w)
			s := spmdtest.Stream(t, w, "sum")
			out := spmdtest.Alloc[float32](t, w, 1)
			b := of(t, w, x)
			spmdtest.Must(t, Dot(s, out, b, b))
			err := s.Synchronize()
			sums[i] = out.At(0)
			return err
		})
		spmdtest.Must(t, err)
	}
	if sums[0] != sums[1] {
		t.Errorf("dot is %x and %x on %v", sums[0], sums[1], both())
	}
}

// Calls work in a graph, and allocate nothing after the first.
func TestGraph(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "graph")
		x, y, keep := spmdtest.Alloc[float32](t, w, 4), spmdtest.Alloc[float32](t, w, 4), of(t, w, []uint8{1, 0, 1, 1})
		scans, one, at, counts := spmdtest.Alloc[float32](t, w, 4), spmdtest.Alloc[float32](t, w, 4),
			spmdtest.Alloc[int64](t, w, 2), spmdtest.Alloc[int64](t, w, 2)
		c := w.Comm().On(s)
		calls := func() error {
			return errors.Join(Scan(s, scans, x), ArgMax(s, one.Slice(0, 1), at.Slice(0, 1), x),
				Dot(s, one.Slice(1, 2), x, x),
				SumOver(c, s, one.Slice(2, 3), x), Norm2(s, one.Slice(3, 4), x),
				Select(s, y, at.Slice(1, 2), x, keep), Histogram(s, counts, x, 0, 8), Scale(s, x, 2))
		}
		g, err := s.Capture(calls)
		spmdtest.Must(t, err)
		spmdtest.Must(t, x.CopyFrom([]float32{1, 1, 5, 3}))
		spmdtest.Must(t, g.Launch(s))
		spmdtest.Must(t, s.Synchronize())
		sum := float32(10 * w.Size())
		for what, same := range map[string]bool{
			"scan":         slices.Equal(back(t, scans), []float32{1, 2, 7, 10}),
			"of the whole": slices.Equal(back(t, one), []float32{5, 36, sum, 6}),
			"selected":     slices.Equal(back(t, y)[:3], []float32{1, 5, 3}),
			"at":           slices.Equal(back(t, at), []int64{2, 3}),
			"histogram":    slices.Equal(back(t, counts), []int64{3, 1}),
			"scaled":       slices.Equal(back(t, x), []float32{2, 2, 10, 6}),
		} {
			if !same {
				t.Errorf("%s differs: %v %v %v %v %v %v", what, back(t, scans), back(t, one), back(t, y),
					back(t, at), back(t, counts), back(t, x))
			}
		}
		if w.Size() > 1 {
			return
		}
		n := testkit.Allocations(50, func() { // the work on the host too
			for _, err := range []error{Scan(s, scans, x), ArgMax(s, one.Slice(0, 1), at.Slice(0, 1), x),
				Select(s, y, at.Slice(1, 2), x, keep), Histogram(s, counts, x, 0, 8), s.Synchronize()} {
				spmdtest.Must(t, err)
			}
		})
		if n > 0 {
			t.Errorf("calls allocate %v times", n)
		}
		for range 2 { // in the second turn the queue is as long as it gets
			hold := make(chan bool)
			spmdtest.Must(t, s.HostFunc(func() error { <-hold; return nil }))
			n = testkit.Allocations(5, func() { // the calls alone
				for _, err := range []error{Dot(s, one.Slice(1, 2), x, x), SumOver(c, s, one.Slice(2, 3), x),
					Norm2(s, one.Slice(3, 4), x), Scale(s, x, 2)} {
					spmdtest.Must(t, err)
				}
			})
			close(hold)
			spmdtest.Must(t, s.Synchronize())
		}
		if n > 0 {
			t.Errorf("calls of kernels in Go allocate %v times", n)
		}
	})
}

func TestLengths(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		three, four := spmdtest.Alloc[int64](t, w, 3), spmdtest.Alloc[int64](t, w, 4)
		for _, err := range []error{Dot(s, three.Slice(0, 1), three, four), Axpy(s, three, 2, four)} {
			testkit.Refused(t, err, "vectors of 3 and 4 elements", "vector_test.go:")
		}
		if err := Sum(s, three, four); err == nil ||
			!strings.Contains(err.Error(), "a buffer of 3 int64 where it has a pointer to one element") {
			t.Errorf("%v", err)
		}
	})
}
