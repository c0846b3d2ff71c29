package spmd

import (
	"unsafe"

	"lockstep/internal/elem"
)

// Elem is the set of element types: those with one layout in Go, CUDA C++, MPI
// and NCCL. A buffer of any other type does not compile.
type Elem = elem.Elem

// F16 is IEEE 754 binary16, a storage type: it is converted with ToF16 and
// Float32, and computed with in float32.
type F16 = elem.F16

// BF16 is bfloat16, the upper half of a float32: a storage type, converted with
// ToBF16 and Float32, and reduced in float32.
type BF16 = elem.BF16

// ToF16 rounds x to the nearest float16, ties to even.
func ToF16(x float32) F16 { return elem.ToF16(x) }

// ToBF16 rounds x to the nearest bfloat16, ties to even.
func ToBF16(x float32) BF16 { return elem.ToBF16(x) }

// Op is the operation of a reduction.
type Op = elem.Op

// The operations of a reduction. Avg is the sum divided by the number of ranks:
// in floating point for the floating-point types, truncated towards zero for
// integers. float16 and bfloat16 are reduced in float32 and, on the host, rounded
// once; NCCL rounds them after each addition, and floating-point averages of any
// type may differ from the host's in the last bit.
const (
	Sum  = elem.Sum
	Prod = elem.Prod
	Min  = elem.Min
	Max  = elem.Max
	Avg  = elem.Avg
)

func sizeOf[T Elem]() int {
	var z T
	return int(unsafe.Sizeof(z))
}
