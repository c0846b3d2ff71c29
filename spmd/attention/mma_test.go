package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/host"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMMACompiles(t *testing.T) { spmdtest.CompileKernels(t) }

// Lengths around the tiles, one head and several, both widths of tiles and heads that do not fill
// them, and scores far beyond the range of float32's exp.
func TestMMA(t *testing.T) {
	lengths := testkit.Some(t, "lengths of attention on tensor cores",
		[]int{1, 2, 63, 64, 65, 100, 127, 128, 129, 191, 193, 257, 449, 1000, 1024},
		func(n int) bool { return n == 1 || n == 65 || n == 193 })
	windows := testkit.Some(t, "windows of attention on tensor cores", []int{128, 256, 512},
		func(n int) bool { return n == 128 })
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for _, hs := range []int{64, 128} {
			for _, n := range lengths {
				if n < 1000 {
					testMMA(t, w, mmaShape{2, n, 3, hs, 0}, 1)
				} else {
					testMMA(t, w, mmaShape{1, n, 1, hs, 0}, 1)
				}
			}
			for _, window := range windows {
				testMMA(t, w, mmaShape{1, 450, 2, hs, window}, 1)
			}
			testMMA(t, w, mmaShape{1, 200, 2, hs, 0}, 6)
		}
		for _, hs := range []int{8, 16, 40, 80, 96} {
			testMMA(t, w, mmaShape{1, 150, 2, hs, 0}, 1)
		}
	})
}

// mmaPass is a way to compute both passes. Without sums it leaves no dbias.
type mmaPass struct {
	name    string
	forward func(s *spmd.Stream, out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32],
		qkv spmd.Buffer[spmd.BF16], x mmaShape) error
	backward func(s *spmd.Stream, dqkv spmd.Buffer[spmd.BF16], dbias spmd.Buffer[float32], dout,
		out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32], qkv spmd.Buffer[spmd.BF16],
		scratch spmd.Buffer[float32], x mmaShape) error
	sums bool
}

// mmaPasses is every way that w has for heads of hs elements.
func mmaPasses(w *spmd.World, hs int) []mmaPass {
	all := []mmaPass{
		{"mma",
			mmaForward,
			func(s *spmd.Stream, dqkv spmd.Buffer[spmd.BF16], _ spmd.Buffer[float32], dout, out spmd.Buffer[spmd.BF16],
				lse spmd.Buffer[float32], qkv spmd.Buffer[spmd.BF16], scratch spmd.Buffer[float32], x mmaShape) error {
				return mmaBackward(s, dqkv, dout, out, lse, qkv, scratch, x)
			}, false}}
	if hs <= wgmmaMaxHead && (w.OnHost() || lacksWGMMA(w) == "") {
		all = append(all, mmaPass{"wgmma",
			func(s *spmd.Stream, out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32],
				qkv spmd.Buffer[spmd.BF16], x mmaShape) error {
				return newWGMMA(x).forward(s, out, lse, qkv)
			},
			func(s *spmd.Stream, dqkv spmd.Buffer[spmd.BF16], dbias spmd.Buffer[float32], dout,
				out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32], qkv spmd.Buffer[spmd.BF16],
				scratch spmd.Buffer[float32], x mmaShape) error {
				return newWGMMA(x).backward(s, dqkv, dbias, dout, out, lse, qkv, scratch)
			}, true})
	}
	return all
}

func testMMA(t *testing.T, w *spmd.World, x mmaShape, scale float64) {
	t.Helper()
	for _, p := range mmaPasses(w, x.hs) {
		testMMAPass(t, w, x, scale, p)
	}
}

