package attention

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/spmd"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/spmdtest"
)

// Programs with attention start also on GPUs without tensor cores for it.
func TestCompilesForOlder(t *testing.T) {
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	for _, s := range kernels.All() {
		if _, _, err := nvrtc.DefaultCache().Compile(s.Names[0], s.Text, s.Options(75)); err != nil {
			t.Errorf("%v: %v", s.Names, err)
		}
	}
}

// job is one attention with its operands, and room behind them.
type job[T Elem] struct {
	t           *testing.T
	w           *spmd.World
	s           *spmd.Stream
	a           *Attention[T]
	qkv, dout   []T
	qkvB, doutB spmd.Buffer[T]
	dqkvB, outB spmd.Buffer[T]
	lseB        spmd.Buffer[float32]
	elements    int
}

const behind = 24 // elements of each buffer behind those in use

// newJob takes operands of standard deviation scale.
func newJob[T Elem](t *testing.T, w *spmd.World, s *spmd.Stream, a *Attention[T], scale float64) *job[T] {
	t.Helper()
	x := a.dims()
	n := x.elements()
	rng := rand.New(rand.NewPCG(uint64(x.t), uint64(x.hs)))
	normal := func(n int, scale float64) []T {
		v := make([]T, n)
		for i := range v {
			v[i] = of[T](float32(scale * rng.NormFloat64()))
		}
		return v
	}
	j := &job[T]{t: t, w: w, s: s, a: a, qkv: normal(3*n, scale), dout: normal(n, 1), elements: n}
	j.qkvB, j.doutB = poisonedOf[T](t, w, 3*n+behind), poisonedOf[T](t, w, n+behind)
	j.dqkvB, j.outB, j.lseB = poisonedOf[T](t, w, 3*n+behind), poisonedOf[T](t, w, n+behind),
		poisonedOf[float32](t, w, x.rows()+behind)
	must(t, j.qkvB.Slice(0, 3*n).CopyFrom(j.qkv))
	must(t, j.doutB.Slice(0, n).CopyFrom(j.dout))
	return j
}

func of[T Elem](x float32) (v T) {
	switch p := any(&v).(type) {
	case *spmd.BF16:
		*p = spmd.ToBF16(x)
	case *float32:
		*p = x
	}
	return v
}

func nan[T Elem]() T { return of[T](float32(math.NaN())) }

func poisonedOf[T Elem](t *testing.T, w *spmd.World, n int) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, n)
	must(t, err)
	must(t, b.SetAll(nan[T]()))
	t.Cleanup(func() { must(t, b.Free()) })
	return b
}

func (j *job[T]) forward() error { return j.a.Forward(j.s, j.outB, j.lseB, j.qkvB) }

func (j *job[T]) backward() error {
	return j.a.Backward(j.s, j.dqkvB, j.doutB, j.outB, j.lseB, j.qkvB)
}

func (j *job[T]) poison() {
	j.t.Helper()
	must(j.t, j.outB.SetAll(nan[T]()))
	must(j.t, j.dqkvB.SetAll(nan[T]()))
	must(j.t, j.lseB.SetAll(float32(math.NaN())))
}

// taken is b's first n elements. The elements behind them must be as they were.
func taken[T Elem](j *job[T], b spmd.Buffer[T], n int) []float64 {
	j.t.Helper()
	v := make([]T, b.Len())
	must(j.t, j.s.Synchronize())
	must(j.t, b.CopyTo(v))
	w := widen(v)
	for _, x := range w[n:] {
		if !math.IsNaN(x) {
			j.t.Fatalf("%v: an element behind the shape was written", j.a.shape)
		}
	}
	return w[:n]
}

// takenLSE is taken for lse, whose type need not be T.
func (j *job[T]) takenLSE() []float64 {
	j.t.Helper()
	v := make([]float32, j.lseB.Len())
	must(j.t, j.lseB.CopyTo(v))
	return widen(v)[:j.a.dims().rows()]
}

// check runs both passes from poisoned results and compares all results with float64.
func (j *job[T]) check(scale float64) {
	j.t.Helper()
	j.poison()
	must(j.t, j.forward())
	must(j.t, j.backward())
	j.compare(scale)
}

