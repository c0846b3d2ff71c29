package ops

import (
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// AdamRange is a range of parameters, with their gradients and moments.
type AdamRange struct {
	W, G, M, V spmd.Buffer[float32]
	Half       spmd.Buffer[spmd.BF16] // receives W rounded; may be empty
	Decay      spmd.Buffer[uint8]     // for each 64 elements, whether they decay
	Hyper      spmd.Buffer[float32]   // (3): the rate, and the corrections of both moments
}

// AdamNumbers are the constants of AdamW.
type AdamNumbers struct{ Beta1, Beta2, Eps, WeightDecay, Clip float64 }

// Update enqueues the update of the range by AdamW. norm is the norm of all gradients.
func (r AdamRange) Update(s *spmd.Stream, norm spmd.Buffer[float32], c AdamNumbers) error {
	return launchAdamWOf(s, r.W.Len(), r.W, r.M, r.V, r.G, r.Half, r.Decay, r.Hyper, norm, float32(c.Beta1),
		float32(c.Beta2), float32(c.Eps), float32(c.WeightDecay), float32(c.Clip))
}

// adamWOf updates one parameter. half, if it is not empty, receives it rounded. decay has one
// element for each 64 of p. hyper holds the rate and the two corrections, norm the norm of g.
//
//spmd:kernel
//spmd:host adamWOnHost
//spmd:tolerance 1e-6
func adamWOf(i int, p, m, v, g []float32, half []spmd.BF16, decay []uint8, hyper []float32, norm *float32,
	beta1, beta2, eps, weightDecay, clip float32) {
	if !Finite(float64(*norm)) {
		return
	}
	wd := float32(0)
	if decay[i/64] != 0 {
		wd = weightDecay
	}
	gi := g[i] * clipFactor(*norm, clip)
	mi := beta1*m[i] + (1-beta1)*gi
	vi := beta2*v[i] + (1-beta2)*(gi*gi)
	m[i], v[i] = mi, vi
	p[i] -= hyper[0] * (mi*hyper[1]/(float32(math.Sqrt(float64(vi*hyper[2])))+eps) + wd*p[i])
	if len(half) > 0 {
		half[i] = spmd.ToBF16(p[i])
	}
}

// clipFactor returns the factor that gradients of such a norm are multiplied by.
func clipFactor(norm, clip float32) float32 {
	if clip > 0 && norm > clip {
		return float32(float64(clip) / float64(norm))
	}
	return 1
}

// adamWOnHost updates a range of parameters with vector instructions.
func adamWOnHost(lo, hi int, p, m, v, g []float32, half []spmd.BF16, decay []uint8, hyper []float32, norm *float32,
	beta1, beta2, eps, weightDecay, clip float32) {
	if !Finite(float64(*norm)) {
		return
	}
	cAdamW(p, m, v, g, decay, hyper, clipFactor(*norm, clip), beta1, beta2, eps, weightDecay, lo, hi)
	if len(half) > 0 {
		host.Round(half[lo:hi], p[lo:hi])
	}
}

// Step is a step that is judged on the device: one whose loss or gradient norm is not finite
// changes nothing. The host learns of it when the next step is already enqueued.
type Step struct {
	Norm         spmd.Buffer[float32] // (1): of the gradient
	Loss         spmd.Buffer[float64] // (1)
	Gate         spmd.Buffer[float32] // (1): becomes Norm, or NaN if the step is to change nothing
	Counts       spmd.Buffer[int32]   // (2): steps that changed the weights; others
	Hyper        spmd.Buffer[float32] // (3): receives the corrections of the moments, behind the rate
	Beta1, Beta2 float64
	SkipBad      bool // the steps after a bad one may change the weights
}

// Judge enqueues the decision.
func (x Step) Judge(s *spmd.Stream) error {
	return launchJudge(s, 1, x.Gate, x.Hyper, x.Counts, x.Norm, x.Loss, x.Beta1, x.Beta2, x.SkipBad)
}

// judge runs for one index.
//
//spmd:kernel
func judge(i int, gate, hyper []float32, counts []int32, norm []float32, loss []float64, beta1, beta2 float64,
	skipBad bool) {
	good := Finite(float64(norm[0])) && Finite(loss[0])
	if good {
		counts[0]++
	} else {
		counts[1]++
	}
	gate[0] = norm[0]
	if !good || !skipBad && counts[1] > 0 {
		gate[0] = float32(math.NaN())
	}
	hyper[1] = float32(1 / (1 - math.Pow(beta1, float64(counts[0]))))
	hyper[2] = float32(1 / (1 - math.Pow(beta2, float64(counts[0]))))
}
