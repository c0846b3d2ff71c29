package host

/*
#cgo noescape add_rows
#cgo nocallback add_rows
#cgo noescape gelu_rows
#cgo nocallback gelu_rows
#cgo noescape dgelu_rows
#cgo nocallback dgelu_rows
#cgo noescape sum_columns
#cgo nocallback sum_columns
#include "epilogue.h"
*/
import "C"

import (
	"math"

	"lockstep/internal/elem"
)

// Epilogue is the work of a product beside storing C; a nil slice is absent. Matrices are (m, n)
// with the row stride of C. The slices may not overlap C, nor the written ones any other.
//
// The value stored is
//
//	v = alpha op(A) op(B) + beta C + Bias + Residual
//
// or gelu(v) with GELU, or v gelu'(DGELU) with DGELU, where gelu(x) = x (1 + tanh(sqrt(2/pi) (x +
// 0.044715 x^3))) / 2.
type Epilogue[T float32 | float64 | elem.F16 | elem.BF16] struct {
	Bias     []T // n elements, added to every row
	Residual []T // matrix
	GELU     []T // matrix, receives v
	DGELU    []T // matrix
	BiasGrad []T // n elements, receives the sums of the columns of C
	RowSums  []T // m elements, receives the sums of the rows of op(A), without alpha
}

func (e *Epilogue[T]) check(fn string, m, n, ldc int) {
	for _, v := range []struct {
		name string
		x    []T
		want int
	}{{"Bias", e.Bias, n}, {"BiasGrad", e.BiasGrad, n}, {"RowSums", e.RowSums, m}} {
		if v.x != nil {
			checkVector(fn, v.name, len(v.x), v.want)
		}
	}
	for _, v := range []struct {
		name string
		x    []T
	}{{"Residual", e.Residual}, {"GELU", e.GELU}, {"DGELU", e.DGELU}} {
		if v.x != nil {
			checkMatrix(fn, v.name, len(v.x), m, n, ldc)
		}
	}
}

// GemmEpilogue is Gemm with an epilogue. It panics as Gemm does, and if a slice of e does not fit.
func GemmEpilogue[T float32 | float64](
	transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int, e Epilogue[T],
) {
	e.check("GemmEpilogue", m, n, ldc)
	Gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
	if e.RowSums != nil { // a is read where Gemm does not read it, too
		rows, cols := stored(transA, m, k)
		checkMatrix("GemmEpilogue", "a", len(a), rows, cols, lda)
	}
	switch e := any(e).(type) {
	case Epilogue[float32]:
		sumRows(e.RowSums, transA, k, as[float32](a), lda)
		finish(&e, as[float32](c), m, n, ldc)
	case Epilogue[float64]:
		sumRows64(e.RowSums, transA, k, as[float64](a), lda)
		finish64(&e, as[float64](c), m, n, ldc)
	}
}

// finish applies e to the product c(m, n), but for the sums of the rows.
func finish(e *Epilogue[float32], c []float32, m, n, ldc int) {
	if e.changes() {
		Parallel(m, rowGrain(n), func(lo, hi int) { finishRows(e, c, lo, hi, n, ldc) })
	}
	sumColumns(e.BiasGrad, c, m, ldc)
}

// changes reports whether C is not the product itself.
func (e *Epilogue[T]) changes() bool {
	return e.Bias != nil || e.Residual != nil || e.GELU != nil || e.DGELU != nil
}

// finishRows makes C of the product in rows [lo, hi) of c.
func finishRows(e *Epilogue[float32], c []float32, lo, hi, n, ldc int) {
	if n == 0 {
		return
	}
	at := lo * ldc
	y, ld, rows, cols := floats(c[at:]), C.size_t(ldc), C.size_t(hi-lo), C.size_t(n)
	bias := e.Bias
	if e.Residual != nil {
		C.add_rows(y, ld, floats(bias), floats(e.Residual[at:]), ld, rows, cols)
		bias = nil
	}
	switch {
	case e.GELU != nil:
		C.gelu_rows(y, ld, floats(e.GELU[at:]), ld, floats(bias), rows, cols)
		return
	case bias != nil:
		C.add_rows(y, ld, floats(bias), nil, 0, rows, cols)
	}
	if e.DGELU != nil {
		C.dgelu_rows(y, ld, floats(e.DGELU[at:]), ld, rows, cols)
	}
}

