package ccall

import "unsafe"

// Address returns p as a number, for C. For a pointer, cgo checks in every call whether it is Go's
// and what it points to, which takes a tenth of a short call.
//
// p must point to the heap, or to memory that is not Go's: a stack moves when it grows, also on the
// way into C, and a number is unchanged. The caller keeps the memory from the collector until the
// call is over, by runtime.KeepAlive.
func Address(p unsafe.Pointer) uintptr {
	Escape(p)
	return uintptr(p)
}

// Escape makes the compiler put what p points to on the heap: somebody else may keep the address.
func Escape(p unsafe.Pointer) {
	if escaped.always {
		escaped.to = p
	}
}

// Escape4 is Escape of four pointers at the price of one.
func Escape4(a, b, c, d unsafe.Pointer) {
	if escaped.always {
		escaped.to = a
		escaped.to = b
		escaped.to = c
		escaped.to = d
	}
}

// escaped makes the compiler believe that something is kept. Nothing is.
var escaped struct {
	always bool
	to     unsafe.Pointer
}
