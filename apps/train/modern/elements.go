package modern

import (
	"math"

	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func squareElement[A ops.Act](i int, x []A) {
	v := spmd.Widen(x[i])
	if !(v > 0) {
		v *= 0 // a NaN stays one
	}
	x[i] = spmd.Narrow[A](v * v)
}

//spmd:kernel
//spmd:tolerance 1e-6
func squareBackElement[A ops.Act](i int, d, y []A) {
	d[i] = spmd.Narrow[A](spmd.Widen(d[i]) * (2 * float32(math.Sqrt(float64(spmd.Widen(y[i]))))))
}

// relu2 enqueues x = max(x, 0)² for the first n elements, and their copy.
func relu2[A ops.Act](e *ops.Launcher[A], x spmd.Buffer[A], n int, to ops.Cast) {
	if !to.None() {
		e.Square8(x, n, to)
	} else if e.Err == nil {
		e.Err = launchSquareElement(e.S, n, x)
	}
}

// relu2Backward enqueues d *= 2·√y for the first n elements, and their copy. y is the output of
// relu2.
func relu2Backward[A ops.Act](e *ops.Launcher[A], d, y spmd.Buffer[A], n int, to ops.Cast) {
	if !to.None() {
		e.SquareSlope8(d, y, n, to)
	} else if e.Err == nil {
		e.Err = launchSquareBackElement(e.S, n, d, y)
	}
}
