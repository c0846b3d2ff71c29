package exec

import "unsafe"

// Part is some elements of a block, which the zero Part has not. Programs have it as spmd.Buffer,
// which knows the type of the elements.
type Part struct {
	block *Block
	first int // of the block's elements
	n     int
}

// NewPart returns n elements of a block, from the first on.
func NewPart(b *Block, first, n int) Part { return Part{b, first, n} }

// PartOf returns the memory of an argument that is a buffer. It is false if a is none of a block.
func PartOf(a *Arg) (Part, bool) {
	switch {
	case a.Kind != BufferArg || a.Block == nil && a.N > 0:
		return Part{}, false
	case a.N == 0:
		return Part{block: a.Block}, true
	}
	return Part{a.Block, int(uintptr(a.Ptr)-uintptr(a.Block.Ptr)) / a.Type.Size(), a.N}, true
}

// Block returns the block; nil for the zero Part.
func (p Part) Block() *Block { return p.block }

// First returns the number of the first element in the block.
func (p Part) First() int { return p.first }

// Len returns the number of elements.
func (p Part) Len() int { return p.n }

// Pointer returns the address of the first element, of elements of so many bytes; nil if there is
// none.
func (p Part) Pointer(size int) unsafe.Pointer {
	if p.n == 0 {
		return nil
	}
	return unsafe.Add(p.block.Ptr, p.first*size)
}

// Join returns one part of two that follow each other in one block, in either order. It returns
// false if they do not.
func Join(a, b Part) (Part, bool) {
	if a.block != b.block || b.first+b.n != a.first && a.first+a.n != b.first {
		return Part{}, false
	}
	return Part{a.block, min(a.first, b.first), a.n + b.n}, true
}
