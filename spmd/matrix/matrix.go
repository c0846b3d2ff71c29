// Package matrix sees buffers as matrices whose rows may lie apart: parts of larger matrices, to be
// copied and transposed. A View of a type that blas takes is an operand of its products:
// blas.Matrix[float32](v).
package matrix

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd"
)

// View is a row-major matrix in a buffer: element (i, j) is element i*Stride + j.
type View[T spmd.Elem] struct {
	spmd.Buffer[T]
	Rows, Cols int
	Stride     int // elements from one row to the next, at least Cols
}

// Of returns the buffer as a (rows, cols) matrix whose rows follow each other.
func Of[T spmd.Elem](b spmd.Buffer[T], rows, cols int) View[T] { return View[T]{b, rows, cols, cols} }

// Part returns the (rows, cols) matrix that begins at (row, col). It shares v's memory. It panics
// if that is out of range.
func (v View[T]) Part(row, rows, col, cols int) View[T] {
	if row < 0 || rows < 0 || row+rows > v.Rows || col < 0 || cols < 0 || col+cols > v.Cols {
		panic(fmt.Sprintf("matrix: Part of %dx%d at (%d, %d) of a matrix of %dx%d", rows, cols, row, col,
			v.Rows, v.Cols))
	}
	p := View[T]{spmd.Buffer[T]{}, rows, cols, v.Stride}
	if n := p.extent(); n > 0 {
		at := row*v.Stride + col
		p.Buffer = v.Buffer.Slice(at, at+n)
	}
	return p
}

// extent returns the number of elements of the buffer from the matrix's first to its last.
func (v *View[T]) extent() int {
	if v.Rows == 0 || v.Cols == 0 {
		return 0
	}
	return (v.Rows-1)*v.Stride + v.Cols
}

func (v *View[T]) check(op, name string) error {
	if v.Rows < 0 || v.Cols < 0 || v.Stride < v.Cols || v.extent() > v.Len() {
		return fmt.Errorf("%s: matrix: %s: %s is %dx%d with rows %d apart, in a buffer of %d elements",
			ccall.At(), op, name, v.Rows, v.Cols, v.Stride, v.Len())
	}
	return nil
}

// overlap reports whether two views share elements, or may. It compares rows of one stride, and
// otherwise whole extents.
func overlap[T spmd.Elem](a, b *View[T]) bool {
	size := uintptr(unsafe.Sizeof(*new(T)))
	from, to, n, m := a.Address(), b.Address(), a.extent(), b.extent()
	if n == 0 || m == 0 || from >= to+uintptr(m)*size || to >= from+uintptr(n)*size {
		return false
	}
	if a.Stride != b.Stride || (from-to)%size != 0 {
		return true
	}
	apart := (int(from)-int(to))/int(size)%a.Stride + a.Stride
	apart %= a.Stride // columns from the first of b to the first of a
	return apart < b.Cols || apart+a.Cols > a.Stride
}

// Copy enqueues dst = src on s. They have one shape, and no elements in common.
func Copy[T spmd.Elem](s *spmd.Stream, dst, src View[T]) error {
	return enqueue(s, "Copy", &dst, &src, src.Rows, src.Cols, false)
}

// Transpose enqueues dst = the transpose of src on s: dst has as many rows as src has columns. They
// have no elements in common.
func Transpose[T spmd.Elem](s *spmd.Stream, dst, src View[T]) error {
	return enqueue(s, "Transpose", &dst, &src, src.Cols, src.Rows, true)
}

func enqueue[T spmd.Elem](s *spmd.Stream, op string, dst, src *View[T], rows, cols int, turn bool) error {
	if err := dst.check(op, "dst"); err != nil {
		return err
	}
	if err := src.check(op, "src"); err != nil {
		return err
	}
	switch {
	case dst.Rows != rows || dst.Cols != cols:
		return fmt.Errorf("%s: matrix: %s: dst is %dx%d, src %dx%d", ccall.At(), op, dst.Rows, dst.Cols,
			src.Rows, src.Cols)
	case overlap(dst, src):
		return fmt.Errorf("%s: matrix: %s: dst and src overlap", ccall.At(), op)
	case src.extent() == 0:
		return nil
	}
	switch unsafe.Sizeof(*new(T)) { // bits are moved
	case 1:
		return move(s, as[uint8](dst), as[uint8](src), turn)
	case 2:
		return move(s, as[spmd.F16](dst), as[spmd.F16](src), turn)
	case 4:
		return move(s, as[uint32](dst), as[uint32](src), turn)
	case 8:
		return move(s, as[uint64](dst), as[uint64](src), turn)
	}
	return move(s, as[complex128](dst), as[complex128](src), turn)
}

func as[U, T spmd.Elem](v *View[T]) View[U] {
	return View[U]{spmd.View[U](v.Buffer), v.Rows, v.Cols, v.Stride}
}

func move[T bits](s *spmd.Stream, dst, src View[T], turn bool) error {
	switch {
	case turn:
		return launchTranspose(s, dst, src)
	case dst.Stride == dst.Cols && src.Stride == src.Cols:
		n := src.extent()
		return spmd.Copy(s, dst.Slice(0, n), src.Slice(0, n))
	}
	return launchCopyRows(s, src.Rows, src.Cols, dst.Buffer, src.Buffer, dst.Stride, src.Stride)
}
