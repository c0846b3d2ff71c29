package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// e4m3 are the values of the codes from 0 to 0x7e, by the definition of the format (OFP8, table 2).
var e4m3 = func() (values []float64) {
	for code := range 0x7f {
		v := float64(code%8) / 512
		if code >= 8 {
			v = float64(8+code%8) * math.Pow(2, float64(code/8-10))
		}
		values = append(values, v)
	}
	return values
}()

// code8 is the code nearest to x, of two the even one.
func code8(x float64) spmd.F8E4M3 {
	if x != x {
		return 0x7f
	}
	size := min(math.Abs(x), 448)
	i, _ := slices.BinarySearch(e4m3, size) // the first that is no smaller
	if i > 0 {
		if below, above := size-e4m3[i-1], e4m3[i]-size; below < above || below == above && i%2 == 1 {
			i--
		}
	}
	if math.Signbit(x) {
		i |= 0x80
	}
	return spmd.F8E4M3(i)
}

func on8(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	spmdtest.Run(t, ranks, func(t *testing.T, w *spmd.World) {
		if !blas.SupportsF8(w) {
			t.Skip("no tensor cores for 8-bit floats")
		}
		fn(t, w)
	})
}

func noError(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func bufferOf[T spmd.Stored](t *testing.T, w *spmd.World, x []T) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, len(x))
	noError(t, err)
	noError(t, b.CopyFrom(x))
	t.Cleanup(func() { _ = b.Free() })
	return b
}

func valuesOf[T spmd.Stored](t *testing.T, b spmd.Buffer[T]) []T {
	t.Helper()
	x := make([]T, b.Len())
	noError(t, b.CopyTo(x))
	return x
}

// casting is a cast with memory of its own, whose codes are 0x55 before, and so behind the end.
type casting struct {
	cast
	up float64
}

func newCasting(t *testing.T, w *spmd.World, n, exponent int, peak float32) casting {
	t.Helper()
	codes := make([]spmd.F8E4M3, n+16)
	for i := range codes {
		codes[i] = 0x55
	}
	up := math.Ldexp(1, exponent)
	return casting{cast{bufferOf(t, w, codes), bufferOf(t, w, []float32{float32(up)}), bufferOf(t, w, []float32{float32(1 / up)}), bufferOf(t, w, []float32{peak})}, up}
}

// check compares codes and the largest size with what they are of.
func (c casting) check(t *testing.T, name string, x []spmd.BF16, before float64) {
	t.Helper()
	largest := before
	for i, code := range valuesOf(t, c.codes) {
		want := spmd.F8E4M3(0x55)
		if i < len(x) {
			v := float64(x[i].Float32())
			want = code8(v * c.up)
			if v == v {
				largest = max(largest, math.Abs(v))
			}
		}
		if code != want {
			t.Fatalf("%s: code %d of %d is %#02x, want %#02x", name, i, len(x), code, want)
		}
	}
	if peak := valuesOf(t, c.peak)[0]; float64(peak) != largest {
		t.Errorf("%s: the largest size is %v, want %v", name, peak, largest)
	}
}

func geluAndSlope(x float64) (y, slope float64) {
	k := math.Sqrt(2 / math.Pi)
	th := math.Tanh(k * (x + 0.044715*x*x*x))
	return x / 2 * (1 + th), (1+th)/2 + x/2*(1-th*th)*k*(1+3*0.044715*x*x)
}

