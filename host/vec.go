package host

/*
#cgo CFLAGS: -O3
#cgo noescape sum_chunks
#cgo nocallback sum_chunks
#cgo noescape sum_squares_chunks
#cgo nocallback sum_squares_chunks
#cgo noescape dot
#cgo nocallback dot
#cgo noescape axpy
#cgo nocallback axpy
#cgo noescape scale
#cgo nocallback scale
#cgo noescape gemv_rows
#cgo nocallback gemv_rows
#cgo noescape gemv_trans
#cgo nocallback gemv_trans
#include "vec.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// chunk is the number of elements that Sum and its relatives sum up in one go. It divides the work
// finely enough for many cores. The sums of the chunks are then added in order, so that the result
// depends on the data alone.
const chunk = 1 << 14

// Sum returns the sum of x, accumulated in float64: the error is as of about len(x)/16384 + 512
// float64 additions, not of len(x) float32 ones. One thread. The result has the same bits on every
// machine.
func Sum(x []float32) float64 { return inChunks(x, values) }

// SumParallel returns Sum(x), bit for bit, computed by Threads cores.
func SumParallel(x []float32) float64 {
	if Threads() == 1 {
		return inChunks(x, values)
	}
	part := make([]float64, chunks(len(x)))
	Parallel(len(part), 4, func(lo, hi int) {
		sumChunks(part[lo:hi], x[lo*chunk:min(hi*chunk, len(x))], values)
	})
	return addInOrder(0, part)
}

// SumSquares returns the sum of the squares of x, accumulated in float64 as Sum does; the squares
// are exact. One thread.
func SumSquares(x []float32) float64 { return inChunks(x, squares) }

// Dot returns the sum of x[i] * y[i], accumulated in 32 partial sums of float32. One thread.
// It panics unless x and y are equally long.
func Dot(x, y []float32) float32 {
	sameLength("Dot", len(x), len(y))
	return float32(C.dot(floats(x), floats(y), C.size_t(len(x))))
}

// Axpy adds alpha x to y. One thread. y may be x, but may not otherwise overlap it.
// It panics unless x and y are equally long.
func Axpy(y []float32, alpha float32, x []float32) {
	sameLength("Axpy", len(y), len(x))
	C.axpy(floats(y), C.float(alpha), floats(x), C.size_t(len(y)))
}

// Scale multiplies every element of x by alpha. One thread.
func Scale(x []float32, alpha float32) {
	C.scale(floats(x), C.float(alpha), C.size_t(len(x)))
}

// What sumChunks and its callers sum up.
const values, squares = false, true

// sumChunks stores the sum of each chunk of x, or of its squares, in part.
func sumChunks(part []float64, x []float32, squared bool) {
	p := (*C.double)(unsafe.SliceData(part))
	if squared {
		C.sum_squares_chunks(p, floats(x), C.size_t(len(x)), chunk)
	} else {
		C.sum_chunks(p, floats(x), C.size_t(len(x)), chunk)
	}
}

func inChunks(x []float32, squared bool) float64 {
	var part [64]float64
	total := 0.0
	for len(x) > 0 {
		some := x[:min(len(x), len(part)*chunk)]
		sumChunks(part[:], some, squared)
		total = addInOrder(total, part[:chunks(len(some))])
		x = x[len(some):]
	}
	return total
}

func chunks(n int) int { return (n + chunk - 1) / chunk }

func addInOrder(total float64, part []float64) float64 {
	for _, s := range part {
		total += s
	}
	return total
}

// gemvRows computes y = alpha A x + beta y for A (len(y), len(x)) with row stride lda.
func gemvRows(alpha float32, a []float32, lda int, x []float32, beta float32, y []float32) {
	C.gemv_rows(C.size_t(len(y)), C.size_t(len(x)), C.float(alpha), floats(a), C.size_t(lda), floats(x),
		C.float(beta), floats(y))
}

// gemvTrans computes y = alpha A' x + beta y for A (len(x), len(y)) with row stride lda.
func gemvTrans(alpha float32, a []float32, lda int, x []float32, beta float32, y []float32) {
	C.gemv_trans(C.size_t(len(x)), C.size_t(len(y)), C.float(alpha), floats(a), C.size_t(lda), floats(x),
		C.float(beta), floats(y))
}

func floats(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }

func sameLength(name string, n, m int) {
	if n != m {
		panic(fmt.Sprintf("host: %s: one slice has %d elements, the other %d", name, n, m))
	}
}
