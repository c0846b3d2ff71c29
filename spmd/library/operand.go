package library

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/exec"
)

// Operand is the memory of one of a call's buffers, for Apart. o.MayBe(i) is o, which may be the
// same memory as operand i of the call. o.Rows(width, stride) is o as a matrix, in bytes: operands
// of one stride may lie beside each other.
type Operand = exec.Operand

// Reads returns an operand that a call reads alone.
func Reads[T spmd.Stored](name string, b spmd.Buffer[T]) Operand {
	return exec.Reads(name, exec.Part(b).Pointer(int(unsafe.Sizeof(*new(T)))), b.Bytes())
}

// Writes returns an operand that a call writes to.
func Writes[T spmd.Stored](name string, b spmd.Buffer[T]) Operand {
	return exec.Writes(name, exec.Part(b).Pointer(int(unsafe.Sizeof(*new(T)))), b.Bytes())
}

// Apart refuses operands of op that share memory which one of them is written to, unless one may be
// the other. A call on buffers asks it before anything moves.
func Apart(op string, all ...Operand) error { return exec.Apart(op, all...) }

// BufferOf returns the buffer whose Arg a is; false if a is no buffer of T.
func BufferOf[T spmd.Stored](a spmd.Arg) (b spmd.Buffer[T], ok bool) {
	if a.Type != elem.Of[T]() {
		return b, false
	}
	part, ok := exec.PartOf(&a)
	return spmd.Buffer[T](part), ok
}