func (j *job[T]) compare(scale float64) {
	j.t.Helper()
	x := j.a.dims()
	n := j.elements
	out, dqkv := taken(j, j.outB, n), taken(j, j.dqkvB, 3*n)
	shape := mmaShape(x)
	r := newReference(shape, widen(j.qkv), widen(j.dout), out)
	rel, abs := 1e-2, 1e-3
	if !isHalf[T]() {
		// The rounding of a score is that of its size, which grows with scale².
		rel = 2e-6 * scale * scale
		abs = 1e-5 * scale * scale
	}
	for i, got := range j.takenLSE() {
		if !(math.Abs(got-r.lse[i]) <= abs) {
			j.t.Errorf("%s, %v: lse %d is %v, want %v", j.a.path, j.a.shape, i, got, r.lse[i])
			break
		}
	}
	for _, c := range []struct {
		name      string
		got, want []float64
	}{{"out", out, r.out}, {"dq", third(shape, dqkv, 0), r.dqkv[0]}, {"dk", third(shape, dqkv, 1), r.dqkv[1]},
		{"dv", third(shape, dqkv, 2), r.dqkv[2]}} {
		// With one token dq and dk are 0, up to the rounding of two equal sums.
		if d, size := distance(c.got, c.want); !(d < rel*size+1e-6*math.Sqrt(float64(n))) {
			j.t.Errorf("%s, %v scaled by %g: %s is %.3g from the reference of size %.3g", j.a.path,
				j.a.shape, scale, c.name, d, size)
		}
	}
}

func stream(t *testing.T, w *spmd.World) *spmd.Stream {
	t.Helper()
	s, err := w.NewStream("attention")
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// attentionOf is New, closed with the test.
func attentionOf[T Elem](t *testing.T, w *spmd.World, s Shape, o Options) *Attention[T] {
	t.Helper()
	a, err := New[T](w, s, o)
	must(t, err)
	t.Cleanup(func() { must(t, a.Close()) })
	return a
}

// Every path takes its shapes: lengths around tiles and vectors, small batches, odd heads, scores
// beyond the range of float32's exp. On the host these are the loops in C, and the stand-in for the
// tensor cores.
func TestPaths(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w)
		shapes := []Shape{{1, 1, 1, 1, 0}, {2, 5, 2, 3, 0}, {2, 31, 1, 16, 0}, {1, 33, 3, 64, 0},
			{3, 97, 2, 20, 0}, {1, 130, 2, 80, 0}, {2, 257, 1, 8, 0}, {1, 70, 1, 200, 0},
			{1, 600, 2, 16, 256}, {2, 400, 1, 64, 128}, {1, 300, 1, 80, 384}}
		for _, shape := range shapes {
			newJob(t, w, s, attentionOf[float32](t, w, shape, Options{}), 1).check(1)
			newJob(t, w, s, attentionOf[spmd.BF16](t, w, shape, Options{Path: "simple"}), 1).check(1)
			newJob(t, w, s, attentionOf[spmd.BF16](t, w, shape, Options{}), 1).check(1)
			if shape.Window > 0 {
				newJob(t, w, s, attentionOf[spmd.BF16](t, w, shape, Options{Path: "mma"}), 1).check(1)
			}
		}
		newJob(t, w, s, attentionOf[float32](t, w, Shape{1, 90, 2, 16, 0}, Options{}), 4).check(4)
		newJob(t, w, s, attentionOf[spmd.BF16](t, w, Shape{2, 131, 2, 64, 0}, Options{Path: "mma"}), 4).check(4)
		if w.OnHost() {
			return
		}
		for _, shape := range []Shape{{2, 128, 3, 64, 0}, {1, 384, 2, 128, 0}, {3, 256, 5, 32, 0},
			{1, 1024, 2, 64, 0}} {
			for _, deterministic := range []bool{true, false} {
				a, err := New[spmd.BF16](w, shape, Options{Path: "cudnn", Deterministic: deterministic})
				if err != nil {
					t.Skip(err)
				}
				if most := Workspace[spmd.BF16](shape,
					Options{Path: "cudnn", Deterministic: deterministic}); a.Workspace() > most ||
					a.Workspace() < most/2 {
					t.Errorf("%v: workspace of %d bytes, %d were announced", shape, a.Workspace(), most)
				}
				newJob(t, w, s, a, 1).check(1)
				newJob(t, w, s, a, 4).check(4)
				must(t, a.Close())
			}
			both := attentionOf[spmd.BF16](t, w, shape, Options{Deterministic: true})
			path, why := "cudnn", "backward by mma"
			if shape.Size <= wgmmaMaxHead && lacksWGMMA(w) == "" {
				path, why = "mma", "with wgmma"
			}
			if both.path != path || !strings.Contains(both.why, why) {
				t.Errorf("%v: path %q, why %q; want %q, %q", shape, both.path, both.why, path, why)
			}
			if most := Workspace[spmd.BF16](shape, Options{Deterministic: true}); both.Workspace() > most {
				t.Errorf("%v: workspace of %d bytes, %d were announced", shape, both.Workspace(), most)
			}
			newJob(t, w, s, both, 1).check(1)
			newJob(t, w, s, both, 4).check(4)
		}
	})
}