// Each kernel that casts, in shapes that fill no block and some that do, against float64 and codes from the definition.
func TestFP8Kernels(t *testing.T) {
	on8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		noError(t, err)
		r := rand.New(rand.NewPCG(1, 2))
		for turn, size := range [][2]int{{1, 16}, {3, 48}, {70, 128}, {5, 4112}, {1100, 16}, {600, 2304}, {4000, 48}} {
			n, c := size[0], size[1]
			e := &launcher[spmd.BF16]{s: s, n: n, t: n, acc: turn%2 == 1, scratch: scratch{columns: bufferOf(t, w, make([]float32, columnParts*c))}}
			x, pre := make([]spmd.BF16, n*c), make([]spmd.BF16, n*c)
			for i := range x {
				x[i] = spmd.ToBF16(float32(r.NormFloat64() * math.Exp(4*r.NormFloat64())))
				pre[i] = spmd.ToBF16(float32(2 * r.NormFloat64()))
			}
			x[0], x[n*c-1] = spmd.ToBF16(0), spmd.ToBF16(-3e4)
			done := func() {
				t.Helper()
				noError(t, e.err, s.Synchronize())
			}
			in, preIn := bufferOf(t, w, x), bufferOf(t, w, pre)
			to := newCasting(t, w, n*c, turn-3, 7e4)
			e.cast(in, n*c, to.cast)
			done()
			to.check(t, "cast", x, float64(float32(7e4)))

			y := bufferOf(t, w, make([]spmd.BF16, n*c))
			to = newCasting(t, w, n*c, 5, 0)
			e.gelu8(y, preIn, n*c, to.cast)
			done()
			got := valuesOf(t, y)
			to.check(t, "gelu", got, 0)
			for i, v := range got {
				if want, _ := geluAndSlope(float64(pre[i].Float32())); !closeTo(float64(v.Float32()), want, math.Abs(want)/200+1e-5) {
					t.Fatalf("gelu of %v is %v, want %v", pre[i].Float32(), v.Float32(), want)
				}
			}

			for _, slope := range []bool{false, true} {
				name := fmt.Sprintf("columns of %dx%d, slope %v", n, c, slope)
				dx, sums := bufferOf(t, w, x), bufferOf(t, w, make([]float32, c))
				noError(t, sums.SetAll(2))
				to = newCasting(t, w, n*c, -2, 0)
				var z spmd.Buffer[spmd.BF16]
				if slope {
					z = preIn
				}
				e.castColumns(dx, z, to.cast, sums)
				done()
				got := valuesOf(t, dx)
				to.check(t, name, got, 0)
				want, sizes := make([]float64, c), make([]float64, c)
				for i, v := range got {
					d := float64(x[i].Float32())
					if slope {
						_, k := geluAndSlope(float64(pre[i].Float32()))
						// Where it is nearly 0 it is a difference of larger numbers.
						if !closeTo(float64(v.Float32()), d*k, math.Abs(d)*(math.Abs(k)/200+1e-5)) {
							t.Fatalf("%s: %v times gelu'(%v) is %v, want %v", name, d, pre[i].Float32(), v.Float32(), d*k)
						}
					} else if v != x[i] {
						t.Fatalf("%s: element %d was changed", name, i)
					}
					want[i%c] += float64(v.Float32())
					sizes[i%c] += math.Abs(float64(v.Float32()))
				}
				for j, sum := range valuesOf(t, sums) {
					if e.acc {
						want[j] += 2
					}
					if !closeTo(float64(sum), want[j], 1e-5*(sizes[j]+1)) {
						t.Fatalf("%s: sum %d is %v, want %v", name, j, sum, want[j])
					}
				}
			}
		}
	})
}