// sumColumns stores in sum, of n elements, the sums of the columns of the (m, n) matrix x.
func sumColumns(sum, x []float32, m, ld int) {
	const block = 64 // columns: whole cache lines
	n := len(sum)
	Parallel((n+block-1)/block, max(1, chunk/(block*max(m, 1))), func(lo, hi int) {
		lo, hi = lo*block, min(hi*block, n)
		C.sum_columns(floats(sum[lo:]), floats(x[min(lo, len(x)):]), C.size_t(ld), C.size_t(m), C.size_t(hi-lo))
	})
}

// sumRows stores in sum, of m elements, the sums of the rows of op(A)(m, k).
func sumRows(sum []float32, transA bool, k int, a []float32, lda int) {
	switch {
	case k == 0:
		clear(sum)
		return
	case transA:
		sumColumns(sum, a, k, lda)
		return
	}
	Parallel(len(sum), rowGrain(k), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			sum[i] = float32(Sum(a[i*lda : i*lda+k]))
		}
	})
}

// sumRows64 is sumRows in float64, in plain loops.
func sumRows64(sums []float64, transA bool, k int, a []float64, lda int) {
	for i := range sums {
		sum := 0.0
		for l := range k {
			if transA {
				sum += a[l*lda+i]
			} else {
				sum += a[i*lda+l]
			}
		}
		sums[i] = sum
	}
}

// finish64 is finish in float64, in plain loops.
func finish64(e *Epilogue[float64], c []float64, m, n, ldc int) {
	if e.changes() {
		Parallel(m, rowGrain(16*n), func(lo, hi int) {
			for i := lo; i < hi; i++ {
				for j := range n {
					at := i*ldc + j
					v := c[at]
					if e.Bias != nil {
						v += e.Bias[j]
					}
					if e.Residual != nil {
						v += e.Residual[at]
					}
					if e.GELU != nil {
						e.GELU[at] = v
						v *= sigmoid(v)
					}
					if e.DGELU != nil {
						x := e.DGELU[at]
						s := sigmoid(x)
						v *= s + x*s*(1-s)*twoK*(1+3*cubic*x*x)
					}
					c[at] = v
				}
			}
		})
	}
	clear(e.BiasGrad)
	for i := range m {
		for j := range e.BiasGrad {
			e.BiasGrad[j] += c[i*ldc+j]
		}
	}
}

const (
	twoK  = 2 * math.Sqrt2 / math.SqrtPi // 2 sqrt(2/pi)
	cubic = 0.044715
)

// sigmoid is (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2.
func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-twoK*(x+cubic*x*x*x))) }

// finishHalf makes C, in rows [lo, hi), of the product wide(m, n), which it changes. The epilogue
// is computed in float32, and its results rounded once. bias is e.Bias, widened.
func finishHalf[T half](e *Epilogue[T], bias, wide []float32, c []T, lo, hi, n, ldc int) {
	if n == 0 {
		return
	}
	if !e.changes() {
		for i := lo; i < hi; i++ {
			Round(c[i*ldc:i*ldc+n], wide[i*n:(i+1)*n])
		}
		return
	}
	buf := scratch(3 * n)
	defer scratches.Put(buf)
	row := func(x []T, i int) []float32 {
		if x == nil {
			return nil
		}
		return (*buf)[i*n : (i+1)*n]
	}
	own := Epilogue[float32]{Bias: bias, Residual: row(e.Residual, 0), GELU: row(e.GELU, 1), DGELU: row(e.DGELU, 2)}
	for i := lo; i < hi; i++ {
		w, at := wide[i*n:(i+1)*n], i*ldc
		if e.Residual != nil {
			Widen(own.Residual, e.Residual[at:at+n])
		}
		if e.DGELU != nil {
			Widen(own.DGELU, e.DGELU[at:at+n])
		}
		finishRows(&own, w, 0, 1, n, n)
		if e.GELU != nil {
			Round(e.GELU[at:at+n], own.GELU)
		}
		Round(c[at:at+n], w)
	}
}

// fromHalf is x in float32, nil if x is.
func fromHalf[T half](x []T) []float32 {
	if x == nil {
		return nil
	}
	wide := make([]float32, len(x))
	Widen(wide, x)
	return wide
}

// intoHalf stores in dst the rounded results of fn.
func intoHalf[T half](dst []T, fn func(dst []float32)) {
	if len(dst) == 0 {
		return
	}
	wide := scratch(len(dst))
	defer scratches.Put(wide)
	fn(*wide)
	Round(dst, *wide)
}