// For makes attention of fewer sequences and other lengths, each once, until Close. Why says what
// each is.
func TestFor(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w)
		a, err := New[spmd.BF16](w, Shape{3, 64, 2, 16, 0}, Options{})
		must(t, err)
		for _, of := range [][2]int{{3, 64}, {2, 64}, {1, 64}, {1, 1}, {1, 192}, {7, 13}, {1 + w.Rank(), 40}} {
			b, err := a.For(of[0], of[1])
			must(t, err)
			if again, err := a.For(of[0], of[1]); again != b || err != nil {
				t.Errorf("%v: another one, %v", of, err)
			}
			if b.shape != (Shape{of[0], of[1], 2, 16, 0}) {
				t.Errorf("%v: %v", of, b.shape)
			}
			newJob(t, w, s, b, 1).check(1)
		}
		for _, of := range [][2]int{{4, 64}, {1, 193}, {0, 64}, {3, -1}} {
			if _, err := a.For(of[0], of[1]); err == nil {
				t.Errorf("%v: accepted", of)
			}
		}
		if w.OnHost() && (a.path != "simple" || a.why != "host") {
			t.Errorf("path %q, why %q", a.path, a.why)
		}
		must(t, a.Close())
		must(t, a.Close())
		if _, err := a.For(2, 2); err == nil {
			t.Error("For after Close: accepted")
		}
	})
}

func TestRefuses(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		for _, tc := range []struct {
			shape Shape
			path  string
			want  string
		}{
			{Shape{0, 1, 1, 1, 0}, "", "0 sequences"}, {Shape{1, 1, 0, 8, 0}, "", "0 heads"},
			{Shape{1 << 20, 1 << 12, 1, 8, 0}, "", "too large"}, {Shape{1, 130, 1, 8, 64}, "", "a window of 64"},
			{Shape{1, 1, 1, 1, 0}, "fast", `no path "fast"`},
			{Shape{1, 1, 1, 12, 0}, "mma", "mma was asked for: heads of 12"},
			{Shape{1, 130, 1, 8, 0}, "cudnn", "cudnn was asked for: "},
		} {
			if _, err := New[spmd.BF16](w, tc.shape, Options{Path: tc.path}); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v by %q: %v, want %q", tc.shape, tc.path, err, tc.want)
			}
		}
		if _, err := New[float32](w, Shape{1, 128, 1, 64, 0}, Options{Path: "mma"}); err == nil ||
			!strings.Contains(err.Error(), "float32") {
			t.Errorf("mma of float32: %v", err)
		}
		s := stream(t, w)
		j := newJob(t, w, s, attentionOf[float32](t, w, Shape{2, 9, 2, 8, 0}, Options{}), 1)
		n, rows := j.elements, 2*2*9
		for name, err := range map[string]error{
			"out of Forward": j.a.Forward(s, j.outB.Slice(0, n-1), j.lseB, j.qkvB),
			"lse":            j.a.Forward(s, j.outB, j.lseB.Slice(0, rows-1), j.qkvB),
			"qkv":            j.a.Forward(s, j.outB, j.lseB, j.qkvB.Slice(0, 3*n-1)),
			"dqkv":           j.a.Backward(s, j.dqkvB.Slice(0, 3*n-1), j.doutB, j.outB, j.lseB, j.qkvB),
			"dout":           j.a.Backward(s, j.dqkvB, j.doutB.Slice(0, n-1), j.outB, j.lseB, j.qkvB),
			"out":            j.a.Backward(s, j.dqkvB, j.doutB, j.outB.Slice(0, n-1), j.lseB, j.qkvB),
		} {
			if err == nil || !strings.Contains(err.Error(), "too short") {
				t.Errorf("%s too short: %v", name, err)
			}
		}
	})
}

// A value must not depend on how the heads are split over threads.
func TestSplits(t *testing.T) {
	x := dims{b: 3, t: 300, nh: 4, hs: 20, window: 128}
	n := x.elements()
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	qkv, dout := random(3*n), random(n)
	run := func(step int) (all []float32) {
		out, lse, dqkv := make([]float32, n), make([]float32, x.rows()), make([]float32, 3*n)
		for lo := 0; lo < x.b*x.nh; lo += step {
			hi := min(lo+step, x.b*x.nh)
			if !hostForward(out, lse, qkv, x, lo, hi) || !hostBackward(dqkv, dout, out, lse, qkv, x, lo, hi) {
				t.Fatal("no memory")
			}
		}
		return slices.Concat(out, lse, dqkv)
	}
	want := run(x.b * x.nh)
	for _, step := range []int{1, 5} {
		if !slices.Equal(run(step), want) {
			t.Errorf("heads by %d give other bits", step)
		}
	}
}

const doublesEnv = "ATTENTION_TEST_DOUBLES"

var doubled = Shape{2, 128, 1, 8, 0}
