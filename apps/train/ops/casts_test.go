package ops

import (
	"fmt"
	"math"
	rand "math/rand/v2"
	"slices"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// casting is a cast with memory of its own. Its codes begin as 0x55, also behind the end.
type casting struct {
	Cast
	up float64
}

func newCasting(t *testing.T, w *spmd.World, n, exponent int, peak float32) casting {
	t.Helper()
	codes := make([]spmd.F8E4M3, n+16)
	for i := range codes {
		codes[i] = 0x55
	}
	up := math.Ldexp(1, exponent)
	return casting{Cast{Codes: traintest.BufferOf(t, w, codes), Up: traintest.BufferOf(t, w, []float32{float32(up)}),
		Down: traintest.BufferOf(t, w, []float32{float32(1 / up)}), Peak: traintest.BufferOf(t, w, []float32{peak})},
		up}
}

// newWide is newCasting for the other type.
func newWide(t *testing.T, w *spmd.World, n, exponent int, peak float32) casting {
	t.Helper()
	c := newCasting(t, w, n, exponent, peak)
	c.Codes, c.Wide = spmd.Buffer[spmd.F8E4M3]{}, spmd.View[spmd.F8E5M2](c.Codes)
	return c
}

// check compares codes and the largest size with those of x.
func (c casting) check(t *testing.T, name string, x []spmd.BF16, before float64) {
	t.Helper()
	largest := before
	codes := traintest.ValuesOf(t, spmd.View[uint8](c.Codes))
	if c.Wide.Len() > 0 {
		codes = traintest.ValuesOf(t, spmd.View[uint8](c.Wide))
	}
	for i, code := range codes {
		want := uint8(0x55)
		if i < len(x) {
			v := float64(x[i].Float32())
			want = uint8(traintest.Code8(v * c.up))
			if c.Wide.Len() > 0 {
				want = uint8(traintest.WideCode8(v * c.up))
			}
			if v == v {
				largest = max(largest, math.Abs(v))
			}
		}
		if code != want {
			t.Fatalf("%s: code %d of %d is %#02x, want %#02x", name, i, len(x), code, want)
		}
	}
	if peak := traintest.ValuesOf(t, c.Peak)[0]; float64(peak) != largest {
		t.Errorf("%s: the largest size is %v, want %v", name, peak, largest)
	}
}

func geluAndSlope(x float64) (y, slope float64) {
	k := math.Sqrt(2 / math.Pi)
	th := math.Tanh(k * (x + 0.044715*x*x*x))
	return x / 2 * (1 + th), (1+th)/2 + x/2*(1-th*th)*k*(1+3*0.044715*x*x)
}

// Each kernel that casts is compared with float64 and with codes from the definition, in shapes
// that fill no block and some that do.
func TestFP8Kernels(t *testing.T) {
	traintest.On8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		testFP8Kernels(t, w, [][2]int{{1, 16}, {3, 48}, {70, 128}, {5, 4112}, {1100, 16}, {600, 2304}, {4000, 48}})
	})
}

// Small shapes compare each launch on the device with the host.
func TestCompareFP8Kernels(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.RunInProcess(t, []int{1},
		func(t *testing.T, w *spmd.World) { testFP8Kernels(t, w, [][2]int{{1, 16}, {70, 128}}) })
}