// The next step's scale brings the largest size into [128,256); one that says nothing, or a step that changed nothing,
// leaves it as it was.
func TestFP8Scales(t *testing.T) {
	on8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		noError(t, err)
		inf, nan := float32(math.Inf(1)), float32(math.NaN())
		peaks := []float32{1, 0.75, 128, 255.9, 256, 3e38, 1e-30, 1e-44, 0, inf, nan}
		for _, gate := range []float32{0, nan} {
			old := make([]float32, apart8*len(peaks))
			for i := range old {
				old[i] = 32
			}
			e := &fp8State{up: bufferOf(t, w, old[:len(peaks)]), down: bufferOf(t, w, old), peak: bufferOf(t, w, peaks)}
			noError(t, e.nextScales(s, bufferOf(t, w, []float32{gate})), s.Synchronize())
			up, down := valuesOf(t, e.up), valuesOf(t, e.down)
			for i := range len(peaks) {
				down[i] = down[apart8*i]
			}
			for i, peak := range peaks {
				if gate != gate || !(peak > 0 && peak < inf) {
					if up[i] != 32 || down[i] != 32 {
						t.Errorf("gate %v: the scale for %v is %v and %v, want what it was", gate, peak, up[i], down[i])
					}
					continue
				}
				scaled := float64(peak) * float64(up[i])
				if frac, _ := math.Frexp(float64(up[i])); frac != 0.5 || up[i]*down[i] != 1 || !(scaled < 256) || scaled < 128 && up[i] != float32(math.Ldexp(1, mostPower)) {
					t.Errorf("the scale for %v is %v and %v, which makes it %v", peak, up[i], down[i], scaled)
				}
			}
			for _, p := range valuesOf(t, e.peak) {
				if p != 0 {
					t.Errorf("a largest size is %v when the next step begins", p)
				}
			}
			exps, err := e.scales()
			noError(t, err)
			if !usable(exps, len(peaks)) || usable(exps, 3) || usable([]int{mostPower + 1}, 1) {
				t.Errorf("exponents %v", exps)
			}
			noError(t, e.up.SetAll(0), e.down.SetAll(0), e.setScales(exps))
			if !slices.Equal(valuesOf(t, e.up), up) {
				t.Errorf("scales %v come back as %v", up, valuesOf(t, e.up))
			}
		}
	})
}

// Each matrix is cast by its own largest element, as it is and transposed.
func TestFP8Weights(t *testing.T) {
	on8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		noError(t, err)
		for _, level := range []fp8Level{fp8Head, fp8All} {
			cfg := Config{Layers: 2, Heads: 1, Channels: 144, SeqMax: 8, Vocab: 300, FP8: level}
			m, err := NewModel[spmd.BF16](w, cfg, 1, 8)
			noError(t, err)
			half := make([]spmd.BF16, m.half.Len())
			r := rand.New(rand.NewPCG(1, 2))
			for i := range half {
				half[i] = spmd.ToBF16(float32(0.02 * r.NormFloat64()))
			}
			noError(t, m.half.CopyFrom(half))
			found := 0
			for _, turn := range []float64{1, 100} {
				for i := range half {
					half[i] = spmd.ToBF16(half[i].Float32() * float32(turn))
				}
				noError(t, m.half.CopyFrom(half), m.fp8.castWeights(s, m.half), s.Synchronize())
				check := func(name string, p *linear[spmd.BF16]) {
					t.Helper()
					found++
					x := valuesOf(t, p.w)
					codes, across := valuesOf(t, p.eight.w), valuesOf(t, p.eight.across)
					by, largest := float64(valuesOf(t, p.eight.by)[0]), 0.0
					for i, v := range x {
						largest = max(largest, math.Abs(float64(v.Float32())))
						if want := code8(float64(v.Float32()) / by); codes[i] != want || across[i%p.in*p.out+i/p.in] != want {
							t.Fatalf("%s: element %d has codes %#02x and %#02x, want %#02x", name, i, codes[i], across[i%p.in*p.out+i/p.in], want)
						}
					}
					if size := largest / by; size < 128 || size >= 256 {
						t.Errorf("%s: the largest element is cast as %v", name, size)
					}
				}
				check("head", &m.par.head)
				for l := range m.par.layers {
					p := &m.par.layers[l]
					for i, q := range []*linear[spmd.BF16]{&p.qkv, &p.proj, &p.fc, &p.proj2} {
						if level == fp8All {
							check(fmt.Sprintf("layer %d, linear %d", l, i), q)
						} else if q.eight != nil {
							t.Error("a layer has 8-bit floats")
						}
					}
				}
			}
			if want := 2 * map[fp8Level]int{fp8Head: 1, fp8All: 9}[level]; found != want {
				t.Errorf("%d matrices, want %d", found, want)
			}
			noError(t, m.Close())
		}
	})
}

