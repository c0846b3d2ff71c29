package trainer

import (
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Step enqueues one update on s with rate lr.
func (o *AdamW) Step(s *spmd.Stream, lr float64) error {
	if err := o.Prepare(s, lr); err != nil {
		return err
	}
	return o.Apply(s)
}

// An infinite loss with a finite gradient changes nothing.
func TestBadLoss(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		m, s := modelWith[float32](t, w, traintest.Small, traintest.RandomParams(traintest.Small, 1), 1)
		o, err := NewAdamW(&m.State, w.Comm(), DefaultAdam)
		spmdtest.Must(t, err)
		before := traintest.ValuesOf(t, m.Weights)
		spmdtest.Must(t, m.Grads.SetAll(0.1))
		for _, loss := range []float64{math.Inf(1), math.NaN(), 1} {
			o.SkipBad = loss == 1
			spmdtest.Must(t, m.Loss.SetAll(loss))
			spmdtest.Must(t, o.Step(s, 0.1))
			spmdtest.Must(t, s.Synchronize())
			if same := slices.Equal(traintest.ValuesOf(t, m.Weights), before); same == ops.Finite(loss) {
				t.Errorf("loss %g: the weights are as before: %v", loss, same)
			}
		}
	})
}

func TestSchedule(t *testing.T) {
	s := Schedule{Peak: 1, Final: 0.1, Warmup: 4, Steps: 12}
	for _, tc := range []struct {
		step int
		want float64
	}{{0, 0.25}, {3, 1}, {4, 1}, {6, 0.1 + 0.9*(0.5+math.Sqrt2/4)}, {8, 0.55}, {12, 0.1}, {1000, 0.1}} {
		if got := s.At(tc.step); math.Abs(got-tc.want) > 1e-12 {
			t.Errorf("At(%d) = %v, want %v", tc.step, got, tc.want)
		}
	}
	if got := (Schedule{Peak: 2, Final: 1}).At(0); got != 1 {
		t.Errorf("a schedule of no steps begins at %v, want its end, 1", got)
	}
}

// modelWith returns a model on a stream of w, with the given weights.
func modelWith[A ops.Act](t *testing.T, w *spmd.World, cfg layout.Config, p map[string][]float64,
	maxBatch int) (*gpt.Model[A], *spmd.Stream) {
	t.Helper()
	m, err := gpt.NewModel[A](w, cfg, maxBatch, cfg.SeqMax)
	spmdtest.Must(t, err)
	s, err := w.NewStream("test")
	spmdtest.Must(t, err)
	traintest.LoadParams(t, m.Params, m.Weights, p)
	spmdtest.Must(t, m.Refresh(s))
	return m, s
}

// AdamW agrees with the formula in float64, over steps with and without clipping.
func TestAdamW(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		cfg := traintest.Small
		p := traintest.RandomParams(cfg, 1)
		m, s := modelWith[spmd.BF16](t, w, cfg, p, 1)
		adam := AdamConfig{Beta1: 0.8, Beta2: 0.9, Eps: 1e-6, WeightDecay: 0.3, Clip: 20}
		o, err := NewAdamW(&m.State, w.Comm(), adam)
		spmdtest.Must(t, err)
		want := make([]float64, m.Weights.Len())
		m1 := make([]float64, m.Weights.Len())
		m2 := make([]float64, m.Weights.Len())
		for _, q := range m.Params {
			copy(want[q.Off:], p[q.Name])
		}
		step := func(g []float32, lr float64) {
			t.Helper()
			spmdtest.Must(t, m.Grads.CopyFrom(g))
			spmdtest.Must(t, o.Step(s, lr))
			spmdtest.Must(t, s.Synchronize())
		}
		clipped := 0
		for k, size := range []float64{0.01, 1, 0, 0.1} {
			lr := 0.01 * float64(k+1)
			g := make([]float32, m.Grads.Len())
			for i, q := range m.Params {
				copy(g[q.Off:], traintest.RandomFloats(q.Len, size, uint64(10*k+i)))
			}
			step(g, lr)
			norm := 0.0
			for _, v := range g {
				norm += float64(v) * float64(v)
			}
			norm = math.Sqrt(norm)
			traintest.Near(t, "norm", []float32{o.Norm.At(0)}, []float64{norm}, 1e-6, 0)
			factor := 1.0
			if norm > adam.Clip {
				factor = adam.Clip / norm
				clipped++
			}
			for _, q := range m.Params {
				decay := 0.0
				if len(q.Shape) == 2 {
					decay = adam.WeightDecay
				}
				for i := q.Off; i < q.Off+q.Len; i++ {
					gi := float64(g[i]) * factor
					m1[i] = 0.8*m1[i] + 0.2*gi
					m2[i] = 0.9*m2[i] + 0.1*gi*gi
					hat1, hat2 := m1[i]/(1-math.Pow(0.8, float64(k+1))), m2[i]/(1-math.Pow(0.9, float64(k+1)))
					want[i] -= lr * (hat1/(math.Sqrt(hat2)+1e-6) + decay*want[i])
				}
			}
			weights := traintest.ValuesOf(t, m.Weights)
			traintest.Near(t, "weights", weights, want, 2e-6, 2e-6)
			half := make([]spmd.BF16, len(weights))
			spmdtest.Must(t, m.Half.CopyTo(half))
			for i, x := range weights {
				if half[i] != spmd.ToBF16(x) {
					t.Fatalf("weight %d is %v, its copy %v", i, x, half[i].Float32())
				}
			}
		}
		if clipped == 0 || clipped == 4 {
			t.Errorf("%d of 4 steps were clipped: the test means some to be", clipped)
		}

		// A gradient that is not finite changes nothing, and Norm shows it.
		before, moment := traintest.ValuesOf(t, m.Weights), traintest.ValuesOf(t, o.M)
		g := make([]float32, m.Grads.Len())
		g[m.Params[3].Off] = float32(math.Inf(1))
		step(g, 0.1)
		if n := o.Norm.At(0); !math.IsInf(float64(n), 1) {
			t.Errorf("norm of an infinite gradient is %v", n)
		}
		if !slices.Equal(traintest.ValuesOf(t, m.Weights), before) ||
			!slices.Equal(traintest.ValuesOf(t, o.M), moment) {
			t.Error("an infinite gradient changed the weights or the moments")
		}
		// The steps after it change nothing either.
		clear(g)
		g[m.Params[3].Off] = 1
		step(g, 0.1)
		if !slices.Equal(traintest.ValuesOf(t, m.Weights), before) ||
			!slices.Equal(traintest.ValuesOf(t, o.M), moment) {
			t.Error("a step after one with an infinite gradient changed the weights or the moments")
		}
	})
}
