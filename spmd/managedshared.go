package spmd

import (
	"fmt"

	"lockstep/internal/ccall"
)

// AllocManagedShared returns one array in managed memory to all ranks of a process. Their GPUs and
// their host code all address it: each rank gets a Buffer of its own on the same n elements, for
// its streams and kernels. The program says which rank works on which part, for example by Slice
// and ShardOf. A rank that reads what another has written waits for it first, as with any memory
// that is shared: Synchronize the stream, then Barrier. Prefetch and Advise mean the GPU of the
// rank that calls them. If each rank is a process, it is AllocManaged: each has an array of its
// own.
//
// The memory counts as that of rank 0, and is never larger than what is free on its GPU. Each rank
// frees its Buffer, which ends the advice that it has given. The memory goes back to the pool with
// the last Free, and is handed out again when the streams of all ranks have passed theirs.
//
// Collective over all ranks of w, blocking, with the same n; different n are an error on every
// rank. Otherwise as AllocManaged. Source: cuda.h, cuMemAllocManaged, CU_MEM_ATTACH_GLOBAL.
func AllocManagedShared[T Stored](w *World, n int) (Buffer[T], error) {
	if w.in.Here() == 1 {
		return AllocManaged[T](w, n)
	}
	var own Buffer[T]
	var err error
	if w.Rank() == 0 {
		own, err = AllocManaged[T](w, n)
	}
	blk, err := w.in.Share(own.blk, n, err)
	if err != nil {
		return Buffer[T]{}, fmt.Errorf("%s: AllocManagedShared of %d elements on rank %d: %w",
			ccall.At(), n, w.Rank(), err)
	}
	return Buffer[T]{blk: blk, n: n}, nil
}