func testFP8Kernels(t *testing.T, w *spmd.World, sizes [][2]int) {
	s, err := w.NewStream("s")
	traintest.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	for turn, size := range sizes {
		n, c := size[0], size[1]
		e := &Launcher[spmd.BF16]{S: s, N: n, T: n, Acc: turn%2 == 1,
			Scratch: Scratch{Columns: traintest.BufferOf(t, w, make([]float32, ColumnParts*c))}}
		x, pre := make([]spmd.BF16, n*c), make([]spmd.BF16, n*c)
		for i := range x {
			x[i] = spmd.ToBF16(float32(r.NormFloat64() * math.Exp(4*r.NormFloat64())))
			pre[i] = spmd.ToBF16(float32(2 * r.NormFloat64()))
		}
		x[0], x[n*c-1] = spmd.ToBF16(0), spmd.ToBF16(-3e4)
		done := func() {
			t.Helper()
			traintest.NoError(t, e.Err, s.Synchronize())
		}
		in, preIn := traintest.BufferOf(t, w, x), traintest.BufferOf(t, w, pre)
		to := newCasting(t, w, n*c, turn-3, 7e4)
		e.Cast(in, n*c, to.Cast)
		done()
		to.check(t, "cast", x, float64(float32(7e4)))
		to = newWide(t, w, n*c, turn-3, 7e4)
		e.Cast(in, n*c, to.Cast)
		done()
		to.check(t, "cast to the wide type", x, float64(float32(7e4)))

		y := traintest.BufferOf(t, w, make([]spmd.BF16, n*c))
		to = newCasting(t, w, n*c, 5, 0)
		e.GELU8(y, preIn, n*c, to.Cast)
		done()
		got := traintest.ValuesOf(t, y)
		to.check(t, "gelu", got, 0)
		for i, v := range got {
			if want, _ := geluAndSlope(float64(pre[i].Float32())); !traintest.CloseTo(float64(v.Float32()), want,
				math.Abs(want)/200+1e-5) {
				t.Fatalf("gelu of %v is %v, want %v", pre[i].Float32(), v.Float32(), want)
			}
		}
		for name, none := range map[string]Cast{"no cast": {}, "a cast without codes": {Up: to.Up, Peak: to.Peak}} {
			traintest.NoError(t, y.SetAll(spmd.ToBF16(-7)), to.Peak.SetAll(0))
			e.GELU8(y, preIn, n*c, none)
			done()
			if !slices.Equal(traintest.ValuesOf(t, y), got) {
				t.Errorf("%s of %dx%d: gelu has other bits than with a copy", name, n, c)
			}
			if peak := traintest.ValuesOf(t, to.Peak)[0]; peak != 0 {
				t.Errorf("%s of %dx%d: the largest size is %v, of no copy", name, n, c, peak)
			}
		}

		squares := traintest.BufferOf(t, w, pre)
		to = newCasting(t, w, n*c, 5, 0)
		e.ReLU2(squares, n*c, to.Cast)
		done()
		got = traintest.ValuesOf(t, squares)
		to.check(t, "square", got, 0)
		for i, v := range got {
			if p := max(0, pre[i].Float32()); v != spmd.ToBF16(p*p) {
				t.Fatalf("the square of %v is %v", p, v.Float32())
			}
		}
		dsquares := traintest.BufferOf(t, w, x)
		to = newCasting(t, w, n*c, -3, 0)
		e.ReLU2Backward(dsquares, squares, n*c, to.Cast)
		done()
		slopes := traintest.ValuesOf(t, dsquares)
		to.check(t, "slope of a square", slopes, 0)
		for i, v := range slopes {
			want := float64(x[i].Float32()) * 2 * math.Sqrt(float64(got[i].Float32()))
			if !traintest.CloseTo(float64(v.Float32()), want, math.Abs(want)/250) {
				t.Fatalf("%v times the slope of the square %v is %v, want %v", x[i].Float32(), got[i].Float32(),
					v.Float32(), want)
			}
		}

		for _, slope := range []bool{false, true} {
			name := fmt.Sprintf("columns of %dx%d, slope %v", n, c, slope)
			dx, sums := traintest.BufferOf(t, w, x), traintest.BufferOf(t, w, make([]float32, c))
			traintest.NoError(t, sums.SetAll(2))
			to = newCasting(t, w, n*c, -2, 0)
			var z spmd.Buffer[spmd.BF16]
			if slope {
				z = preIn
			}
			e.CastColumns(dx, z, to.Cast, sums)
			done()
			got := traintest.ValuesOf(t, dx)
			to.check(t, name, got, 0)
			want, sizes := make([]float64, c), make([]float64, c)
			for i, v := range got {
				d := float64(x[i].Float32())
				if slope {
					_, k := geluAndSlope(float64(pre[i].Float32()))
					// Near 0 it is a difference of larger numbers.
					if !traintest.CloseTo(float64(v.Float32()), d*k, math.Abs(d)*(math.Abs(k)/200+1e-5)) {
						t.Fatalf("%s: %v times gelu'(%v) is %v, want %v", name, d, pre[i].Float32(), v.Float32(), d*k)
					}
				} else if v != x[i] {
					t.Fatalf("%s: element %d was changed", name, i)
				}
				want[i%c] += float64(v.Float32())
				sizes[i%c] += math.Abs(float64(v.Float32()))
			}
			for j, sum := range traintest.ValuesOf(t, sums) {
				if e.Acc {
					want[j] += 2
				}
				if !traintest.CloseTo(float64(sum), want[j], 1e-5*(sizes[j]+1)) {
					t.Fatalf("%s: sum %d is %v, want %v", name, j, sum, want[j])
				}
			}
		}
	}
}

