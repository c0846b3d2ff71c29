package spmd

import "lockstep/spmd/internal/exec"

// TensorMap describes a tensor in a buffer to the copy engine of a GPU (TMA). The engine copies
// boxes of the tensor between global and shared memory when a single thread asks
// (cp.async.bulk.tensor). Elements of a box outside of the tensor are zero in shared memory, and
// are not written to the tensor.
//
// A kernel gives the coordinates of a box in elements, the contiguous dimension first. In that
// dimension they come to a multiple of 16 bytes. Source: PTX ISA, Tensors and cp.async.bulk.tensor;
// cuda.h, cuTensorMapEncodeTiled.
type TensorMap struct {
	// Sizes are the elements in each of 1 to 5 dimensions, the last one contiguous: for a matrix
	// rows, then columns. If there are several rows, a row is a multiple of 16 bytes.
	Sizes []int
	// Box is the elements of a box in each dimension, 1 to 256. A row of a box is a multiple of 16
	// bytes. It may be longer than the tensor's.
	Box []int
	// Swizzle is 0, or 32, 64 or 128 bytes, and a row of a box then has at most so many. The places
	// of 16-byte chunks in a row then differ from row to row. So the threads of a warp can read a
	// column of them at once.
	Swizzle int
}

// TensorMap passes the buffer as a tensor. The buffer begins at a multiple of 16 bytes. The kernel
// has a parameter const __grid_constant__ tensor_map (spmd.cuh), and the host function gets the
// slice that Arg passes. m is not copied: it must not change, and serves any number of launches.
// TensorMap allocates nothing.
//
// GPUs have such a copy engine from compute capability 9.0 on: before, the launch fails. On all
// devices it fails if m is no such tensor.
func (b Buffer[T]) TensorMap(m *TensorMap) Arg {
	return exec.Tensor(b.Arg(), (*exec.TensorMap)(m))
}
