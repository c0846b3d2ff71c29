package optim

import (
	_ "embed"
	"math"

	"lockstep/apps/train/kernels"
	"lockstep/apps/train/layout"
	"lockstep/host"
	"lockstep/spmd"
)

//go:embed optim.cu
var optimSource string

var adamWKernel = spmd.NewKernel("adamw", optimSource, func(a spmd.Args) error {
	p, m, v, g := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[float32](a, 3)
	decay, hyper, norm := spmd.ArgSlice[uint8](a, 4), spmd.ArgSlice[float32](a, 5), spmd.ArgSlice[float32](a, 6)
	half := spmd.ArgSlice[spmd.BF16](a, 7)
	beta1, beta2, eps, weightDecay, clip := a.F32(9), a.F32(10), a.F32(11), a.F32(12), a.F32(13)
	nrm, gscale := float64(norm[0]), float32(1)
	if math.IsNaN(nrm) || math.IsInf(nrm, 0) {
		return nil
	}
	if clip > 0 && nrm > float64(clip) {
		gscale = float32(float64(clip) / nrm)
	}
	host.Parallel(len(decay), 1<<14/layout.ArenaAlign, func(lo, hi int) {
		cAdamW(p, m, v, g, decay, hyper, gscale, beta1, beta2, eps, weightDecay, lo, hi)
	})
	kernels.RoundAll(half, p[:len(half)])
	return nil
})

// adamW enqueues the update of the whole arena p with its moments m and v from the
// gradients g. half, where it is not empty, receives p rounded. decay has one element
// for each ArenaAlign of p; hyper holds the rate and the two corrections, norm the
// norm of g.
func adamW(s *spmd.Stream, p, m, v, g spmd.Buffer[float32], half spmd.Buffer[spmd.BF16], decay spmd.Buffer[uint8], hyper, norm spmd.Buffer[float32], cfg AdamConfig) error {
	return adamWKernel.Launch(s, spmd.Cover1D(p.Len()/4, 256), p.Arg(), m.Arg(), v.Arg(), g.Arg(), decay.Arg(), hyper.Arg(), norm.Arg(),
		half.Arg(), spmd.I64(p.Len()), spmd.F32(float32(cfg.Beta1)), spmd.F32(float32(cfg.Beta2)), spmd.F32(float32(cfg.Eps)),
		spmd.F32(float32(cfg.WeightDecay)), spmd.F32(float32(cfg.Clip)))
}
