package optim

import (
	"math"

	"lockstep/spmd"
)

// A step whose loss or gradient norm is not finite changes nothing. The device decides this. The
// host learns of it when the next step is already enqueued.

// Bad reports whether a step with this loss and norm changes nothing.
func Bad(loss, norm float64) bool { return !finite(loss) || !finite(norm) }

//go:generate go run lockstep/spmd/spmdgen

// judge runs for one index.
//
//spmd:kernel
func judge(i int, gate, hyper []float32, counts []int32, norm []float32, loss []float64, beta1, beta2 float64,
	skipBad bool) {
	good := finite(float64(norm[0])) && finite(loss[0])
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

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// judgeStep enqueues the decision on a step with the given norm and loss. gate becomes norm, or NaN
// if the step is to change nothing. counts is AdamW's. hyper receives the corrections of the
// moments after the updates so far.
func judgeStep(s *spmd.Stream, gate, hyper spmd.Buffer[float32], counts spmd.Buffer[int32], norm spmd.Buffer[float32],
	loss spmd.Buffer[float64], cfg AdamConfig, skipBad bool) error {
	return launchJudge(s, 1, gate, hyper, counts, norm, loss, cfg.Beta1, cfg.Beta2, skipBad)
}
