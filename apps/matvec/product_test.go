package main

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// every calls f with each way to run a product.
func every(f func(c config)) {
	for _, split := range splits {
		for _, layout := range layouts {
			for _, dtype := range dtypes {
				for _, kernel := range kernelFrom {
					f(config{Split: split, Layout: layout, Dtype: dtype, Kernel: kernel, Iters: 2, Warmup: 1})
				}
			}
		}
	}
}

func TestProduct(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		for _, shape := range [][2]int{{1, 4}, {4, 4}, {129, 1000}, {1100, 129}} {
			graph := false
			every(func(c config) {
				c.Rows, c.Cols, c.Graph = shape[0], shape[1], graph
				if c.checkSplit(w.Size()) != nil {
					return
				}
				if graph = !graph; c.Kernel != "auto" {
					c.Overlap = 3
				}
				r, err := runAs(w, c)
				if err != nil {
					t.Fatalf("%+v: %v", c, err)
				}
				if !r.OK || r.MaxRelErr == 0 && shape[1] > 100 {
					t.Errorf("%+v on %d ranks: relative error %g", c, w.Size(), r.MaxRelErr)
				}
				if r.Layout != c.Layout || r.Dtype != c.Dtype ||
					c.Kernel != "auto" && (r.Kernel != c.Kernel || r.Overlap != 3) || r.Overlap < 1 {
					t.Errorf("%+v: %+v", c, r)
				}
			})
		}
	})
}

// value returns element (i, j) of a test's W, or j of its x if i is -1. They are eighths, so that
// no sum of less than 2^24/49 products is rounded.
func value(i, j int) float32 {
	return (float32(spmd.UniformBits(1, uint64(i)<<32+uint64(j))%15) - 7) / 8
}

func as[T number](v float32) (x T) {
	switch x := any(&x).(type) {
	case *float32:
		*x = v
	case *spmd.BF16:
		*x = spmd.ToBF16(v)
	}
	return x
}

// Products of all sorts of shapes are compared with float64. The gaps between the rows or columns
// of W are NaN, and so is y before.
func TestRagged(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for _, shape := range [][2]int{
			{1, 1}, {1, 9}, {9, 1}, {3, 8}, {8, 3}, {4, 4}, {7, 5000}, {513, 33}, {1026, 65}, {33, 8195}, {3, 70001},
			{1500, 2050},
		} {
			for _, byColumns := range []bool{false, true} {
				testRagged[float32](t, w, shape[0], shape[1], byColumns)
				testRagged[spmd.BF16](t, w, shape[0], shape[1], byColumns)
			}
		}
	})
}

// ragged sets a product's operands, and returns the result. The gaps between the rows or columns
// of W are NaN.
func ragged[T number](t *testing.T, p *product[T], rows, cols int, byColumns bool) (want []float64) {
	t.Helper()
	stored := make([]T, p.m.buf.Len())
	for i := range stored {
		stored[i] = as[T](float32(math.NaN()))
	}
	x := make([]T, cols)
	want = make([]float64, rows)
	for j := range cols {
		x[j] = as[T](value(-1, j))
		for i := range rows {
			v := value(i, j)
			if byColumns {
				stored[j*p.m.stride+i] = as[T](v)
			} else {
				stored[i*p.m.stride+j] = as[T](v)
			}
			want[i] += float64(v) * float64(value(-1, j))
		}
	}
	spmdtest.Must(t, p.m.buf.CopyFrom(stored))
	spmdtest.Must(t, p.x.CopyFrom(x))
	return want
}