// LayerNorm's kernels leave copies of what they write, which is what they write without.
func TestFP8LayerNorm(t *testing.T) {
	on8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		noError(t, err)
		for _, c := range []int{48, 512, 768, 1008, 2320} {
			const n = 1077
			halves := func(seed uint64) []spmd.BF16 {
				x := make([]spmd.BF16, n*c)
				for i, v := range randomFloats(len(x), 2, seed) {
					x[i] = spmd.ToBF16(v)
				}
				return x
			}
			e := &launcher[spmd.BF16]{s: s, cfg: Config{Layers: 1, Heads: 1, Channels: c, SeqMax: n, Vocab: 5}, n: n, t: n, scratch: scratch{
				partial: bufferOf(t, w, make([]float32, normRows*3*c)), arrived: bufferOf(t, w, make([]uint32, max((4*c+31)/32, normRows)))}}
			x, dout := bufferOf(t, w, halves(1)), bufferOf(t, w, halves(2))
			mean, rstd := bufferOf(t, w, make([]float32, n)), bufferOf(t, w, make([]float32, n))
			p := &norm{w: bufferOf(t, w, randomFloats(c, 1, 3)), b: bufferOf(t, w, randomFloats(c, 1, 4)),
				dw: bufferOf(t, w, make([]float32, c)), db: bufferOf(t, w, make([]float32, c))}
			sums := bufferOf(t, w, make([]float32, c))
			run := func(forward, backward cast) (out, dx []spmd.BF16, grads []float32) {
				t.Helper()
				y, d := bufferOf(t, w, halves(5)), bufferOf(t, w, halves(6))
				e.layerNormForward(y, mean, rstd, x, p, forward)
				e.layerNormBackward(d, dout, x, mean, rstd, p, sums, true, backward)
				noError(t, e.err, s.Synchronize())
				return valuesOf(t, y), valuesOf(t, d), slices.Concat(valuesOf(t, p.dw), valuesOf(t, p.db), valuesOf(t, sums))
			}
			out, dx, grads := run(cast{}, cast{})
			forward, backward := newCasting(t, w, n*c, 5, 0), newCasting(t, w, n*c, 3, 0)
			out8, dx8, grads8 := run(forward.cast, backward.cast)
			// To the bit but for what a compiler contracts in one kernel and not in the other.
			near := func(name string, a, b []float32) {
				t.Helper()
				for i := range a {
					if !closeTo(float64(a[i]), float64(b[i]), math.Abs(float64(a[i]))/128+1e-3) {
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
	on8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		noError(t, err)
		cfg := Config{Layers: 1, Heads: 1, Channels: 16, SeqMax: 8, Vocab: 300}
		const n = 33
		vp := cfg.PaddedVocab()
		logits := make([]spmd.BF16, n*vp)
		for i, v := range randomFloats(len(logits), 4, 1) {
			logits[i] = spmd.ToBF16(v)
		}
		b, losses := bufferOf(t, w, logits), bufferOf(t, w, make([]float32, n))
		to := newCasting(t, w, n*vp, 9, 0)
		e := &launcher[spmd.BF16]{s: s, cfg: cfg, n: n, t: n}
		e.classifier(losses, b, tokenBuffer(t, w, randomTokens(n, cfg.Vocab, 5)), 0.25, true, to.cast)
		noError(t, e.err, s.Synchronize())
		to.check(t, "gradient", valuesOf(t, b), 0)
	})
}

// Losses and gradients with products of 8-bit floats are near those with bfloat16, and are not those.
func TestFP8Gradients(t *testing.T) {
	on8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		noError(t, err)
		cfg := Config{Layers: 3, Heads: 2, Channels: 96, SeqMax: 64, Vocab: 300}
		const b, seq = 3, 64
		in, targets := tokenBuffer(t, w, randomTokens(b*seq, cfg.Vocab, 1)), tokenBuffer(t, w, randomTokens(b*seq, cfg.Vocab, 2))
		grads := func(level fp8Level) (loss float64, g []float32) {
			cfg := cfg
			cfg.FP8 = level
			m, err := NewModel[spmd.BF16](w, cfg, b, seq)
			noError(t, err)
			batch := batchOf(t, w, in, targets, b, seq, cfg.Vocab)
			noError(t, m.Init(7), m.Refresh(s))
			if level != fp8Off {
				gate := bufferOf(t, w, []float32{0})
				noError(t, m.Calibrate(s, batch, 1./(b*seq)), m.fp8.nextScales(s, gate))
			}
			for i := range 2 { // with accumulation, the second time
				noError(t, m.ForwardBackward(s, batch, 0.5/(b*seq), i == 0, nil))
			}
			noError(t, s.Synchronize())
			loss, g = valuesOf(t, m.Loss)[0], floatsOf(t, m.Grads)
			noError(t, m.Close())
			return loss, g
		}
		loss, want := grads(fp8Off)
		for _, level := range []fp8Level{fp8Head, fp8All} {
			loss8, got := grads(level)
			if !closeTo(loss8, loss, 0.01) || loss8 == loss {
				t.Errorf("--fp8 %v: the loss is %v, of bfloat16 %v", level, loss8, loss)
			}
			params, _, _ := layout(cfg)
			for _, p := range params {
				d, n := 0.0, 0.0
				for i := p.Off; i < p.Off+p.Len; i++ {
					d += math.Pow(float64(got[i]-want[i]), 2)
					n += math.Pow(float64(want[i]), 2)
				}
				if off := math.Sqrt(d / n); !(off < 0.2) || off == 0 {
					t.Errorf("--fp8 %v: the gradient of %s differs by %.2g of its norm", level, p.Name, off)
				}
			}
		}
	})
}

