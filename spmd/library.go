package spmd

import (
	"fmt"
	"slices"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
)

// Library is a call into a library that works on streams, such as a plan of cuDNN's. Like a Kernel
// it is one computation in two forms. The form for GPUs is a Go function that has the library
// enqueue its work.
type Library struct{ lib exec.Library }

// NewLibrary declares a call of a library. The name appears in errors.
//
// gpu enqueues the work on the call's stream and returns: it neither blocks nor allocates on the
// device, and keeps no argument. It may be called inside of a capture. host does the same to the
// same arguments in host memory. A function is nil if there is no such form; a call then fails. An
// error of gpu is the error of Call, and an error of host fails the stream. gpu launches kernels
// beside the library's own.
func NewLibrary(name string, gpu func(LibraryCall) error, host func(Args) error, kernels ...*Kernel) *Library {
	l := &Library{lib: exec.Library{Name: name, Host: host}}
	for _, k := range kernels {
		l.lib.Kernels = append(l.lib.Kernels, k.in())
	}
	if gpu != nil {
		l.lib.Device = func(q exec.Queue, args []Arg, work unsafe.Pointer, bytes int) error {
			c := LibraryCall{Args: args, Workspace: work, Bytes: bytes, queue: q, lib: l}
			if on, ok := q.(exec.Direct); ok { // else kernels are emulated
				c.Stream = on.Stream()
			}
			return gpu(c)
		}
	}
	return l
}

// OnlyKernels says that gpu does nothing but launch kernels, so that --device emulate can run it.
// It returns l.
func (l *Library) OnlyKernels() *Library {
	l.lib.OnlyKernels = true
	return l
}

// Describe has fn give the name of a call for the summary and the trace, such as a product with its
// shape. fn also returns how many bytes the call moves, 0 if that is not known. It is called if a
// summary or a trace is wanted, and returns the same string for equal calls. Describe returns l.
func (l *Library) Describe(fn func(Args) (name string, bytes int)) *Library {
	l.lib.Describe = fn
	return l
}

// LibraryCall is one call of a Library on a GPU. It is valid until the function that got it
// returns.
type LibraryCall struct {
	Args
	Stream    any            // of the package that drives the device: a *cuda.Stream (cuda.StreamOf)
	Workspace unsafe.Pointer // device memory aligned to 256 bytes; nil if none was asked for
	Bytes     int            // of Workspace, as asked for
	queue     exec.Queue
	lib       *Library
}

// Pointer returns the address of argument i, a buffer, in the memory of the device; nil if it has
// no elements. It panics if the argument is a number.
func (c LibraryCall) Pointer(i int) unsafe.Pointer {
	x := &c.Args[i]
	if x.Kind != exec.BufferArg {
		panic(fmt.Sprintf("argument %d is %v, the call wants a buffer", i, x))
	}
	return x.Ptr
}

// Arg returns argument i, for a kernel.
func (c LibraryCall) Arg(i int) Arg { return c.Args[i] }

// WorkspaceArg returns the workspace as an argument of kernels, a buffer of its bytes.
func (c LibraryCall) WorkspaceArg() Arg {
	return Arg{Ptr: c.Workspace, N: c.Bytes, Type: elem.Uint8, Kind: exec.BufferArg}
}

// Launch enqueues k, one of the kernels of the Library, on the stream of the call. Its arguments
// are arguments of the call, the workspace, and numbers: other buffers are not protected from being
// freed. It neither blocks nor allocates.
func (c LibraryCall) Launch(k *Kernel, g Grid, args ...Arg) error {
	if err := exec.CheckGrid(k.in().Name(), &g); err != nil {
		return err
	}
	if !slices.Contains(c.lib.lib.Kernels, k.in()) {
		return fmt.Errorf("%s: Launch of %s: NewLibrary was not given this kernel", ccall.At(), k.in().Name())
	}
	return calls.LaunchAtOnce(c.queue, k.in(), g, args)
}

// Call enqueues the library's work on s with so many bytes of workspace. It fails for freed buffers
// and buffers of another world. The first call on a GPU waits for the collectives in flight, since
// the library may load code. Later ones do not block and allocate nothing.
//
// The workspace belongs to the stream, or to the graph in a capture. The next command that needs a
// workspace overwrites it: such commands of one stream come from one goroutine.
//
//go:noinline
func (l *Library) Call(s *Stream, workspace int, args ...Arg) error {
	return s.rank().CallLibrary(s.queue(), &l.lib, workspace, args)
}

// Close ends the use of l, whose calls have run. Graphs that hold a call of l cannot be launched
// any more. It does nothing else, and returns nil.
func (l *Library) Close() error {
	l.lib.Closed.Store(true)
	return nil
}
