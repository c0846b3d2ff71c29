package optim

import (
	_ "embed"
	"math"

	"lockstep/apps/train/kernels"
	"lockstep/spmd"
)

// A step whose loss or gradient norm is not finite changes nothing. The device decides:
// the host learns of it when the next step is enqueued already.

//go:embed guard.cu
var guardSource string

// Bad says whether a step with this loss and norm is to change nothing.
func Bad(loss, norm float64) bool { return !kernels.Finite(loss) || !kernels.Finite(norm) }

var judgeStepKernel = spmd.NewKernel("judge_step", guardSource, func(a spmd.Args) error {
	gate, hyper, counts := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[int32](a, 2)
	norm, loss := spmd.ArgSlice[float32](a, 3)[0], spmd.ArgSlice[float64](a, 4)[0]
	wrong := Bad(loss, float64(norm))
	if wrong {
		counts[1]++
	} else {
		counts[0]++
	}
	gate[0] = norm
	if wrong || a.I32(7) == 0 && counts[1] > 0 {
		gate[0] = float32(math.NaN())
	}
	for i := range 2 {
		hyper[1+i] = float32(1 / (1 - math.Pow(a.F64(5+i), float64(counts[0]))))
	}
	return nil
})

// judgeStep enqueues the decision on a step with the given norm and loss: gate becomes
// norm, or NaN where the step is to change nothing. counts is AdamW's; hyper receives
// the corrections of the moments after as many updates as were.
func judgeStep(s *spmd.Stream, gate, hyper spmd.Buffer[float32], counts spmd.Buffer[int32], norm spmd.Buffer[float32], loss spmd.Buffer[float64], cfg AdamConfig, skipBad bool) error {
	return judgeStepKernel.Launch(s, spmd.Cover1D(1, 1), gate.Arg(), hyper.Arg(), counts.Arg(), norm.Arg(), loss.Arg(),
		spmd.F64(cfg.Beta1), spmd.F64(cfg.Beta2), kernels.Flag(skipBad))
}
