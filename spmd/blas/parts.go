package blas

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Part returns the (rows, cols) matrix that begins at (row, col). It shares m's memory. It panics
// if that is out of range, or m out of its buffer.
func (m Matrix[T]) Part(row, rows, col, cols int) Matrix[T] {
	if row < 0 || rows < 0 || rows > m.Rows-row || col < 0 || cols < 0 || cols > m.Cols-col {
		panic(fmt.Sprintf("blas: Part of %dx%d at (%d, %d) of a matrix of %dx%d", rows, cols, row, col,
			m.Rows, m.Cols))
	}
	if err := m.check("Part", "the matrix"); err != nil {
		panic(err)
	}
	p := Matrix[T]{Rows: rows, Cols: cols, Stride: m.Stride}
	if rows > 0 && cols > 0 {
		at := row*m.Stride + col
		p.Buffer = m.Buffer.Slice(at, at+(rows-1)*m.Stride+cols)
	}
	return p
}

func (m *Matrix[T]) extent() int { return extent(m.Rows, m.Cols, m.Stride) }

// reads and writes are a matrix as an operand.
func (m *Matrix[T]) reads(name string) library.Operand {
	return inRows(library.Reads(name, m.Slice(0, m.extent())), m)
}

func (m *Matrix[T]) writes(name string) library.Operand {
	return inRows(library.Writes(name, m.Slice(0, m.extent())), m)
}

// inRows returns o, memory in rows as those of m.
func inRows[T spmd.Stored](o library.Operand, m *Matrix[T]) library.Operand {
	size := int(unsafe.Sizeof(*new(T)))
	return o.Rows(m.Cols*size, m.Stride*size)
}

// Copy enqueues dst = src on s. They have one shape, and no elements in common.
func Copy[T spmd.Stored](s *spmd.Stream, dst, src Matrix[T]) error {
	return move(s, "blas.Copy", &dst, &src, src.Rows, src.Cols, straight)
}

// Transpose enqueues dst = the transpose of src on s: dst has as many rows as src has columns. They
// have no elements in common.
func Transpose[T spmd.Stored](s *spmd.Stream, dst, src Matrix[T]) error {
	return move(s, "blas.Transpose", &dst, &src, src.Cols, src.Rows, turned)
}

// The turn of a move.
const straight, turned = false, true

func move[T spmd.Stored](s *spmd.Stream, op string, dst, src *Matrix[T], rows, cols int, turn bool) error {
	if err := dst.check(op, "dst"); err != nil {
		return err
	}
	if err := src.check(op, "src"); err != nil {
		return err
	}
	if dst.Rows != rows || dst.Cols != cols {
		return fmt.Errorf("%s: %s: dst is %dx%d, src %dx%d", ccall.At(), op, dst.Rows, dst.Cols,
			src.Rows, src.Cols)
	}
	if err := library.Apart(op, dst.writes("dst"), src.reads("src")); err != nil || src.extent() == 0 {
		return err
	}
	switch unsafe.Sizeof(*new(T)) { // bits are moved
	case 1:
		return moveBits(s, bitsOf[uint8](dst), bitsOf[uint8](src), turn)
	case 2:
		return moveBits(s, bitsOf[spmd.F16](dst), bitsOf[spmd.F16](src), turn)
	case 4:
		return moveBits(s, bitsOf[uint32](dst), bitsOf[uint32](src), turn)
	case 8:
		return moveBits(s, bitsOf[uint64](dst), bitsOf[uint64](src), turn)
	}
	return moveBits(s, bitsOf[complex128](dst), bitsOf[complex128](src), turn)
}

func bitsOf[U, T spmd.Stored](m *Matrix[T]) Matrix[U] {
	return Matrix[U]{spmd.View[U](m.Buffer), m.Rows, m.Cols, m.Stride}
}

func moveBits[T sized](s *spmd.Stream, dst, src Matrix[T], turn bool) error {
	switch {
	case turn:
		return launchTranspose(s, dst, src)
	case dst.Stride == dst.Cols && src.Stride == src.Cols:
		n := src.extent()
		return spmd.Copy(s, dst.Slice(0, n), src.Slice(0, n))
	}
	return launchCopyRows(s, src.Rows, src.Cols, dst.Buffer, src.Buffer, dst.Stride, src.Stride)
}
