package library

import (
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/world"
)

// CheckBuffer returns nil if w can use b. Else the error says why not: b was freed, or is another
// world's.
func CheckBuffer[T spmd.Stored](b spmd.Buffer[T], w *spmd.World) error {
	return inside(w).Rank().CheckBlock(exec.Part(b).Block())
}

// Join returns one buffer of two that follow each other in one allocation, in either order. It
// returns false if they do not.
func Join[T spmd.Stored](a, b spmd.Buffer[T]) (spmd.Buffer[T], bool) {
	whole, ok := exec.Join(exec.Part(a), exec.Part(b))
	return spmd.Buffer[T](whole), ok
}

// BufferOf returns the buffer whose Arg a is; false if a is no buffer of T.
func BufferOf[T spmd.Stored](a spmd.Arg) (b spmd.Buffer[T], ok bool) {
	if a.Type != elem.Of[T]() {
		return b, false
	}
	part, ok := exec.PartOf(&a)
	return spmd.Buffer[T](part), ok
}

// Scratch returns one element of the workspace of s, for its next kernels and all-reduces. These,
// and functions between them, may overwrite the skip elements before it.
func Scratch[T spmd.Elem](s *spmd.Stream, skip int) (spmd.Buffer[T], error) {
	on := (*world.Stream)(s)
	bytes, err := calls.SizeOf(elem.Of[T](), skip+1)
	if err != nil {
		return spmd.Buffer[T]{}, err
	}
	b, err := on.Queue().Scratch(bytes)
	if err != nil {
		return spmd.Buffer[T]{}, err
	}
	b.Owner = on.Rank()
	return spmd.Buffer[T](exec.NewPart(b, skip, 1)), nil
}