func testMMAPass(t *testing.T, w *spmd.World, x mmaShape, scale float64, pass mmaPass) {
	t.Helper()
	name := pass.name
	const more = 24 // elements of each buffer behind those in use
	n, rows := x.elements(), x.b*x.nh*x.t
	rng := rand.New(rand.NewPCG(uint64(x.t), uint64(x.hs)))
	normal := func(n int, scale float64) []spmd.BF16 {
		r := make([]spmd.BF16, n)
		for i := range r {
			r[i] = spmd.ToBF16(float32(scale * rng.NormFloat64()))
		}
		return r
	}
	qkv, dout := normal(3*n, scale), normal(n, 1)

	s, err := w.NewStream("attention")
	must(t, err)
	defer s.Close()
	dqkvB, outB, lseB := poisoned[spmd.BF16](t, w, 3*n+more), poisoned[spmd.BF16](t, w, n+more),
		poisoned[float32](t, w, rows+more)
	qkvB, doutB := poisoned[spmd.BF16](t, w, 3*n+more), poisoned[spmd.BF16](t, w, n+more)
	scratch, dbiasB := poisoned[float32](t, w, newWGMMA(x).scratch()+more), poisoned[float32](t, w, 3*x.nh*x.hs)
	must(t, qkvB.Slice(0, 3*n).CopyFrom(qkv))
	must(t, doutB.Slice(0, n).CopyFrom(dout))
	run := func() (out, dqkv []spmd.BF16, lse, dbias []float32) {
		must(t, poison(outB))
		must(t, poison(lseB))
		must(t, poison(dqkvB))
		must(t, poison(scratch))
		must(t, poison(dbiasB))
		must(t, pass.forward(s, outB, lseB, qkvB, x))
		must(t, pass.backward(s, dqkvB, dbiasB, doutB, outB, lseB, qkvB, scratch, x))
		must(t, s.Synchronize())
		out, dqkv, lse = make([]spmd.BF16, outB.Len()), make([]spmd.BF16, dqkvB.Len()), make([]float32, lseB.Len())
		if pass.sums {
			dbias = make([]float32, dbiasB.Len())
			must(t, dbiasB.CopyTo(dbias))
		}
		must(t, outB.CopyTo(out))
		must(t, dqkvB.CopyTo(dqkv))
		must(t, lseB.CopyTo(lse))
		for _, v := range slices.Concat(out[n:], dqkv[3*n:]) {
			if v != nanBF16 {
				t.Fatalf("%s, %+v: an element behind the shape was written", name, x)
			}
		}
		return out[:n], dqkv[:3*n], lse[:rows], dbias
	}
	out, dqkv, lse, dbias := run()

	ref := newReference(x, widen(qkv), widen(dout), widen(out))
	differ := 0.0
	for i, v := range lse {
		if d := math.Abs(float64(v) - ref.lse[i]); !(d <= differ) {
			differ = d
		}
	}
	// The rounding of a score is that of its size.
	if limit := 1e-3; !(differ < limit) {
		t.Errorf("%+v: lse differs by %g, limit %g", x, differ, limit)
	}
	for _, c := range []struct {
		name string
		got  []float64
		want []float64
	}{
		{"out", widen(out), ref.out},
		{"dq", third(x, widen(dqkv), 0), ref.dqkv[0]},
		{"dk", third(x, widen(dqkv), 1), ref.dqkv[1]},
		{"dv", third(x, widen(dqkv), 2), ref.dqkv[2]},
	} {
		// With one token dq and dk are 0, up to the rounding of two equal sums.
		if d, size := distance(c.got, c.want); !(d < 1e-2*size+1e-6*math.Sqrt(float64(n))) {
			t.Errorf("%s, %+v scaled by %g: %s is %.3g from the reference of size %.3g", name, x, scale,
				c.name, d, size)
		}
	}
	if pass.sums {
		// Each term of a sum differs from the reference as dqkv does, by its own rounding. The sums
		// differ by as many of these.
		width := 3 * x.nh * x.hs
		want, limit := make([]float64, width), make([]float64, width)
		for i, v := range slices.Concat(ref.dqkv[:]...) {
			j := i/n*x.nh*x.hs + i%(x.nh*x.hs)
			want[j] += v
			limit[j] += v * v
		}
		for j, v := range dbias {
			if d := math.Abs(float64(v) - want[j]); !(d < 4e-2*math.Sqrt(limit[j])+1e-5) {
				t.Errorf("%s, %+v scaled by %g: dbias[%d] is %g, reference %g, limit %g", name, x, scale,
					j, v, want[j], 4e-2*math.Sqrt(limit[j])+1e-5)
				break
			}
		}
	}
	for range 3 {
		out2, dqkv2, lse2, dbias2 := run()
		if !slices.Equal(out, out2) || !slices.Equal(dqkv, dqkv2) || !slices.Equal(lse, lse2) ||
			!slices.Equal(dbias, dbias2) {
			t.Errorf("%s, %+v: another run on equal inputs gave other bits", name, x)
		}
	}
}

// reference is attention in float64, one query after the other.
type reference struct {
	out, lse []float64
	dqkv     [3][]float64 // each as out
}

// newReference takes delta from out as the kernel rounded it, as backward is defined. With few
// tokens the gradient of a score is a small difference of large sums.
func newReference(x mmaShape, qkv, dout, out []float64) *reference {
	r := &reference{out: make([]float64, x.elements()), lse: make([]float64, x.b*x.nh*x.t)}
	for i := range r.dqkv {
		r.dqkv[i] = make([]float64, x.elements())
	}
	scale := 1 / math.Sqrt(float64(x.hs))
	dot := func(x, y []float64) (sum float64) {
		for i, v := range x {
			sum += v * y[i]
		}
		return sum
	}
	add := func(to []float64, w float64, x []float64) {
		for i, v := range x {
			to[i] += w * v
		}
	}
	q, k, v := third(x, qkv, 0), third(x, qkv, 1), third(x, qkv, 2)
	host.Parallel(x.b*x.nh, 1, func(lo, hi int) {
		for head := lo; head < hi; head++ {
			row := func(a []float64, t int) []float64 {
				return a[(((head/x.nh)*x.t+t)*x.nh+head%x.nh)*x.hs:][:x.hs]
			}
			for i := range x.t {
				past := 0
				if x.window > 0 {
					past = max(0, i-i%128-x.window)
				}
				p := make([]float64, i+1)
				top, sum := math.Inf(-1), 0.0
				for j := past; j <= i; j++ {
					p[j] = scale * dot(row(q, i), row(k, j))
					top = max(top, p[j])
				}
				for j := past; j <= i; j++ {
					p[j] = math.Exp(p[j] - top)
					sum += p[j]
				}
				r.lse[head*x.t+i] = top + math.Log(sum)
				delta := dot(row(dout, i), row(out, i))
				for j := past; j <= i; j++ {
					p[j] /= sum
					add(row(r.out, i), p[j], row(v, j))
					ds := scale * p[j] * (dot(row(dout, i), row(v, j)) - delta)
					add(row(r.dqkv[0], i), ds, row(k, j))
					add(row(r.dqkv[1], j), ds, row(q, i))
					add(row(r.dqkv[2], j), p[j], row(dout, i))
				}
			}
		}
	})
	return r
}

