package ops

import (
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// These are kernels of single elements, in Go.

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
//spmd:host addOnHost
func addElement(i int, dst, src []float32) { dst[i] += src[i] }

func addOnHost(lo, hi int, dst, src []float32) { host.Axpy(dst[lo:hi], 1, src[lo:hi]) }

//spmd:kernel
//spmd:host addHalfOnHost
func addHalf(i int, dst, src []spmd.BF16) { dst[i] = spmd.ToBF16(dst[i].Float32() + src[i].Float32()) }

func addHalfOnHost(lo, hi int, dst, src []spmd.BF16) {
	var sum, x [1024]float32
	for ; lo < hi; lo += len(x) {
		end := min(hi, lo+len(x))
		a, b := sum[:end-lo], x[:end-lo]
		host.Widen(a, dst[lo:end])
		host.Widen(b, src[lo:end])
		for i, v := range b {
			a[i] += v
		}
		host.Round(dst[lo:end], a)
	}
}

// AddTo enqueues dst += src.
func (e *Launcher[A]) AddTo(dst, src spmd.Buffer[float32]) {
	if e.Err == nil {
		e.Err = launchAddElement(e.S, src.Len(), dst, src)
	}
}

// AddResidual enqueues y += x for the first n elements.
func (e *Launcher[A]) AddResidual(y, x spmd.Buffer[A], n int) {
	if e.Err != nil {
		return
	}
	switch y := any(y).(type) {
	case spmd.Buffer[float32]:
		e.Err = launchAddElement(e.S, n, y, any(x).(spmd.Buffer[float32]))
	case spmd.Buffer[spmd.BF16]:
		e.Err = launchAddHalf(e.S, n, y, any(x).(spmd.Buffer[spmd.BF16]))
	}
}

//spmd:kernel
//spmd:host roundOnHost
func roundElement(i int, half []spmd.BF16, p []float32) { half[i] = spmd.ToBF16(p[i]) }

func roundOnHost(lo, hi int, half []spmd.BF16, p []float32) { host.Round(half[lo:hi], p[lo:hi]) }

// RoundWeights enqueues half = p for whole arenas.
func RoundWeights(s *spmd.Stream, half spmd.Buffer[spmd.BF16], p spmd.Buffer[float32]) error {
	return launchRoundElement(s, p.Len(), half, p)
}

// lossRow adds up the losses, scaled.
//
//spmd:kernel rows=1024
//spmd:tolerance 1e-12
func lossRow(i int, loss *float64, losses []float32, scale float32, accumulate bool) {
	sum := 0.0
	for _, v := range losses {
		sum += float64(v)
	}
	sum *= float64(scale)
	if accumulate {
		sum += *loss
	}
	*loss = sum
}

// nextScale makes a scale from the largest size of a tensor, if the step was good.
//
//spmd:kernel
func nextScale(i int, up, down, peak []float32, gate *float32) {
	if top := peak[i]; *gate == *gate && size8(top) {
		e := powerFor(top)
		up[i], down[Apart8*i] = float32(math.Ldexp(1, e)), float32(math.Ldexp(1, -e))
	}
	peak[i] = 0
}

// NextScales enqueues the scales of the next step, from the largest sizes of this one. They stay
// if gate is NaN.
func NextScales(s *spmd.Stream, up, down, peak, gate spmd.Buffer[float32]) error {
	return launchNextScale(s, peak.Len(), up, down, peak, gate)
}

//spmd:kernel
func squareElement[A Act](i int, x []A) {
	v := spmd.Widen(x[i])
	if !(v > 0) {
		v *= 0 // a NaN stays one
	}
	x[i] = spmd.Narrow[A](v * v)
}

//spmd:kernel
//spmd:tolerance 1e-6
func squareBackElement[A Act](i int, d, y []A) {
	d[i] = spmd.Narrow[A](spmd.Widen(d[i]) * (2 * float32(math.Sqrt(float64(spmd.Widen(y[i]))))))
}

// ReLU2 enqueues x = max(x, 0)² for the first n elements, and their copy.
func (e *Launcher[A]) ReLU2(x spmd.Buffer[A], n int, to Cast) {
	if e.Err != nil {
		return
	}
	if to.None() {
		e.Err = launchSquareElement(e.S, n, x)
	} else {
		e.Err = launchSquarePart(e.S, castParts(n), to.Codes, to.Up, to.Peak, any(x).(spmd.Buffer[spmd.BF16]), n)
	}
}

// ReLU2Backward enqueues d *= 2·√y for the first n elements, and their copy. y is the output of
// ReLU2.
func (e *Launcher[A]) ReLU2Backward(d, y spmd.Buffer[A], n int, to Cast) {
	if e.Err != nil {
		return
	}
	if to.None() {
		e.Err = launchSquareBackElement(e.S, n, d, y)
	} else {
		e.Err = launchSquareSlopePart(e.S, castParts(n), to.Codes, to.Up, to.Peak, any(d).(spmd.Buffer[spmd.BF16]),
			any(y).(spmd.Buffer[spmd.BF16]), n)
	}
}
