package blas

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Elem is the set of element types that products take.
type Elem interface {
	float32 | float64 | spmd.BF16 | spmd.F16 | spmd.F8E4M3 | spmd.F8E5M2
}

// Matrix is a row-major matrix in a buffer: element (i, j) is element i*Stride + j.
type Matrix[T spmd.Stored] struct {
	spmd.Buffer[T]
	Rows, Cols int
	Stride     int // elements from one row to the next, at least Cols
}

// MatrixOf returns the buffer as a (rows, cols) matrix, row-major and packed.
func MatrixOf[T spmd.Stored](b spmd.Buffer[T], rows, cols int) Matrix[T] {
	return Matrix[T]{b, rows, cols, cols}
}

// Options say how Gemm and Gemv use their operands, and what Gemm does beside storing the product.
// The zero value is the plain product.
//
// The operands from Bias on are buffers of C's type, given by Buffer.Arg; the zero Arg is none.
// They are an epilogue of the product. It costs less than a kernel behind it, since the product is
// in registers already. But BiasGrad is a pass over C, and RowSums one over A. Possible are
//
//	Bias, Residual, or both
//	Bias with Accumulate
//	GELU, with or without Bias
//	DGELU, with or without BiasGrad
//	RowSums, with or without Accumulate
//
// all with TransA, TransB and Alpha; other combinations are refused. Gemv takes none. A matrix
// among them is (m, n) with its rows as far apart as C's. A result (C, GELU, BiasGrad, RowSums)
// that overlaps any other operand is refused. Matrices whose rows are equally far apart in bytes
// may lie beside each other.
type Options struct {
	TransA, TransB bool    // use the transpose of A, of B
	Alpha          float64 // factor of the product; 0 means 1
	Accumulate     bool    // add to C, or y, instead of replacing it

	Bias     spmd.Arg // n elements, added to every row
	Residual spmd.Arg // matrix, added; it is read, not written
	GELU     spmd.Arg // matrix: receives x, the C without GELU; C is gelu(x)
	DGELU    spmd.Arg // matrix x, read: C is multiplied by the derivative of gelu at x
	BiasGrad spmd.Arg // n elements: receives the sums of C's columns
	// RowSums, of m elements, receives the sums of the rows of op(A), without Alpha. With dW = dY'
	// X, where A is dY, that is the gradient of the bias. It is replaced, with Accumulate too,
	// which is about C alone.
	RowSums spmd.Arg

	// ScaleA and ScaleB are the factors of A and B, if these are 8-bit floats: float32 buffers of
	// one element, given by Buffer.Arg, aligned to 16 bytes on a GPU. The zero Arg is 1. They are
	// read when the product runs, so that a replay of a graph takes the value of then. If A holds
	// values times a scale, ScaleA is 1 over it.
	ScaleA, ScaleB spmd.Arg
	// Batch makes C, A and B stacks of so many matrices each; Gemm makes their products one by one.
	// A stack has the rows of all its matrices. 0 is 1. Its only epilogue is Residual, a stack as C
	// is; and it has no 8-bit floats.
	Batch int
	// FastAccum sums products of 8-bit floats in the fewer bits that a GPU does fastest, a rounding
	// of about 2^-13 each, towards zero: long sums of small numbers beside a large one lose them.
	// Elsewhere it changes nothing.
	FastAccum bool
}

