package transport

import (
	"io"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// Registrar is a Splitter that may carry calls on registered memory in a better way. Memory is
// registered with the transport of each communicator.
type Registrar interface {
	Splitter
	// Registers says that the present library takes memory. Nothing below is called if it does not.
	Registers() bool
	// Version returns the library's. Measurements of one version say nothing of another.
	Version() string
	// AllocMemory returns device memory that Register takes. FreeMemory gives it back when nobody
	// has it registered any more.
	AllocMemory(n int) (unsafe.Pointer, error)
	FreeMemory(p unsafe.Pointer) error
	// Register has the transport know n bytes at p until the Registration is closed. If they are
	// not inUse it may write to them.
	//
	// Collective over the communicator, in a turn; no collective is in flight.
	Register(p unsafe.Pointer, n int, inUse bool) (Registration, error)
	// Symmetric makes a second transport of the communicator; rank is this process's number. The
	// transport has kernels of its own for calls on memory that is registered with it, at the same
	// place on all ranks. It is nil if the library has none.
	//
	// Collective as Register.
	Symmetric(rank int) (Registrar, error)
	// Gains reports whether a transport that Symmetric made has such a kernel for calls of a kind,
	// a type and an operation.
	Gains(k coll.Kind, t elem.Type, op elem.Op) bool
}

// Registration is memory that a transport knows.
type Registration interface {
	io.Closer
	// Used reports whether the library makes use of it. It is the same on all ranks.
	Used() bool
}
