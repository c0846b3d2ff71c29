package host

import (
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// float is the set of element types of matrices.
type float interface{ float32 | float64 }

// backend is the choice of BLAS, made once.
type backend struct {
	open bool   // OpenBLAS, else gonum
	name string // for BLAS
	err  error  // the choice of LOCKSTEP_BLAS cannot be had
}

var chosen = sync.OnceValue(func() backend { return choose(os.Getenv("LOCKSTEP_BLAS")) })

func choose(want string) backend {
	switch want {
	case "gonum":
		return backend{name: "gonum (pure Go): LOCKSTEP_BLAS=gonum"}
	case "", "auto", "openblas":
		name, err := openOpenBLAS()
		if err == nil {
			err = reserveBuffers()
		}
		switch {
		case err == nil:
			return backend{open: true, name: name}
		case want == "openblas":
			return backend{err: fmt.Errorf("host: LOCKSTEP_BLAS=openblas: %w", err)}
		}
		return backend{name: fmt.Sprintf("gonum (pure Go): %v", err)}
	}
	return backend{err: fmt.Errorf("host: LOCKSTEP_BLAS is %q: auto, openblas or gonum is meant", want)}
}

// CheckBLAS loads the BLAS and returns an error if the choice in LOCKSTEP_BLAS cannot be had. Gemm
// and Gemv panic with that error. A program calls it once at its start.
func CheckBLAS() error { return chosen().err }

// BLAS names the library of Gemm, for a log: "OpenBLAS 0.3.21 SkylakeX", or "gonum (pure Go): " and
// the reason why it is not OpenBLAS.
func BLAS() string {
	b := chosen()
	if b.err != nil {
		return b.err.Error()
	}
	return b.name
}

// A matrix of a product is read as it is, or as its transpose.
const NoTrans, Trans = false, true

// Gemm computes
//
//	C = alpha op(A) op(B) + beta C
//
// where op(A) is (m, k), op(B) is (k, n) and C is (m, n), all row-major with row strides lda, ldb,
// ldc. op(A) is A, or its transpose if transA is set: a then holds a (k, m) matrix. The same goes
// for B.
//
// It uses Threads cores and returns when C is done. c may not overlap a or b. With beta == 0 the
// old contents of c do not count, not even a NaN. With alpha == 0 or k == 0, a and b are not read.
// The last row of a matrix may end before its stride does. Gemm panics if a dimension is negative,
// a stride is below the length of a row, or a slice is too short for its matrix. Source: cblas.h,
// cblas_sgemm and cblas_dgemm.
func Gemm[T float32 | float64](
	transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int,
) {
	rowsA, colsA := stored(transA, m, k)
	rowsB, colsB := stored(transB, k, n)
	checkMatrix("Gemm", "c", len(c), m, n, ldc)
	if m == 0 || n == 0 {
		return
	}
	if k == 0 || alpha == 0 {
		checkSizes("Gemm", "a", rowsA, colsA)
		scaleRows(m, n, beta, c, ldc)
		return
	}
	checkMatrix("Gemm", "a", len(a), rowsA, colsA, lda)
	checkMatrix("Gemm", "b", len(b), rowsB, colsB, ldb)

	bk := chosen()
	if bk.err != nil {
		panic(bk.err)
	}
	if !bk.open || max(m, n, k, lda, ldb, ldc) > math.MaxInt32 {
		gonumGemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
		return
	}
	down, across := grid(m, n, k)
	if down*across == 1 {
		openGemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
		return
	}
	Parallel(down*across, 1, func(lo, hi int) {
		for p := lo; p < hi; p++ {
			i, iEnd := part(m, down, p/across)
			j, jEnd := part(n, across, p%across)
			if i == iEnd || j == jEnd {
				continue
			}
			openGemm(transA, transB, iEnd-i, jEnd-j, k, alpha, a[offset(!transA, i, lda):], lda,
				b[offset(transB, j, ldb):], ldb, beta, c[i*ldc+j:], ldc)
		}
	})
}

// gemmGrain is the least number of floating-point operations of a block: about 10 us. Tests lower
// it.
var gemmGrain = 2 << 20

// grid divides C (m, n) into down x across blocks, one for each core that has enough to do. Every
// row of blocks packs op(B) again and every column op(A), so the grid is the one that packs least.
func grid(m, n, k int) (down, across int) {
	cells := int(min(float64(Threads()), 2*float64(m)*float64(n)*float64(k)/float64(gemmGrain)))
	down, across = 1, max(cells, 1)
	for d := 2; d <= cells; d++ {
		if cells%d == 0 && d*n+cells/d*m < down*n+across*m {
			down, across = d, cells/d
		}
	}
	return down, across
}

// part returns the p-th of parts ranges of [0, n), cut at multiples of the kernels' unit.
func part(n, parts, p int) (lo, hi int) {
	const unit = 16
	units := (n + unit - 1) / unit
	return min(n, units*p/parts*unit), min(n, units*(p+1)/parts*unit)
}

// offset returns the place of row i (or, not by rows, column i) of a matrix with row stride ld.
func offset(rows bool, i, ld int) int {
	if rows {
		return i * ld
	}
	return i
}

// Gemv computes
//
//	y = alpha op(A) x + beta y
//
// where A is (m, n), row-major with row stride lda, and op(A) is A or its transpose: x has n
// elements and y m, or with trans set x has m and y n.
//
// It uses Threads cores and returns when y is done; each element of y has the same bits for any
// number of them. In float32 it reads A at memory speed, and without trans accumulates runs of
// 16,384 columns in float32 and these in float64. y may not overlap a or x. With beta == 0 the old
// contents of y do not count, not even a NaN.
//
// Gemv panics if a dimension is negative, lda is below n, or a is too short for A. It also panics
// if x or y has another length than A asks for. Source: cblas.h, cblas_sgemv and cblas_dgemv.
func Gemv[T float32 | float64](trans bool, m, n int, alpha T, a []T, lda int, x []T, beta T, y []T) {
	checkMatrix("Gemv", "a", len(a), m, n, lda)
	rows, cols := stored(trans, m, n)
	checkVector("Gemv", "x", len(x), cols)
	checkVector("Gemv", "y", len(y), rows)
	if rows == 0 {
		return
	}
	if cols == 0 || alpha == 0 {
		scaleRows(1, rows, beta, y, rows)
		return
	}
	const grain = 1 << 15 // elements of A: some microseconds
	if rows*cols < 2*grain || Threads() == 1 {
		gemv(trans, m, n, alpha, a, lda, x, beta, y)
		return
	}
	// Blocks of whole cache lines of y: in the transposed case also of A.
	const unit = 16
	each := unit * max(1, grain/(unit*cols))
	var next atomic.Int64
	// Cores take blocks as they get free: the memory does not serve them equally.
	Parallel(min(Threads(), (rows+each-1)/each), 1, func(int, int) {
		for {
			lo := int(next.Add(int64(each))) - each
			if lo >= rows {
				return
			}
			hi := min(lo+each, rows)
			bm, bn := stored(trans, hi-lo, cols)
			gemv(trans, bm, bn, alpha, a[offset(!trans, lo, lda):], lda, x, beta, y[lo:hi])
		}
	})
}

// gemv is Gemv on one core.
func gemv[T float](trans bool, m, n int, alpha T, a []T, lda int, x []T, beta T, y []T) {
	if isFloat32[T]() {
		kernel := gemvRows
		if trans {
			kernel = gemvTrans
		}
		kernel(float32(alpha), as[float32](a), lda, as[float32](x), float32(beta), as[float32](y))
		return
	}
	if beta == 0 {
		clear(y) // some versions of OpenBLAS compute 0 * NaN here
	}
	bk := chosen()
	if bk.err != nil {
		panic(bk.err)
	}
	da, dx, dy := as[float64](a), as[float64](x), as[float64](y)
	if bk.open && max(m, n, lda) <= math.MaxInt32 {
		openGemv(trans, m, n, float64(alpha), da, lda, dx, float64(beta), dy)
		return
	}
	gonum.Implementation{}.Dgemv(transpose(trans), m, n, float64(alpha), da, lda, dx, 1, float64(beta), dy, 1)
}

func gonumGemm[T float](
	transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int,
) {
	var g gonum.Implementation
	ta, tb := transpose(transA), transpose(transB)
	if isFloat32[T]() {
		g.Sgemm(ta, tb, m, n, k, float32(alpha), as[float32](a), lda, as[float32](b), ldb, float32(beta),
			as[float32](c), ldc)
		return
	}
	g.Dgemm(ta, tb, m, n, k, float64(alpha), as[float64](a), lda, as[float64](b), ldb, float64(beta),
		as[float64](c), ldc)
}

func transpose(t bool) blas.Transpose {
	if t {
		return blas.Trans
	}
	return blas.NoTrans
}

// scaleRows multiplies (m, n) elements of c by beta; by 0 they become 0, NaN or not.
func scaleRows[T float](m, n int, beta T, c []T, ldc int) {
	for i := range m {
		row := c[i*ldc : i*ldc+n]
		if beta == 0 {
			clear(row)
			continue
		}
		for j := range row {
			row[j] *= beta
		}
	}
}

// stored returns the stored shape of op(X), of shape (m, n); and, its own inverse, the shape of
// op(X) for a stored one.
func stored(trans bool, m, n int) (rows, cols int) {
	if trans {
		return n, m
	}
	return m, n
}

func isFloat32[T float]() bool {
	var z T
	return unsafe.Sizeof(z) == 4
}

// as is x itself, once T is known to be U: the compiler does not see that it is.
func as[U, T float](x []T) []U {
	return unsafe.Slice((*U)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

func checkSizes(fn, name string, rows, cols int) {
	if rows < 0 || cols < 0 {
		panic(fmt.Sprintf("host: %s: %s is %d x %d: a size is negative", fn, name, rows, cols))
	}
}

func checkMatrix(fn, name string, length, rows, cols, ld int) {
	checkSizes(fn, name, rows, cols)
	if ld < cols {
		panic(fmt.Sprintf("host: %s: the row stride of %s is %d, its rows have %d elements", fn, name, ld, cols))
	}
	if rows > 0 && cols > 0 && length < (rows-1)*ld+cols {
		panic(fmt.Sprintf("host: %s: %s has %d elements, %d x %d with a row stride of %d needs %d",
			fn, name, length, rows, cols, ld, (rows-1)*ld+cols))
	}
}

func checkVector(fn, name string, length, want int) {
	if length != want {
		panic(fmt.Sprintf("host: %s: %s has %d elements, the matrix asks for %d", fn, name, length, want))
	}
}