// third is q, k or v of packed rows, as out lies.
func third(x mmaShape, packed []float64, which int) []float64 {
	c := x.nh * x.hs
	r := make([]float64, 0, x.elements())
	for i := range x.b * x.t {
		r = append(r, packed[(3*i+which)*c:][:c]...)
	}
	return r
}

// widen is x in float64.
func widen[T spmd.BF16 | float32](x []T) []float64 {
	r := make([]float64, len(x))
	for i, v := range x {
		switch v := any(v).(type) {
		case spmd.BF16:
			r[i] = float64(v.Float32())
		case float32:
			r[i] = float64(v)
		}
	}
	return r
}

// distance is the norm of got - want, and of want.
func distance(got, want []float64) (d, size float64) {
	for i, w := range want {
		d += (got[i] - w) * (got[i] - w)
		size += w * w
	}
	return math.Sqrt(d), math.Sqrt(size)
}

const nanBF16 spmd.BF16 = 0x7fc0

// poison fills b with NaN.
func poison[T spmd.BF16 | float32](b spmd.Buffer[T]) error {
	switch b := any(b).(type) {
	case spmd.Buffer[spmd.BF16]:
		return b.SetAll(nanBF16)
	case spmd.Buffer[float32]:
		return b.SetAll(float32(math.NaN()))
	}
	panic("no such type")
}

func poisoned[T spmd.BF16 | float32](t *testing.T, w *spmd.World, n int) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, n)
	must(t, err)
	must(t, poison(b))
	t.Cleanup(func() { must(t, b.Free()) })
	return b
}

var must = spmdtest.Must

// Bad shapes are refused before anything is enqueued.
func TestMMARefuses(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("attention")
		must(t, err)
		defer s.Close()
		const n = 2 * 8 * 64
		half, full, lse := poisoned[spmd.BF16](t, w, n), poisoned[spmd.BF16](t, w, 3*n), poisoned[float32](t, w, 16)
		scratch, none := poisoned[float32](t, w, mmaScratch(1, 8, 2)), spmd.Buffer[float32]{}
		for want, err := range map[string]error{
			"heads of 136":          mmaForward(s, half, lse, full, mmaShape{1, 1, 1, 136, 0}),
			"heads of 12":           mmaForward(s, half, lse, full, mmaShape{1, 1, 1, 12, 0}),
			"rows of 3·131072·64":   mmaForward(s, half, lse, full, mmaShape{1, 1, 1 << 17, 64, 0}),
			"a shape of (1,0,3,1":   mmaForward(s, half, lse, full, mmaShape{1, 0, 1, 64, 0}),
			"out has 1023 elements": mmaForward(s, half.Slice(0, n-1), lse, full, mmaShape{1, 8, 2, 64, 0}),
			"qkv 3071 and lse 16":   mmaForward(s, half, lse, full.Slice(0, 3*n-1), mmaShape{1, 8, 2, 64, 0}),
			"and lse 15":            mmaForward(s, half, lse.Slice(0, 15), full, mmaShape{1, 8, 2, 64, 0}),
			"scratch of 31": mmaBackward(s, full, half, half, lse, full, scratch.Slice(0, 31),
				mmaShape{1, 8, 2, 64, 0}),
			"a bias of 16 elements": newWGMMA(mmaShape{1, 8, 2, 64, 0}).backward(s, full, lse, half, half,
				lse, full, scratch),
			"Forward: heads of 72": newWGMMA(mmaShape{1, 1, 1, 72, 0}).forward(s, half, lse, full),
			"Backward: out has 7 ": mmaBackward(s, full, half.Slice(0, 7), half, lse, full, scratch,
				mmaShape{1, 8, 2, 64, 0}),
			"want at most 64": newWGMMA(mmaShape{1, 8, 1, 72, 0}).backward(s, full, none, half, half,
				lse, full, scratch),
			"Backward: out has 9 ": newWGMMA(mmaShape{1, 8, 2, 64, 0}).backward(s, full, none,
				half.Slice(0, 9), half, lse, full, scratch),
			"scratch of 30": newWGMMA(mmaShape{1, 8, 2, 64, 0}).backward(s, full, none, half, half, lse,
				full, scratch.Slice(0, 30)),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Error(fmt.Errorf("error %w, want one with %q", err, want))
			}
		}
	})
}
