package traintest

import (
	"math"
	rand "math/rand/v2"
	"testing"

	"lockstep/apps/train/layout"
)

// The reference's own gradients agree with central differences of its loss: the error of each
// element is compared with the tensor's largest gradient.
func TestReferenceGradients(t *testing.T) {
	cfg := Small
	m := Reference(cfg, RandomParams(cfg, 1))
	in, targets := RandomTokens(10, cfg.Vocab, 3), RandomTokens(10, cfg.Vocab, 4)
	grad := ZeroLike(m.p)
	m.Batch(in, targets, 5, grad)
	loss := func(x *float64, v float64) float64 {
		old := *x
		*x = v
		defer func() { *x = old }()
		return m.Batch(in, targets, 5, nil)
	}
	params, _, _ := layout.Of(cfg)
	rng := rand.New(rand.NewPCG(5, 6))
	all := 0.0
	for _, p := range params {
		x, g := m.p[p.Name], grad[p.Name]
		largest, worst := 0.0, 0.0
		for _, v := range g {
			largest = max(largest, math.Abs(v))
		}
		for range 24 {
			i := rng.IntN(p.Len)
			switch p.Name { // where a gradient may differ from zero
			case "wte.weight":
				i %= cfg.Vocab * cfg.Channels
			case "wpe.weight":
				i %= 5 * cfg.Channels
			}
			// With five points the error is of fourth order. The step can be so large that the
			// rounding of the loss does not matter.
			const h = 1e-3
			v := x[i]
			d := (8*(loss(&x[i], v+h)-loss(&x[i], v-h)) - (loss(&x[i], v+2*h) - loss(&x[i], v-2*h))) / (12 * h)
			worst = max(worst, math.Abs(d-g[i])/largest)
		}
		if !(worst < 1e-6) {
			t.Errorf("%s: largest relative error %.2g", p.Name, worst)
		}
		t.Logf("%-22s %.1e", p.Name, worst)
		all = max(all, worst)
	}
	Measured(t, "largest relative error of a float64 gradient against central differences", all)
}
