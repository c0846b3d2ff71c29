package exec

import (
	"fmt"
	"math"

	"lockstep/internal/elem"
)

// TensorMap is the shape of a tensor in a buffer, of the boxes that are copied of it, and how these
// lie in shared memory.
type TensorMap struct {
	Sizes, Box []int // elements of each dimension, the last contiguous
	Swizzle    int   // bytes
}

// Tensor returns the buffer as a tensor that is copied by boxes.
func Tensor(a Arg, m *TensorMap) Arg {
	a.Kind, a.Map = TensorArg, m
	return a
}

// checkTensor refuses what a copy engine cannot map. Source: cuda.h, cuTensorMapEncodeTiled.
func (a *Arg) checkTensor() error {
	m := a.Map
	if m == nil {
		return fmt.Errorf("a tensor map without a shape")
	}
	rank := len(m.Sizes)
	if rank < 1 || rank > 5 || len(m.Box) != rank {
		return fmt.Errorf("a tensor map of sizes %v and box %v: want 1 to 5 dimensions of both", m.Sizes, m.Box)
	}
	n, ok := elem.Product(m.Sizes...)
	for i, size := range m.Sizes {
		if size < 1 || size > math.MaxUint32 || !ok {
			return fmt.Errorf("a tensor map of sizes %v", m.Sizes)
		}
		if box := m.Box[i]; box < 1 || box > 256 {
			return fmt.Errorf("a tensor map with a box of %v: want 1 to 256 in each dimension", m.Box)
		}
	}
	if n > a.N {
		return fmt.Errorf("a tensor map of sizes %v over %d elements", m.Sizes, a.N)
	}
	width := a.Type.Size()
	row := m.Box[rank-1] * width
	switch {
	case row%16 != 0:
		return fmt.Errorf("a tensor map whose box has rows of %d bytes: want a multiple of 16", row)
	case rank > 1 && m.Sizes[rank-1]*width%16 != 0:
		return fmt.Errorf("a tensor map whose rows have %d bytes: want a multiple of 16", m.Sizes[rank-1]*width)
	case m.Swizzle != 0 && m.Swizzle != 32 && m.Swizzle != 64 && m.Swizzle != 128:
		return fmt.Errorf("a tensor map swizzled in %d bytes: want 0, 32, 64 or 128", m.Swizzle)
	case m.Swizzle != 0 && row > m.Swizzle:
		return fmt.Errorf("a tensor map whose box has rows of %d bytes, swizzled in %d", row, m.Swizzle)
	case uintptr(a.Ptr)%16 != 0 && a.N > 0:
		return fmt.Errorf("a tensor map of memory at %#x: want a multiple of 16 bytes", uintptr(a.Ptr))
	}
	return nil
}

// Check refuses an argument that no kernel can be given.
func (a *Arg) Check() error {
	if a.Kind == TensorArg {
		return a.checkTensor()
	}
	return nil
}

// tensorMapBytes is the size of the parameter for a tensor.
const tensorMapBytes = 128
