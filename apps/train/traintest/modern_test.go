package traintest

import (
	"math"
	rand "math/rand/v2"
	"testing"

	"lockstep/apps/train/layout"
)

// The reference's own gradients agree with central differences of its loss, as in GPT-2's form.
func TestModernReferenceGradients(t *testing.T) {
	cfg := SmallModern
	m := ModernReference(cfg, RandomParams(cfg, 1))
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
	for _, p := range params {
		x, g := m.p[p.Name], grad[p.Name]
		largest, worst := 0.0, 0.0
		for _, v := range g {
			largest = max(largest, math.Abs(v))
		}
		for range 8 {
			i := rng.IntN(p.Len)
			if p.InVocab() && p.Name != "head.weight" { // where a gradient may differ from zero
				i = int(in[rng.IntN(len(in))])*cfg.Channels + i%cfg.Channels
			}
			const h = 1e-5 // a squared ReLU's second derivative jumps at 0, more often within a larger step
			v := x[i]
			d := (8*(loss(&x[i], v+h)-loss(&x[i], v-h)) - (loss(&x[i], v+2*h) - loss(&x[i], v-2*h))) / (12 * h)
			worst = max(worst, math.Abs(d-g[i])/largest)
		}
		if !(worst < 5e-6) {
			t.Errorf("%s: largest relative error %.2g", p.Name, worst)
		}
	}
}
