package ops

import (
	"lockstep/apps/train/layout"
	"lockstep/spmd"
)

// Launcher puts kernels on a stream that work on rows of a model. After the first error it keeps
// the error and launches nothing more.
type Launcher[A Act] struct {
	S       *spmd.Stream
	Cfg     layout.Config
	N, T    int  // rows, which are tokens; those of a sequence
	Acc     bool // add to the gradients and the loss instead of setting them
	AccLoss bool // add to the loss, at any rate
	Scratch
	Err error
}

// Scratch is memory that kernels use while they run.
type Scratch struct {
	Partial spmd.Buffer[float32] // parts of sums over rows, on a GPU
	Arrived spmd.Buffer[uint32]  // of how many parts there are, between two sums 0
	Columns spmd.Buffer[float32] // (ColumnParts,4C): sums of columns of casts; empty without casts
}

// Launch puts the kernel for the type A on the stream.
func (e *Launcher[A]) Launch(k Kernel, g spmd.Grid, args ...spmd.Arg) {
	if e.Err != nil {
		return
	}
	if IsHalf[A]() {
		e.Err = k.BF16.Launch(e.S, g, args...)
	} else {
		e.Err = k.F32.Launch(e.S, g, args...)
	}
}

// IsHalf reports whether A is bfloat16.
func IsHalf[A Act]() bool {
	_, half := any(*new(A)).(spmd.BF16)
	return half
}