// Gemm enqueues C = alpha op(A) op(B), or C += alpha op(A) op(B), on s. op(A) is (m, k), op(B) is
// (k, n), and C is (m, n). Gemm refuses a C that overlaps A or B, shapes that do not fit, buffers
// too small for their shape, freed buffers and buffers of another world. If k is 0 the product is.
// It uses scratch memory of the stream, as library.Function.Call does.
//
// C has the type of A and B, or is float32 if these are BF16 or F16; another pair is refused.
// float32 is computed in float32. BF16 and F16 are multiplied and summed in float32, C included,
// and rounded once. On a GPU a BF16 or F16 value that is added to, or that gelu is taken of, may be
// rounded twice.
//
// gelu is GPT-2's, gelu(x) = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. In BF16 and F16 on a
// GPU it is within the rounding of the type. In float32 all is computed to float32's accuracy.
//
// A and B have one type, but A of F8E5M2 goes with B of F8E4M3. 8-bit floats have a C of BF16,
// TransB and not TransA, and no RowSums. k, n, the strides, and the addresses of A, B and C in
// bytes, are multiples of 16: tensor cores take no others. See SupportsF8 for where there are any.
//
// Source: BLAS, sgemm and dgemm; cublasLt.h, cublasLtMatmul, cublasLtEpilogue_t.
func Gemm[C, A, B Elem](s *spmd.Stream, c Matrix[C], a Matrix[A], b Matrix[B], o Options) error {
	typ, btyp, ctyp := elem.Of[A](), elem.Of[B](), elem.Of[C]()
	eight := typ.Eight()
	if eight && btyp != elem.Float8E4M3 || !eight && btyp != typ {
		return fmt.Errorf("%s: blas.Gemm: A is %v, B is %v", ccall.At(), typ, btyp)
	}
	if eight && ctyp != elem.BFloat16 || !eight && ctyp != typ && !(typ.Half() && ctyp == elem.Float32) {
		return fmt.Errorf("%s: blas.Gemm: C is %v, A and B are %v", ccall.At(), ctyp, typ)
	}
	batch := max(1, o.Batch)
	if o.Batch < 0 || batch > 1<<30 || a.Rows%batch != 0 || b.Rows%batch != 0 || c.Rows%batch != 0 ||
		batch > 1 && (eight || !o.batches()) {
		return fmt.Errorf("%s: blas.Gemm: a Batch of %d: A of %v has %d rows, B %d, C %d, which it divides; "+
			"and its epilogue is Residual alone", ccall.At(), o.Batch, typ, a.Rows, b.Rows, c.Rows)
	}
	m, k := a.Rows/batch, a.Cols
	if o.TransA {
		m, k = k, m
	}
	kb, n := b.Rows/batch, b.Cols
	if o.TransB {
		kb, n = n, kb
	}
	if k != kb || c.Rows/batch != m || c.Cols != n {
		return fmt.Errorf("%s: blas.Gemm: C is %dx%d, op(A) %dx%d, op(B) %dx%d", ccall.At(), c.Rows/batch,
			c.Cols, m, k, kb, n)
	}
	if err := c.check("blas.Gemm", "C"); err != nil {
		return err
	}
	if err := a.check("blas.Gemm", "A"); err != nil {
		return err
	}
	if err := b.check("blas.Gemm", "B"); err != nil {
		return err
	}
	p := product{typ: typ, ctyp: ctyp, batch: batch, m: m, k: k, n: n, lda: max(1, a.Stride), ldb: max(1, b.Stride),
		ldc: max(1, c.Stride), ta: o.TransA, tb: o.TransB, fast: eight && o.FastAccum}
	p.scale(&o)
	if eight {
		if err := p.checkEight(s.World(), &o, [3]uintptr{c.Address(), a.Address(), b.Address()}); err != nil {
			return err
		}
	}
	var args [gemmArgs]spmd.Arg
	args[argC], args[argA], args[argB] = c.arg(), a.arg(), b.arg()
	list, all := args[:plainArgs], [gemmOperands]library.Operand{c.writes("C"), a.reads("A"), b.reads("B")}
	operands := all[:3]
	if o.extended() {
		if err := epilogue(&p, &o, c, &args, &all); err != nil {
			return err
		}
		list, operands = args[:], all[:]
	}
	if err := library.Apart("blas.Gemm", operands...); err != nil {
		return err
	}
	p.encode(&args)
	h := handles.Of(s.World())
	if err := h.openGemm(); err != nil {
		return err
	}
	return h.gemm.Call(s, p.workspace(), list...)
}