// A run with 8-bit floats learns as one with bfloat16, has the same bits as a graph, and goes on from what a checkpoint
// holds with the bits of one that was not interrupted; all ranks have the same scales.
func TestFP8Steps(t *testing.T) {
	on8(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		const steps, half = 24, 9
		f := wordTokens(4000)
		for _, level := range []fp8Level{fp8Head, fp8All} {
			cfg := testConfig(steps)
			cfg.half, cfg.graph = true, "off"
			plain := start(t, w, w.Comm(), cfg, f)
			cfg.model.FP8 = level
			eight := start(t, w, w.Comm(), cfg, f)
			if w.Comm().Capturable() == nil {
				cfg.graph = "on"
			}
			graphs := start(t, w, w.Comm(), cfg, f)
			data, err := newDataset(f, cfg.seq, cfg.globalBatch, 5)
			noError(t, err)
			resumed, err := newTrainer(w, w.Comm(), cfg, data)
			noError(t, err)
			off := 0.0
			for i := range steps {
				if i == half {
					for _, b := range [][2]spmd.Buffer[float32]{{resumed.state.Weights, eight.state.Weights}, {resumed.adam.M, eight.adam.M}, {resumed.adam.V, eight.adam.V}} {
						noError(t, b[0].CopyFrom(valuesOf(t, b[1])))
					}
					resumed.scales, err = eight.state.fp8.scales()
					noError(t, err, resumed.startAt(half))
				}
				want, _ := step(t, plain, i)
				loss, norm := step(t, eight, i)
				again, normAgain := step(t, graphs, i)
				if loss != again || norm != normAgain {
					t.Fatalf("--fp8 %v, step %d: loss %v, norm %v; as a graph %v, %v", level, i, loss, norm, again, normAgain)
				}
				if i >= half {
					if again, normAgain := step(t, resumed, i); loss != again || norm != normAgain {
						t.Fatalf("--fp8 %v, step %d: loss %v, norm %v; resumed %v, %v", level, i, loss, norm, again, normAgain)
					}
				}
				if i == 4 { // what is measured in between changes nothing
					_, err := eight.validate()
					noError(t, err)
				}
				off += (loss - want) / steps
			}
			if !closeTo(off, 0, 0.02) || off == 0 {
				t.Errorf("--fp8 %v: losses are off by %v on average", level, off)
			}
			noError(t, eight.audit(steps))
			if w.Rank() == w.Size()-1 && w.Size() > 1 {
				noError(t, eight.state.fp8.up.Slice(1, 2).SetAll(0.25))
			}
			if w.Size() > 1 {
				if err := eight.audit(steps); !strings.Contains(fmt.Sprint(err), "the scales of 8-bit floats after 24 steps") {
					t.Errorf("--fp8 %v: other scales on a rank: %v", level, err)
				}
			}
			noError(t, plain.Close(), eight.Close(), graphs.Close(), resumed.Close())
		}
	})
}