func testRagged[T number](t *testing.T, w *spmd.World, rows, cols int, byColumns bool) {
	t.Helper()
	p, err := newProduct[T](w, whole(rows, cols), byColumns)
	spmdtest.Must(t, err)
	defer drop(t, p)
	want := ragged(t, p, rows, cols, byColumns)
	for _, m := range []method{{"own", 1}, {"own", 1}, {"own", 3}, {"cublas", 1}, {"cublas", 3}} {
		what := fmt.Sprintf("%d x %d of %T, by columns %v, %v", rows, cols, *new(T), byColumns, m)
		got := make([]float32, rows)
		spmdtest.Must(t, p.y.SetAll(float32(math.NaN())))
		if err := p.enqueue(m); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := p.s.Synchronize(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		spmdtest.Must(t, p.y.CopyTo(got))
		for i, v := range got {
			if float64(v) != want[i] {
				t.Errorf("%s: element %d is %v, want %v", what, i, v, want[i])
				break
			}
		}
	}
}

// Every run of our own kernels gives the same bits, also in parts of the rows, where
// sums are rounded.
func TestSameBits(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for _, byColumns := range []bool{false, true} {
			testSameBits[float32](t, w, byColumns)
			testSameBits[spmd.BF16](t, w, byColumns)
		}
	})
}

func testSameBits[T number](t *testing.T, w *spmd.World, byColumns bool) {
	t.Helper()
	const rows, cols = 1100, 3000
	p, err := newProduct[T](w, whole(rows, cols), byColumns)
	spmdtest.Must(t, err)
	defer drop(t, p)
	spmdtest.Must(t, p.m.fill(p.s, 1, 0, cols))
	spmdtest.Must(t, fill(p.s, p.x, filling{lines: 1, length: cols, stride: cols, seed: 2, elementStep: 1}))
	var first []float32
	for _, parts := range []int{1, 1, 2, 3} {
		spmdtest.Must(t, p.enqueue(method{"own", parts}))
		spmdtest.Must(t, p.s.Synchronize())
		y := make([]float32, rows)
		spmdtest.Must(t, p.y.CopyTo(y))
		if first == nil {
			first = y
		}
		if !slices.Equal(y, first) {
			t.Errorf("%T, by columns %v: rows in %d gave other bits than the first time", p.x, byColumns, parts)
		}
	}
}

// whole returns all of W on one rank.
func whole(rows, cols int) split {
	return split{rows: spmd.Shard{Len: rows}, cols: spmd.Shard{Len: cols}, most: rows, x: spmd.Shard{Len: cols},
		shares: []int{cols}, wide: 1}
}

// drop frees a test's product.
func drop[T number](t testing.TB, p *product[T]) {
	for _, err := range []error{
		p.s.Close(), p.sum.Close(), p.m.buf.Free(), p.x.Free(), p.y.Free(), p.own.part.Free(), p.own.arrived.Free(),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// The numbers of W depend only on their place.
func TestLayoutsHoldTheSame(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		testLayouts[float32](t, w, func(k uint32) float32 { return float32(k) / (1 << 24) })
		testLayouts[spmd.BF16](t, w, func(k uint32) spmd.BF16 { return spmd.ToBF16(float32(k) / (1 << 24)) })
	})
}

func testLayouts[T number](t *testing.T, w *spmd.World, number func(uint32) T) {
	const rows, cols, offset, total = 301, 97, 5, 110
	for _, byColumns := range []bool{false, true} {
		p, err := newProduct[T](w, whole(rows, cols), byColumns)
		spmdtest.Must(t, err)
		spmdtest.Must(t, p.m.fill(p.s, 3, offset, total))
		spmdtest.Must(t, p.s.Synchronize())
		got := make([]T, p.m.buf.Len())
		spmdtest.Must(t, p.m.buf.CopyTo(got))
		for i := range rows {
			for j := range cols {
				at := i*p.m.stride + j
				if byColumns {
					at = j*p.m.stride + i
				}
				if want := number(spmd.UniformBits(3, uint64(i*total+offset+j))); got[at] != want {
					t.Fatalf("%T, by columns %v: element (%d, %d) is %v, want %v", got, byColumns, i, j, got[at], want)
				}
			}
		}
		drop(t, p)
	}
}
