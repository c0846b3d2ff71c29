package ccall

import "unsafe"

// Address is p as a number, for C. Of a pointer cgo looks up in every call whether it is Go's and
// what it points to, at a tenth of the price of a short call.
//
// What p points to is on the heap, or not Go's: a stack moves when it grows, also on the way
// into C, and a number stays as it is. The caller keeps it from the collector until the call is
// over, by runtime.KeepAlive.
func Address(p unsafe.Pointer) uintptr {
	Escape(p)
	return uintptr(p)
}

// Escape has the compiler put what p points to on the heap: somebody else gets to know where it is.
func Escape(p unsafe.Pointer) {
	if escaped.always {
		escaped.to = p
	}
}

// Escape4 is Escape of four at the price of one.
func Escape4(a, b, c, d unsafe.Pointer) {
	if escaped.always {
		escaped.to = a
		escaped.to = b
		escaped.to = c
		escaped.to = d
	}
}

// escaped lets the compiler believe that something is kept. Nothing is.
var escaped struct {
	always bool
	to     unsafe.Pointer
}
