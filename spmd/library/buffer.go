package library

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd"
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

// Scratch returns one element of the workspace of s as an argument of its next kernels. These
// kernels, and functions between them, may overwrite the skip elements before it.
func Scratch[T spmd.Elem](s *spmd.Stream, skip int) (spmd.Arg, error) {
	t := elem.Of[T]()
	p, err := (*world.Stream)(s).Queue().Scratch((skip + 1) * t.Size())
	return spmd.Arg{Ptr: unsafe.Add(p, skip*t.Size()), N: 1, Type: t, Kind: exec.BufferArg}, err
}