// LayerNorm's kernels write the same with copies as without.
func TestFP8LayerNorm(t *testing.T) {
	traintest.On8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		traintest.NoError(t, err)
		for _, c := range []int{48, 512, 768, 1008, 2320} {
			const n = 1077
			halves := func(seed uint64) []spmd.BF16 {
				x := make([]spmd.BF16, n*c)
				for i, v := range traintest.RandomFloats(len(x), 2, seed) {
					x[i] = spmd.ToBF16(v)
				}
				return x
			}
			e := &Launcher[spmd.BF16]{S: s, Cfg: layout.Config{Layers: 1, Heads: 1, Channels: c, SeqMax: n, Vocab: 5},
				N: n, T: n, Scratch: Scratch{
					Partial: traintest.BufferOf(t, w, make([]float32, NormRows*3*c)),
					Arrived: traintest.BufferOf(t, w, make([]uint32, max((4*c+31)/32, NormRows)))}}
			x, dout := traintest.BufferOf(t, w, halves(1)), traintest.BufferOf(t, w, halves(2))
			mean, rstd := traintest.BufferOf(t, w, make([]float32, n)), traintest.BufferOf(t, w, make([]float32, n))
			p := &Norm{W: traintest.BufferOf(t, w, traintest.RandomFloats(c, 1, 3)),
				B:  traintest.BufferOf(t, w, traintest.RandomFloats(c, 1, 4)),
				DW: traintest.BufferOf(t, w, make([]float32, c)), DB: traintest.BufferOf(t, w, make([]float32, c))}
			sums := traintest.BufferOf(t, w, make([]float32, c))
			run := func(forward, backward Cast) (out, dx []spmd.BF16, grads []float32) {
				t.Helper()
				y, d := traintest.BufferOf(t, w, halves(5)), traintest.BufferOf(t, w, halves(6))
				e.LayerNormForward(y, mean, rstd, x, p, forward)
				e.LayerNormBackward(NormGrad[spmd.BF16]{d, dout, x, mean, rstd, p, sums, true, backward})
				traintest.NoError(t, e.Err, s.Synchronize())
				return traintest.ValuesOf(t, y), traintest.ValuesOf(t, d),
					slices.Concat(traintest.ValuesOf(t, p.DW), traintest.ValuesOf(t, p.DB), traintest.ValuesOf(t, sums))
			}
			out, dx, grads := run(Cast{}, Cast{})
			forward, backward := newCasting(t, w, n*c, 5, 0), newCasting(t, w, n*c, 3, 0)
			out8, dx8, grads8 := run(forward.Cast, backward.Cast)
			// Bits are equal, unless a compiler contracts operations in only one of the kernels.
			near := func(name string, a, b []float32) {
				t.Helper()
				for i := range a {
					if !traintest.CloseTo(float64(a[i]), float64(b[i]), math.Abs(float64(a[i]))/128+1e-3) {
						t.Fatalf("%s, rows of %d: element %d is %v, with a copy %v", name, c, i, a[i], b[i])
					}
				}
			}
			near("forward", widened(out), widened(out8))
			near("backward", widened(dx), widened(dx8))
			near("gradients", grads, grads8)
			forward.check(t, fmt.Sprintf("forward, rows of %d", c), out8, 0)
			backward.check(t, fmt.Sprintf("backward, rows of %d", c), dx8, 0)
		}
	})
}

// The gradient of the logits is cast as it is written.
func TestFP8Classifier(t *testing.T) {
	traintest.On8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		traintest.NoError(t, err)
		cfg := layout.Config{Layers: 1, Heads: 1, Channels: 16, SeqMax: 8, Vocab: 300}
		const n = 33
		vp := cfg.PaddedVocab()
		logits := make([]spmd.BF16, n*vp)
		for i, v := range traintest.RandomFloats(len(logits), 4, 1) {
			logits[i] = spmd.ToBF16(v)
		}
		b, losses := traintest.BufferOf(t, w, logits), traintest.BufferOf(t, w, make([]float32, n))
		to := newWide(t, w, n*vp, 9, 0)
		e := &Launcher[spmd.BF16]{S: s, Cfg: cfg, N: n, T: n}
		e.Classifier(losses, b, traintest.BufferOf(t, w, traintest.RandomTokens(n, cfg.Vocab, 5)), 0.25, true,
			to.Cast)
		traintest.NoError(t, e.Err, s.Synchronize())
		to.check(t, "gradient", traintest.ValuesOf(t, b), 0)
	})
}

// The gradient of a row of logits sums to 0. What copies lose of its many small elements, beside
// the target's large one, would be missing from all gradients in one direction. In E4M3 it was 0.11
// of the target's.
func TestFP8ClassifierKeepsSmall(t *testing.T) {
	traintest.On8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		traintest.NoError(t, err)
		cfg := layout.Config{Layers: 1, Heads: 1, Channels: 16, SeqMax: 8, Vocab: 50257}
		const n = 3
		vp := cfg.PaddedVocab()
		r := rand.New(rand.NewPCG(1, 2))
		logits := make([]spmd.BF16, n*vp)
		for i := range logits {
			logits[i] = spmd.ToBF16(float32(0.1*r.NormFloat64() - math.Log(float64(i%vp+3)))) // Zipf's law
		}
		to := newWide(t, w, n*vp, 7, 0) // the target's element is in (-128,-127]
		e := &Launcher[spmd.BF16]{S: s, Cfg: cfg, N: n, T: n}
		targets := []int32{9000, 20000, 50000}
		e.Classifier(traintest.BufferOf(t, w, make([]float32, n)), traintest.BufferOf(t, w, logits),
			traintest.BufferOf(t, w, targets), 1, true, to.Cast)
		traintest.NoError(t, e.Err, s.Synchronize())
		codes := traintest.ValuesOf(t, to.Wide)
		for i, target := range targets {
			sum, at := 0.0, codes[i*vp+int(target)].Float32()
			for _, c := range codes[i*vp : (i+1)*vp] {
				sum += float64(c.Float32())
			}
			if at != -128 || math.Abs(sum) > 0.02*128 {
				t.Errorf("row %d: the target's element is %v, and all sum to %v", i, at, sum)
			}
		}
	})
}