// A checkpoint holds the scales of the next step. They count where nothing else says what they should be.
func TestFP8Checkpoint(t *testing.T) {
	on8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		const steps, half = 12, 5
		dir := t.TempDir()
		open := func(level fp8Level, globalBatch int, found *saved) (*trainer, *saver) {
			t.Helper()
			cfg := runConfig(steps)
			cfg.half, cfg.graph, cfg.model.FP8, cfg.globalBatch = true, "off", level, globalBatch
			tr := newTrainerOf(t, w, cfg)
			o, err := newOptions(), error(nil)
			o.tok, err = newTokenizer("bytes")
			noError(t, err)
			o.checkpoint, o.cfg, o.seq, o.fp8, o.dtype, o.globalBatch, o.given = dir, cfg.model, cfg.seq, level.String(), "bfloat16", globalBatch, func(string) bool { return true }
			c, err := checkpoint.Open(w, dir, checkpoint.Config{Keep: 3})
			noError(t, err)
			s := &saver{Manager: c, o: o, w: w, key: []byte{1}, found: found}
			if found == nil {
				noError(t, tr.begin(5))
			} else {
				noError(t, s.start(tr))
			}
			return tr, s
		}
		tr, s := open(fp8All, 7, nil)
		var losses []float64
		for i := range steps {
			if i == half {
				noError(t, s.save(tr, half, record{}), s.Wait())
			}
			loss := lossOf(t, tr, i)
			losses = append(losses, loss)
		}
		noError(t, tr.Close(), s.Close())

		tr, s = open(fp8All, 7, new(saved))
		if tr.first != half || len(tr.scales) != headSites+2*layerSites {
			t.Errorf("it goes on after %d steps with scales %v", tr.first, tr.scales)
		}
		for i := half; i < steps; i++ {
			if loss := lossOf(t, tr, i); loss != losses[i] {
				t.Errorf("step %d: loss %v, uninterrupted %v", i, loss, losses[i])
			}
		}
		noError(t, tr.Close(), s.Close())
		for name, other := range map[string]func() (*trainer, *saver){
			"other products":       func() (*trainer, *saver) { return open(fp8Head, 7, new(saved)) },
			"another global batch": func() (*trainer, *saver) { return open(fp8All, 3, new(saved)) },
		} {
			tr, s := other()
			exps, err := tr.state.fp8.scales()
			noError(t, err)
			if tr.scales != nil || !slices.ContainsFunc(exps, func(e int) bool { return e != 0 }) {
				t.Errorf("%s: scales %v of the checkpoint, %v found", name, tr.scales, exps)
			}
			lossOf(t, tr, half)
			noError(t, tr.Close(), s.Close())
		}
	})
}

// The program with --fp8, on a GPU: the checkpoints of a run go on with its bits, and serve every command.
func TestFP8Program(t *testing.T) {
	if spmdtest.Device() != "cuda" {
		t.Skip("needs a GPU")
	}
	for _, level := range []string{"head", "all"} {
		t.Run(level, func(t *testing.T) {
			spmdtest.Ranks(t, 1)
			dir := filepath.Join(t.TempDir(), "run")
			args := smallRun(t, 12, "--fp8", level, "--val-every", "4")
			want, _ := finish(t, 1, append(args, "--checkpoint", dir, "--save-every", "5", "--keep", "9")...)
			plain, _ := finish(t, 1, append(args, "--graph", "off")...)
			compareRuns(t, want, plain, 0, 0)
			// The checkpoint says which products they were, too.
			got, _ := finish(t, 1, append(smallRun(t, 12, "--val-every", "4"), "--checkpoint", only(t, dir, 5), "--resume", "must")...)
			compareRuns(t, got, want, 5, 0)
			for _, command := range [][]string{{"eval", dir, "--data", args[1]}, {"sample", dir, "--max-tokens", "5"}, {"export", dir, "--to", filepath.Join(t.TempDir(), "hf")}} {
				if p := train(t, 1, command...); p.Status != 0 {
					t.Errorf("train %v: status %d, stderr:\n%s", command, p.Status, p.Stderr)
				}
			}
		})
	}
}
