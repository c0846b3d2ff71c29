package main

import "lockstep/spmd"

// These are the axes of a box: planes, rows of a plane, and columns. In two dimensions a
// plane is one row.
const (
	planes = iota
	rows
	columns
)

// box describes a rank's cells for the kernels. box.h has the same fields, and says what they are.
type box struct {
	Dims                 int64
	N                    [3]int64
	Plane, Pitch, Origin int64
	Lo, Hi               [3]int64
	Face                 [6]int64
	First                [7]int64
}

// line is the alignment of rows and faces in bytes: a line of a GPU's cache.
const line = 128

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// newBox returns the box of n cells along each axis, of elements of the given size, with
// neighbours behind some sides.
func newBox(dims int, n [3]int, size int, behind [6]bool) box {
	unit := line / size
	b := box{Dims: int64(dims), Pitch: int64(roundUp(unit+n[columns]+1, unit)), Origin: int64(unit)}
	b.Plane = b.Pitch
	if dims == 3 { // a row of border before the first, and one behind the last
		b.Plane, b.Origin = b.Pitch*int64(n[rows]+2), b.Origin+b.Pitch
	}
	b.Origin += b.Plane
	packed := 0
	for axis := range n {
		b.N[axis], b.Hi[axis] = int64(n[axis]), int64(n[axis])
		cells := n[0] * n[1] * n[2] / n[axis]
		for end := range 2 {
			side := 2*axis + end
			b.Face[side], b.First[side+1] = -1, b.First[side]
			if !behind[side] {
				continue
			}
			b.First[side+1] += int64(cells)
			b.Lo[axis] += int64(1 - end)
			b.Hi[axis] -= int64(end)
			b.Face[side] = 0 // those of planes lie in the field itself
			if axis > planes {
				b.Face[side] = int64(packed)
				packed += roundUp(cells, unit)
			}
		}
	}
	return b
}

// elements returns how many elements a field has, with its borders.
func (b *box) elements() int { return int(b.N[planes]+2) * int(b.Plane) }

// packed returns how many elements the faces of axes 1 and 2 have together. It is at least one, so
// that there is memory.
func (b *box) packed(size int) int {
	n := 1
	for side := 2 * rows; side < 6; side++ {
		if b.Face[side] >= 0 {
			n = max(n, int(b.Face[side])+roundUp(b.cells(side), line/size))
		}
	}
	return n
}

// cells returns how many cells the face of a side has, if it has a neighbour.
func (b *box) cells(side int) int { return int(b.First[side+1] - b.First[side]) }

// inside returns how many rows have cells that need nothing from another rank, or 0.
func (b *box) inside() int {
	n := 1
	for axis := range b.N {
		if b.Hi[axis] <= b.Lo[axis] {
			return 0
		}
		if axis != columns {
			n *= int(b.Hi[axis] - b.Lo[axis])
		}
	}
	return n
}

// planeOf returns the cells of plane z of a field: a run of memory from the first to the last. -1
// and N are the planes of the border.
func planeOf[T number](b *box, f spmd.Buffer[T], z int) spmd.Buffer[T] {
	return planesOf(b, f, int64(z), 1)
}

// planesOf is planeOf for n planes from z on.
func planesOf[T number](b *box, f spmd.Buffer[T], z, n int64) spmd.Buffer[T] {
	at := int(b.Origin + z*b.Plane)
	return f.Slice(at, at+b.span(n))
}

// span returns how many elements there are from the first cell of n planes to the last.
func (b *box) span(n int64) int { return int((n-1)*b.Plane + (b.N[rows]-1)*b.Pitch + b.N[columns]) }
