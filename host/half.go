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

// narrow is the set of floats of less than 32 bits.
type narrow interface {
	half | elem.F8E4M3 | elem.F8E5M2
}

// Widen stores in dst the values of src, exactly. One thread. It panics unless both are equally
// long.
func Widen[T elem.F16 | elem.BF16 | elem.F8E4M3 | elem.F8E5M2](dst []float32, src []T) {
	sameLength("Widen", len(dst), len(src))
	switch src := any(src).(type) {
	case []elem.BF16:
		C.widen_bf16(floats(dst), (*C.uint16_t)(unsafe.SliceData(src)), C.size_t(len(src)))
	case []elem.F16:
		for i, x := range src {
			dst[i] = x.Float32()
		}
	case []elem.F8E4M3:
		for i, x := range src {
			dst[i] = x.Float32()
		}
	case []elem.F8E5M2:
		for i, x := range src {
			dst[i] = x.Float32()
		}
	}
}

// Round stores in dst the values of src, rounded to nearest, ties to even, as elem's ToBF16 and
// ToF16 do. One thread. It panics unless both are equally long.
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

// GemmHalf is Gemm for matrices of 16-bit floats, with C of the same type or float32, and with an
// epilogue. The product, its sum with beta C and the epilogue are taken in float32, and rounded
// once. It holds float32 copies of the 16-bit matrices while it runs. It panics as Gemm does, and
// if a slice of e does not fit.
func GemmHalf[C float32 | elem.F16 | elem.BF16, T elem.F16 | elem.BF16](
	transA, transB bool, m, n, k int, alpha float32, a []T, lda int, b []T, ldb int, beta float32, c []C,
	ldc int, e Epilogue[C],
) {
	switch any(c).(type) {
	case []float32, []T:
		gemmNarrow("GemmHalf", transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, e)
	default:
		panic("host: GemmHalf: C is another 16-bit float than A and B")
	}
}

// GemmEightEpilogue is GemmHalf for 8-bit floats, whose product has type bfloat16.
func GemmEightEpilogue[A elem.F8E4M3 | elem.F8E5M2](
	transA, transB bool, m, n, k int, alpha float32, a []A, lda int, b []elem.F8E4M3, ldb int,
	beta float32, c []elem.BF16, ldc int, e Epilogue[elem.BF16],
) {
	gemmNarrow("GemmEight", transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, e)
}

// gemmNarrow computes in float32.
func gemmNarrow[C float32 | elem.F16 | elem.BF16, A, B narrow](
	fn string, transA, transB bool, m, n, k int, alpha float32, a []A, lda int, b []B, ldb int,
	beta float32, c []C, ldc int, e Epilogue[C],
) {
	rowsA, colsA := stored(transA, m, k)
	rowsB, colsB := stored(transB, k, n)
	checkMatrix(fn, "c", len(c), m, n, ldc)
	e.check(fn, m, n, ldc)
	checkSizes(fn, "a", rowsA, colsA)
	product := k > 0 && alpha != 0 && m > 0 && n > 0 // else a and b are not read for it
	var wideA []float32
	if product || e.RowSums != nil {
		checkMatrix(fn, "a", len(a), rowsA, colsA, lda)
		wa := scratch(rowsA * colsA)
		defer scratches.Put(wa)
		wideA = *wa
		widenRows(wideA, a, rowsA, colsA, lda)
	}
	multiply := func(c []float32, ldc int) { Gemm(NoTrans, NoTrans, m, n, 0, alpha, nil, 0, nil, n, beta, c, ldc) }
	if product {
		checkMatrix(fn, "b", len(b), rowsB, colsB, ldb)
		wb := scratch(rowsB * colsB)
		defer scratches.Put(wb)
		widenRows(*wb, b, rowsB, colsB, ldb)
		multiply = func(c []float32, ldc int) {
			Gemm(transA, transB, m, n, k, alpha, wideA, colsA, *wb, colsB, beta, c, ldc)
		}
	}
	sumsOfA := func(sum []float32) { sumRows(sum, transA, k, wideA, colsA) }
	switch e := any(e).(type) {
	case Epilogue[float32]:
		c := any(c).([]float32)
		multiply(c, ldc)
		sumsOfA(e.RowSums)
		finish(&e, c, m, n, ldc)
	case Epilogue[elem.BF16]:
		intoC(&e, any(c).([]elem.BF16), m, n, ldc, beta, multiply, sumsOfA)
	case Epilogue[elem.F16]:
		intoC(&e, any(c).([]elem.F16), m, n, ldc, beta, multiply, sumsOfA)
	}
}

// intoC has multiply compute the product in float32, and stores it in C with its epilogue.
func intoC[C half](
	e *Epilogue[C], c []C, m, n, ldc int, beta float32, multiply func(c []float32, ldc int),
	sumsOfA func(sum []float32),
) {
	wide := scratch(m * n)
	defer scratches.Put(wide)
	if beta != 0 {
		widenRows(*wide, c, m, n, ldc)
	}
	multiply(*wide, n)
	bias := fromHalf(e.Bias)
	Parallel(m, rowGrain(n), func(lo, hi int) { finishHalf(e, bias, *wide, c, lo, hi, n, ldc) })
	intoHalf(e.RowSums, sumsOfA)
	intoHalf(e.BiasGrad, func(sum []float32) { sumColumns(sum, *wide, m, n) })
}

// widenRows stores the (rows, cols) matrix src, its rows ld apart, in dst without gaps.
func widenRows[T narrow](dst []float32, src []T, rows, cols, ld int) {
	if cols == 0 {
		return
	}
	Parallel(rows, rowGrain(cols), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			Widen(dst[i*cols:(i+1)*cols], src[i*ld:i*ld+cols])
		}
	})
}

// rowGrain returns the number of rows of cols elements that is worth a goroutine.
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