// checkEight refuses products of 8-bit floats that tensor cores do not do, on the host too: a
// program of the host is to run on a GPU. at are the addresses of C, A and B.
func (p *product) checkEight(w *spmd.World, o *Options, at [3]uintptr) error {
	switch misses := (p.k | p.n | p.lda | p.ldb | p.ldc | int(at[0]|at[1]|at[2])) % 16; {
	case !SupportsF8(w):
		return fmt.Errorf("%s: blas.Gemm of %v: %s has no tensor cores for it: they came with compute capability 8.9",
			ccall.At(), p.typ, w.Device())
	case p.ta || !p.tb:
		return fmt.Errorf("%s: blas.Gemm of %v: TransA is %v and TransB %v: it takes A as it is and B transposed",
			ccall.At(), p.typ, p.ta, p.tb)
	case o.RowSums != spmd.Arg{}:
		return fmt.Errorf("%s: blas.Gemm of %v has no RowSums", ccall.At(), p.typ)
	case misses != 0:
		return fmt.Errorf("%s: blas.Gemm of %v: C is %dx%d over %d, strides %d, %d, %d, addresses %#x, %#x, "+
			"%#x: it takes widths, strides and addresses that are multiples of 16",
			ccall.At(), p.typ, p.m, p.n, p.k, p.ldc, p.lda, p.ldb, at[0], at[1], at[2])
	}
	return nil
}

// SupportsF8 reports whether Gemm takes 8-bit floats in a world: the host does, and GPUs from
// compute capability 8.9 on.
func SupportsF8(w *spmd.World) bool {
	if w.OnHost() {
		return true
	}
	major, minor := library.GPU(w).Capability()
	return 10*major+minor >= 89
}

// Gemv enqueues y = alpha op(A) x, or y += alpha op(A) x, on s. It
// refuses a y that overlaps A or x, and what Gemm refuses. Source: BLAS, sgemv and dgemv.
func Gemv[T float32 | float64](s *spmd.Stream, y spmd.Buffer[T], a Matrix[T], x spmd.Buffer[T], o Options) error {
	m, k := a.Rows, a.Cols
	if o.TransA {
		m, k = k, m
	}
	if y.Len() != m || x.Len() != k {
		return fmt.Errorf("%s: blas.Gemv: y has %d elements, op(A) is %dx%d, x has %d",
			ccall.At(), y.Len(), m, k, x.Len())
	}
	if err := a.check("blas.Gemv", "A"); err != nil {
		return err
	}
	if o.extended() {
		return fmt.Errorf("%s: blas.Gemv: an epilogue is Gemm's", ccall.At())
	}
	if o.Batch != 0 {
		return fmt.Errorf("%s: blas.Gemv: a batch is Gemm's", ccall.At())
	}
	if err := library.Apart("blas.Gemv", library.Writes("y", y), a.reads("A"), library.Reads("x", x)); err != nil {
		return err
	}
	p := product{typ: elem.Of[T](), batch: 1, m: a.Rows, n: a.Cols, lda: max(1, a.Stride), ta: o.TransA}
	p.scale(&o)
	h := handles.Of(s.World())
	if err := h.openGemv(); err != nil {
		return err
	}
	var args [gemmArgs]spmd.Arg
	args[argC], args[argA], args[argB] = y.Arg(), a.arg(), x.Arg()
	p.encode(&args)
	return h.gemv.Call(s, ownWorkspace, args[:plainArgs]...)
}

// arg returns the matrix as an argument: the elements from its first to its last.
func (m *Matrix[T]) arg() spmd.Arg { return m.Slice(0, m.extent()).Arg() }

func (m Matrix[T]) check(op, name string) error {
	last, ok := elem.Product(max(0, m.Rows-1), m.Stride)
	if m.Rows < 0 || m.Cols < 0 || m.Stride < m.Cols || !ok ||
		m.Rows > 0 && m.Cols > 0 && (m.Cols > m.Len() || last > m.Len()-m.Cols) {
		return fmt.Errorf("%s: %s: %s is %dx%d with rows %d apart, its buffer has %d elements",
			ccall.At(), op, name, m.Rows, m.Cols, m.Stride, m.Len())
	}
	return nil
}
