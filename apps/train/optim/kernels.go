package optim

import (
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// adamWOf updates one parameter. half, if it is not empty, receives it rounded. decay has one
// element for each 64 of p. hyper holds the rate and the two corrections, norm the norm of g.
//
//spmd:kernel
//spmd:host adamWOnHost
//spmd:tolerance 1e-6
func adamWOf(i int, p, m, v, g []float32, half []spmd.BF16, decay []uint8, hyper []float32, norm *float32,
	beta1, beta2, eps, weightDecay, clip float32) {
	if !finite(float64(*norm)) {
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
	if !finite(float64(*norm)) {
		return
	}
	cAdamW(p, m, v, g, decay, hyper, clipFactor(*norm, clip), beta1, beta2, eps, weightDecay, lo, hi)
	if len(half) > 0 {
		host.Round(half[lo:hi], p[lo:hi])
	}
}

// adamW enqueues the update of the whole arena p with its moments m and v from the gradients g.
func adamW(s *spmd.Stream, p, m, v, g spmd.Buffer[float32], half spmd.Buffer[spmd.BF16], decay spmd.Buffer[uint8],
	hyper, norm spmd.Buffer[float32], cfg AdamConfig) error {
	return launchAdamWOf(s, p.Len(), p, m, v, g, half, decay, hyper, norm, float32(cfg.Beta1), float32(cfg.Beta2),
		float32(cfg.Eps), float32(cfg.WeightDecay), float32(cfg.Clip))
}
