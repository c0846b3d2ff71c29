package host

/*
#cgo noescape widen_bf16
#cgo nocallback widen_bf16
#cgo noescape round_bf16
#cgo nocallback round_bf16
#include "vec.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"lockstep/internal/elem"
)

// half is the set of 16-bit floats: they are stored, and computed with in float32.
type half interface{ elem.F16 | elem.BF16 }

// Widen stores in dst the values of src, exactly. One thread. It panics unless both are equally long.
func Widen[T elem.F16 | elem.BF16](dst []float32, src []T) {
	sameLength("Widen", len(dst), len(src))
	switch src := any(src).(type) {
	case []elem.BF16:
		C.widen_bf16(floats(dst), (*C.uint16_t)(unsafe.SliceData(src)), C.size_t(len(src)))
	case []elem.F16:
		for i, x := range src {
			dst[i] = x.Float32()
		}
	}
}

// Round stores in dst the values of src, rounded to nearest, ties to even, as elem's ToBF16 and ToF16 do. One thread.
// It panics unless both are equally long.
func Round[T elem.F16 | elem.BF16](dst []T, src []float32) {
	sameLength("Round", len(dst), len(src))
	switch dst := any(dst).(type) {
	case []elem.BF16:
		C.round_bf16((*C.uint16_t)(unsafe.SliceData(dst)), floats(src), C.size_t(len(src)))
	case []elem.F16:
		for i, x := range src {
			dst[i] = elem.ToF16(x)
		}
	}
}

// GemmHalf is Gemm for matrices of 16-bit floats, with C of the same type or float32: the product and its sum with
// beta C are taken in float32, and rounded once. It holds float32 copies of the 16-bit matrices while it runs.
func GemmHalf[C float32 | elem.F16 | elem.BF16, T elem.F16 | elem.BF16](transA, transB bool, m, n, k int, alpha float32, a []T, lda int, b []T, ldb int, beta float32, c []C, ldc int) {
	rowsA, colsA := stored(transA, m, k)
	rowsB, colsB := stored(transB, k, n)
	checkMatrix("GemmHalf", "c", len(c), m, n, ldc)
	if m == 0 || n == 0 {
		return
	}
	var wideA, wideB []float32
	if k == 0 || alpha == 0 { // a and b are not read
		checkSizes("GemmHalf", "a", rowsA, colsA)
		k = 0
	} else {
		checkMatrix("GemmHalf", "a", len(a), rowsA, colsA, lda)
		checkMatrix("GemmHalf", "b", len(b), rowsB, colsB, ldb)
		wa, wb := scratch(rowsA*colsA), scratch(rowsB*colsB)
		defer scratches.Put(wa)
		defer scratches.Put(wb)
		wideA, wideB = *wa, *wb
		widenRows(wideA, a, rowsA, colsA, lda)
		widenRows(wideB, b, rowsB, colsB, ldb)
	}
	if c, ok := any(c).([]float32); ok {
		Gemm(transA, transB, m, n, k, alpha, wideA, colsA, wideB, colsB, beta, c, ldc)
		return
	}
	wc := scratch(m * n)
	defer scratches.Put(wc)
	wideC := *wc
	switch c := any(c).(type) {
	case []T:
		if beta != 0 {
			widenRows(wideC, c, m, n, ldc)
		}
		Gemm(transA, transB, m, n, k, alpha, wideA, colsA, wideB, colsB, beta, wideC, n)
		Parallel(m, rowGrain(n), func(lo, hi int) {
			for i := lo; i < hi; i++ {
				Round(c[i*ldc:i*ldc+n], wideC[i*n:(i+1)*n])
			}
		})
	default:
		panic("host: GemmHalf: C is another 16-bit float than A and B")
	}
}

// widenRows stores the (rows, cols) matrix src, its rows ld apart, in dst without gaps.
func widenRows[T half](dst []float32, src []T, rows, cols, ld int) {
	Parallel(rows, rowGrain(cols), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			Widen(dst[i*cols:(i+1)*cols], src[i*ld:i*ld+cols])
		}
	})
}

// rowGrain is how many rows of cols elements are worth a goroutine.
func rowGrain(cols int) int { return max(1, chunk/max(cols, 1)) }

// scratches keeps the float32 copies: making them anew takes longer than filling them.
var scratches = sync.Pool{New: func() any { return new([]float32) }}

// scratch returns n elements, which hold anything.
func scratch(n int) *[]float32 {
	s := scratches.Get().(*[]float32)
	if cap(*s) < n {
		*s = make([]float32, n)
	}
	*s = (*s)[:n]
	return s
}
