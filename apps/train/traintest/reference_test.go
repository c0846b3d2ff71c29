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
	// A squared ReLU's second derivative jumps at 0, more often within a larger step.
	compareDifferences(t, SmallModern, 1e-5, 5e-6)
	compareDifferences(t, SmallThird, 1e-3, 1e-6)
	all := compareDifferences(t, Small, 1e-3, 1e-6)
	Measured(t, "largest relative error of a float64 gradient against central differences", all)
}

// compareDifferences returns the largest error of some elements of each tensor.
//
// With five points the error is of fourth order. The step h can be so large that the rounding of
// the loss does not matter.
func compareDifferences(t *testing.T, cfg layout.Config, h, bound float64) (all float64) {
	t.Helper()
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
	for _, p := range params {
		x, g := m.p[p.Name], grad[p.Name]
		largest, worst := 0.0, 0.0
		for _, v := range g {
			largest = max(largest, math.Abs(v))
		}
		for range 8 {
			i := rng.IntN(p.Len)
			switch { // where a gradient may differ from zero
			case p.Name == "wpe.weight":
				i %= 5 * cfg.Channels
			case p.Name == "wte.weight" && !cfg.Has(layout.RMSNorms): // the head's, too
				i %= cfg.Vocab * cfg.Channels
			case p.InVocab() && p.Name != "head.weight":
				i = int(in[rng.IntN(len(in))])*cfg.Channels + i%cfg.Channels
			}
			v := x[i]
			d := (8*(loss(&x[i], v+h)-loss(&x[i], v-h)) - (loss(&x[i], v+2*h) - loss(&x[i], v-2*h))) / (12 * h)
			worst = max(worst, math.Abs(d-g[i])/largest)
		}
		if !(worst < bound) {
			t.Errorf("%s: largest relative error %.2g", p.Name, worst)
		}
		t.Logf("%-22s %.1e", p.Name, worst)
		all = max(all, worst)
	}
	return all
}
