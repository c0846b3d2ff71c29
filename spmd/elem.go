package spmd

import (
	"unsafe"

	"lockstep/internal/elem"
)

// Elem is the set of element types of collectives and messages: those with one layout
// in Go, CUDA C++, MPI and NCCL. A collective of any other type does not compile.
type Elem interface {
	int8 | uint8 | int32 | uint32 | int64 | uint64 | F16 | BF16 | float32 | float64 | complex64 | complex128
}

// Stored is the set of element types of buffers: Elem, F8E4M3 and F8E5M2. Only kernels and
// blas.Gemm take the last two; collectives take a View of them as uint8. A buffer of any other type
// does not compile.
type Stored interface{ Elem | F8E4M3 | F8E5M2 }

// F16 is IEEE 754 binary16, a storage type. ToF16 and Float32 convert it, and computations are in
// float32.
type F16 = elem.F16

// BF16 is bfloat16, the upper half of a float32, a storage type. ToBF16 and Float32 convert it, and
// reductions are in float32.
type BF16 = elem.BF16

// F8E4M3 is an 8-bit float with 4 bits of exponent and 3 of fraction. It holds 0 and sizes from
// 2^-9 to 448, and no infinities. It is a storage type for the operands of blas.Gemm; ToF8E4M3 and
// Float32 convert it. Since the range is small, store values times a scale, by which Gemm divides
// again.
type F8E4M3 = elem.F8E4M3

// ToF8E4M3 rounds x to the nearest F8E4M3, ties to even; beyond 448, infinite too, it
// becomes 448 with its sign. A NaN stays a NaN.
func ToF8E4M3(x float32) F8E4M3 { return elem.ToF8E4M3(x) }

// F8E5M2 is an 8-bit float with 5 bits of exponent and 2 of fraction. It holds sizes from 2^-16 to
// 57344. It is a storage type as F8E4M3 is, for operands of blas.Gemm whose sizes differ much, such
// as gradients.
type F8E5M2 = elem.F8E5M2

// ToF8E5M2 rounds x to the nearest F8E5M2, ties to even; beyond 57344, infinite too, it
// becomes 57344 with its sign. A NaN stays a NaN.
func ToF8E5M2(x float32) F8E5M2 { return elem.ToF8E5M2(x) }

// ToF16 rounds x to the nearest float16, ties to even.
func ToF16(x float32) F16 { return elem.ToF16(x) }

// ToBF16 rounds x to the nearest bfloat16, ties to even.
func ToBF16(x float32) BF16 { return elem.ToBF16(x) }

// Op is the operation of a reduction.
type Op = elem.Op

// The operations of a reduction. Avg is the sum divided by the number of ranks; for integers it is
// truncated towards zero. Complex numbers have no Min and Max, and NCCL does not multiply them.
//
// float16 and bfloat16 are reduced in float32 and, on the host, rounded once. NCCL rounds them
// after each addition, and its floating-point averages of any type may differ from the host's in
// the last bit.
//
// In Min and Max a NaN wins, whichever rank has it, and -0 is less than 0, as in IEEE 754-2019,
// NumPy and PyTorch. NCCL, which carries long reductions between GPUs, drops a NaN if another rank
// has a number; host-staged does not.
const (
	Sum  = elem.Sum
	Prod = elem.Prod
	Min  = elem.Min
	Max  = elem.Max
	Avg  = elem.Avg
)

func sizeOf[T Stored]() int {
	var z T
	return int(unsafe.Sizeof(z))
}
