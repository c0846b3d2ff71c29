package exec

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
)

// Operand is the memory of one of a call's buffers, for Apart.
type Operand struct {
	name          string
	at            unsafe.Pointer
	bytes         int
	stride, width int // from one row of a matrix to the next, and of a row, in bytes; 0 of a vector
	writes        bool
	mayBe         uint8 // the operands before whose memory it may have, all of it: a bit for each
}

// Reads returns an operand that a call reads alone.
func Reads(name string, at unsafe.Pointer, bytes int) Operand {
	return Operand{name: name, at: at, bytes: bytes}
}

// Writes returns an operand that a call writes to.
func Writes(name string, at unsafe.Pointer, bytes int) Operand {
	return Operand{name: name, at: at, bytes: bytes, writes: true}
}

// MayBe returns o, which may be the same memory as operand i of the call, all of it.
func (o Operand) MayBe(i int) Operand {
	o.mayBe |= 1 << i
	return o
}

// Rows returns o as a matrix, whose rows of so many bytes are stride bytes apart: operands of one
// stride may lie beside each other.
func (o Operand) Rows(width, stride int) Operand {
	o.width, o.stride = width, stride
	return o
}

// overlaps reports whether two operands share memory, or may.
func (o *Operand) overlaps(p *Operand) bool {
	if !Overlap(o.at, o.bytes, p.at, p.bytes) {
		return false
	}
	if o.stride == 0 || o.stride != p.stride {
		return true
	}
	d := int(uintptr(p.at)-uintptr(o.at)) % o.stride // from the first column of o to that of p
	if d < 0 {
		d += o.stride
	}
	return d < o.width || d+p.width > o.stride
}

// Apart refuses operands that share memory which one of them is written to. An operand may be
// another one only if it says so (MayBe). It is the rule of all calls on buffers.
func Apart(op string, all ...Operand) error {
	for w := range all {
		if !all[w].writes {
			continue
		}
		for i := range all {
			a, b := &all[w], &all[i]
			if i != w && a.overlaps(b) && !(a.is(b) && (a.mayBe>>i|b.mayBe>>w)&1 != 0) {
				return fmt.Errorf("%s: %s: %s, which is written, overlaps %s", ccall.At(), op, a.name, b.name)
			}
		}
	}
	return nil
}

// is reports whether two operands are the same memory.
func (o *Operand) is(p *Operand) bool {
	return o.at == p.at && o.bytes == p.bytes && o.stride == p.stride && o.width == p.width
}
