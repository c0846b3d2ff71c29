package spmd

import "lockstep/spmd/internal/exec"

// TensorMap describes a tensor in a buffer to the copy engine of a GPU (TMA), which
// copies boxes of it between global and shared memory at the word of a single thread
// (cp.async.bulk.tensor). What a box has outside of the tensor is zero in shared memory,
// and is not written to the tensor. A kernel gives the coordinates of a box in elements,
// the contiguous dimension first, where they come to a multiple of 16 bytes.
// Source: PTX ISA, Tensors and cp.async.bulk.tensor; cuda.h, cuTensorMapEncodeTiled.
type TensorMap struct {
	// Sizes are the elements in each of 1 to 5 dimensions, the last one contiguous: of a
	// matrix rows, then columns. A row of several is a multiple of 16 bytes.
	Sizes []int
	// Box are the elements of a box in each dimension, 1 to 256. A row of a box is a
	// multiple of 16 bytes. It may be longer than the tensor's.
	Box []int
	// Swizzle is 0, or 32, 64 or 128 bytes, which a row of a box has at most. Chunks of
	// 16 bytes then lie at places of a row that differ from row to row, so that the
	// threads of a warp can read a column of them at once.
	Swizzle int
}

// TensorMap passes the buffer, which begins at a multiple of 16 bytes, as a tensor: to a
// parameter const __grid_constant__ tensor_map (spmd.cuh) of a kernel, to the host
// function as the slice that Arg passes. m is not copied: it must not change, and serves
// any number of launches. GPUs have such a copy engine from compute capability 9.0 on:
// elsewhere the launch fails, as it does on all devices where m is no such tensor. It
// allocates nothing.
func (b Buffer[T]) TensorMap(m *TensorMap) Arg {
	return exec.Tensor(b.Arg(), (*exec.TensorMap)(m))
}
