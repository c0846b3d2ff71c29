package spmd

import (
	"fmt"
	"unsafe"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// GemmElem is the set of element types of matrices.
type GemmElem interface {
	float32 | float64 | BF16 | F16 | F8E4M3
}

// Matrix is a row-major matrix in a buffer: element (i, j) is element
// i*Stride + j.
type Matrix[T GemmElem] struct {
	Buffer[T]
	Rows, Cols int
	Stride     int // elements from one row to the next, at least Cols
}

// MatrixOf is the buffer seen as a (rows, cols) matrix, row-major and packed.
func MatrixOf[T GemmElem](b Buffer[T], rows, cols int) Matrix[T] {
	return Matrix[T]{b, rows, cols, cols}
}

// GemmOpt says how Gemm and Gemv use their operands, and what Gemm does beside
// storing the product. The zero value is the plain product.
//
// The operands from Bias on are buffers, given by Buffer.Arg, of C's type; the zero
// Arg is none. They are an epilogue of the product, which costs less than a kernel
// behind it would, since the product is in registers already; but BiasGrad and RowSums
// are a pass over C, and over A. Possible are
//
//	Bias, Residual, or both
//	Bias with Accumulate
//	GELU, with or without Bias
//	DGELU, with or without BiasGrad
//	RowSums, with or without Accumulate
//
// all with TransA, TransB and Alpha; other combinations are refused. Gemv takes none.
// A matrix among them is (m, n) with its rows as far apart as C's. What is written
// (C, GELU, BiasGrad, RowSums) must not overlap any other operand, which is refused.
type GemmOpt struct {
	TransA, TransB bool    // use the transpose of A, of B
	Alpha          float64 // factor of the product; 0 means 1
	Accumulate     bool    // add to C, or y, instead of replacing it

	Bias     Arg // n elements, added to every row
	Residual Arg // matrix, added; it is read, not written
	GELU     Arg // matrix: receives the value x that C without it would hold, and C is gelu(x)
	DGELU    Arg // matrix, as GELU left it: C is the product times gelu'(DGELU)
	BiasGrad Arg // n elements: receives the sums of C's columns
	// RowSums, of m elements, receives the sums of the rows of op(A), without Alpha.
	// With dW = dY' X, where A is dY, that is the gradient of the bias. It is replaced,
	// with Accumulate too, which is about C alone.
	RowSums Arg

	// Of F8E4M3 alone, float32 buffers of one element, given by Buffer.Arg: what A and B
	// are multiplied by, read when the product runs, so that a graph has the value of its
	// replay. The zero Arg is 1. Where A holds values times a scale, ScaleA is 1 over it.
	ScaleA, ScaleB Arg
	// FastAccum sums products of F8E4M3 in the fewer bits that a GPU does fastest, a
	// rounding of about 2^-13 each; elsewhere it changes nothing.
	FastAccum bool
}

// gemm is what a queued Gemm or Gemv needs beside the addresses.
type gemm struct {
	ctyp          elem.Type      // of C; A and B have the command's
	third         unsafe.Pointer // B, or x
	m, k, cols    int            // rows of op(A), its columns, columns of C; of A itself for Gemv
	lda, ldb, ldc int
	ta, tb        bool
	alpha, beta   float64
	ops           operands // which of an epilogue's operands there are among the command's arguments
	scales        [2]bool  // whether there is one of A, and of B, among them
	fast          bool
}

// Gemm enqueues C = alpha op(A) op(B), or C += alpha op(A) op(B), on s, where
// op(A) is (m, k), op(B) (k, n) and C (m, n). C must not overlap A or B. Shapes
// that do not fit, buffers too small for their shape, freed buffers and those of
// another world are refused.
//
// C has the type of A and B, or is float32 where these are BF16 or F16; another
// pair is refused. float32 is computed in float32; BF16 and F16 are multiplied and
// summed in float32, C included, and rounded once. gelu is GPT-2's,
// gelu(x) = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. On a GPU a value of BF16
// or F16 to which something is added, and one that gelu is taken of, may be rounded
// twice, and gelu is within the rounding of the type; in float32 all is computed to
// float32's accuracy.
//
// A and B of F8E4M3 have a C of BF16, TransB and not TransA, and no RowSums. k, n, the
// strides, and the addresses of A, B and C in bytes, are multiples of 16: that is what
// tensor cores take. See World.SupportsF8 for where there are any.
// Source: BLAS, sgemm and dgemm; cublasLt.h, cublasLtMatmul, cublasLtEpilogue_t.
func Gemm[C, T GemmElem](s *Stream, c Matrix[C], a, b Matrix[T], o GemmOpt) error {
	typ, ctyp := elem.Of[T](), elem.Of[C]()
	eight := typ == elem.Float8E4M3
	if eight && ctyp != elem.BFloat16 || !eight && ctyp != typ && !(typ.Half() && ctyp == elem.Float32) {
		return fmt.Errorf("%s: Gemm: C is %v, A and B are %v", ccall.At(), ctyp, typ)
	}
	m, k := a.Rows, a.Cols
	if o.TransA {
		m, k = k, m
	}
	kb, n := b.Rows, b.Cols
	if o.TransB {
		kb, n = n, kb
	}
	if k != kb || c.Rows != m || c.Cols != n {
		return fmt.Errorf("%s: Gemm: C is %dx%d, op(A) %dx%d, op(B) %dx%d", ccall.At(), c.Rows, c.Cols, m, k, kb, n)
	}
	if err := c.check("Gemm", "C"); err != nil {
		return err
	}
	if err := a.check("Gemm", "A"); err != nil {
		return err
	}
	if err := b.check("Gemm", "B"); err != nil {
		return err
	}
	cmd := command{kind: cmdGemm, call: call{Call: coll.Call{Type: typ, Dst: c.addr(), Src: a.addr(), N: n}, dblk: c.blk, sblk: a.blk}, xblk: b.blk,
		gemm: gemm{ctyp: ctyp, third: b.addr(), m: m, k: k, cols: n, lda: a.Stride, ldb: b.Stride, ldc: c.Stride, ta: o.TransA, tb: o.TransB, fast: eight && o.FastAccum}}
	cmd.gemm.scale(&o)
	if eight {
		if err := cmd.checkEight(s.w, &o); err != nil {
			return err
		}
	}
	if !o.extended() {
		return s.submit(&cmd, nil)
	}
	args, err := o.epilogue(&cmd)
	if err != nil {
		return err
	}
	return s.submit(&cmd, args[:])
}

// checkEight refuses products of 8-bit floats that tensor cores do not do, on the host
// too: what runs there is to run on a GPU.
func (c *command) checkEight(w *World, o *GemmOpt) error {
	g := &c.gemm
	switch misses := (g.k | g.cols | g.lda | g.ldb | g.ldc | int(uintptr(c.Src)|uintptr(g.third)|uintptr(c.Dst))) % 16; {
	case !w.SupportsF8():
		return fmt.Errorf("%s: Gemm of %v: %s has no tensor cores for it: they came with compute capability 8.9", ccall.At(), c.Type, w.Device())
	case g.ta || !g.tb:
		return fmt.Errorf("%s: Gemm of %v: TransA is %v and TransB %v: it takes A as it is and B transposed", ccall.At(), c.Type, g.ta, g.tb)
	case o.RowSums != Arg{}:
		return fmt.Errorf("%s: Gemm of %v has no RowSums", ccall.At(), c.Type)
	case misses != 0:
		return fmt.Errorf("%s: Gemm of %v: C is %dx%d over %d, strides %d, %d, %d, addresses %p, %p, %p: it takes widths, strides and addresses that are multiples of 16",
			ccall.At(), c.Type, g.m, g.cols, g.k, g.ldc, g.lda, g.ldb, c.Dst, c.Src, g.third)
	}
	return nil
}

// SupportsF8 says whether Gemm takes F8E4M3 here: the host does, and GPUs from compute
// capability 8.9 on.
func (w *World) SupportsF8() bool { return w.gpu == nil || w.gpu.capability() >= 89 }

// Gemv enqueues y = alpha op(A) x, or y += alpha op(A) x, on s. y must not overlap
// A or x. It refuses what Gemm does.
// Source: BLAS, sgemv and dgemv.
func Gemv[T float32 | float64](s *Stream, y Buffer[T], a Matrix[T], x Buffer[T], o GemmOpt) error {
	m, k := a.Rows, a.Cols
	if o.TransA {
		m, k = k, m
	}
	if y.n != m || x.n != k {
		return fmt.Errorf("%s: Gemv: y has %d elements, op(A) is %dx%d, x has %d", ccall.At(), y.n, m, k, x.n)
	}
	if err := a.check("Gemv", "A"); err != nil {
		return err
	}
	if o.extended() {
		return fmt.Errorf("%s: Gemv: an epilogue is Gemm's", ccall.At())
	}
	cmd := command{kind: cmdGemv, call: call{Call: coll.Call{Type: elem.Of[T](), Dst: y.addr(), Src: a.addr(), N: y.n}, dblk: y.blk, sblk: a.blk}, xblk: x.blk,
		gemm: gemm{third: x.addr(), m: a.Rows, cols: a.Cols, k: x.n, lda: a.Stride, ta: o.TransA}}
	cmd.gemm.scale(&o)
	return s.submit(&cmd, nil)
}

func (m Matrix[T]) check(op, name string) error {
	if m.Rows < 0 || m.Cols < 0 || m.Stride < max(1, m.Cols) || (m.Rows > 0 && (m.Rows-1)*m.Stride+m.Cols > m.n) {
		return fmt.Errorf("%s: %s: %s is %dx%d with rows %d apart, its buffer has %d elements",
			ccall.At(), op, name, m.Rows, m.Cols, m.Stride, m.n)
	}
	return nil
}

func (g *gemm) scale(o *GemmOpt) {
	g.alpha = o.Alpha
	if o.Alpha == 0 {
		g.alpha = 1
	}
	if o.Accumulate {
		g.beta = 1
	}
}

// blas runs a queued Gemm or Gemv on the host.
func (c *command) blas() {
	switch {
	case c.kind == cmdGemv && c.Type == elem.Float32:
		gemvAs[float32](c)
	case c.kind == cmdGemv:
		gemvAs[float64](c)
	case c.Type == elem.Float32:
		gemmAs(c, host.GemmEpilogue[float32])
	case c.Type == elem.Float64:
		gemmAs(c, host.GemmEpilogue[float64])
	case c.Type == elem.BFloat16 && c.gemm.ctyp == elem.Float32:
		gemmAs(c, host.GemmHalfEpilogue[float32, BF16])
	case c.Type == elem.BFloat16:
		gemmAs(c, host.GemmHalfEpilogue[BF16, BF16])
	case c.Type == elem.Float8E4M3:
		gemmAs(c, host.GemmE4M3Epilogue)
	case c.gemm.ctyp == elem.Float32:
		gemmAs(c, host.GemmHalfEpilogue[float32, F16])
	default:
		gemmAs(c, host.GemmHalfEpilogue[F16, F16])
	}
}

func gemvAs[T float32 | float64](c *command) {
	g := &c.gemm
	host.Gemv(g.ta, g.m, g.cols, T(g.alpha), stored[T](c.Src, g.m, g.cols, g.lda), g.lda,
		stored[T](g.third, 1, g.k, g.k), T(g.beta), stored[T](c.Dst, 1, c.N, c.N))
}

// gemmAs calls product, which computes in S, on matrices of T and C.
func gemmAs[S float32 | float64, C float32 | float64 | BF16 | F16, T GemmElem](c *command, product func(ta, tb bool, m, n, k int, alpha S, a []T, lda int, b []T, ldb int, beta S, c []C, ldc int, e host.Epilogue[C])) {
	g := &c.gemm
	ar, ac, br, bc := g.m, g.k, g.k, g.cols
	if g.ta {
		ar, ac = ac, ar
	}
	if g.tb {
		br, bc = bc, br
	}
	alpha := S(g.alpha)
	for i, has := range g.scales {
		if has {
			alpha *= S(ArgSlice[float32](Args{c.args}, argScaleA+i)[0])
		}
	}
	product(g.ta, g.tb, g.m, g.cols, g.k, alpha, stored[T](c.Src, ar, ac, g.lda), g.lda,
		stored[T](g.third, br, bc, g.ldb), g.ldb, S(g.beta), stored[C](c.Dst, g.m, g.cols, g.ldc), g.ldc, hostEpilogue[C](c))
}

// stored is the memory of a matrix whose rows are ld apart.
func stored[T GemmElem](p unsafe.Pointer, rows, cols, ld int) []T {
	if rows == 0 || cols == 0 {
		return nil
	}
	return unsafe.Slice((*T)(p), (rows-1)*ld+cols)
}
