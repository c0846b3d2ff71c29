package exec

import (
	"fmt"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/kernels"
)

// Arg is one argument of a kernel or a library: a buffer, a number of stated width, or a struct.
type Arg struct {
	Block *Block         // that a buffer lies in
	Ptr   unsafe.Pointer // of a buffer; of a copy of a struct
	N     int            // elements of a buffer, bytes of a struct
	Bits  uint64         // value of a number
	Type  elem.Type
	Kind  ArgKind
}

// ArgKind says what an Arg is.
type ArgKind uint8

// The kinds.
const (
	NumberArg ArgKind = iota
	BufferArg
	StructArg
)

// Memory returns the memory at p as an argument, a buffer without a block.
func Memory(p unsafe.Pointer) Arg { return Arg{Ptr: p, Kind: BufferArg} }

// Number returns v as an argument.
func Number[T any](t elem.Type, v T) Arg {
	a := Arg{Type: t}
	*(*T)(unsafe.Pointer(&a.Bits)) = v
	return a
}

// Bytes is the size of the parameter for an argument.
func (a *Arg) Bytes() int {
	switch a.Kind {
	case BufferArg:
		return int(unsafe.Sizeof(a.Ptr))
	case StructArg:
		return a.N
	}
	return a.Type.Size()
}

// Words is the copy of a struct argument.
func (a *Arg) Words() []uint64 { return unsafe.Slice((*uint64)(a.Ptr), (a.N+7)/8) }

// String says what an argument is, for messages.
func (a *Arg) String() string {
	switch a.Kind {
	case BufferArg:
		return fmt.Sprintf("a buffer of %d %v", a.N, a.Type)
	case StructArg:
		return fmt.Sprintf("a struct of %d bytes", a.N)
	}
	return a.Type.String()
}

// Grid is the shape of a launch in blocks and threads.
type Grid struct {
	Blocks, Threads [3]int
	Shared          int // dynamic shared memory of a block, in bytes
	Cluster         [3]int
	Programmatic    bool
}

// Kernel is one computation in two forms: a CUDA source, and a function that does the same on the host.
type Kernel struct {
	Name   string
	Source kernels.Source // of this kernel alone
	Host   func([]Arg) error
	ID     int // from 0, in the order in which the kernels of a process were declared
}
