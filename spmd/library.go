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

// Library is a call into a library that works on streams, such as a plan of cuDNN's:
// one computation in two forms, as a Kernel, the one for GPUs by a Go function that
// has the library enqueue its work.
type Library struct{ lib exec.Library }

// NewLibrary declares a call of a library. The name appears in errors.
//
// gpu enqueues the work on the call's stream and returns: it neither blocks nor
// allocates on the device, and keeps no argument. It may be called inside of a
// capture. host does the same to the same arguments in host memory. Either is nil
// where there is no such form; a call there is an error. What gpu returns is the
// error of Call, what host returns fails the stream. kernels are those that gpu launches
// beside the library's own.
func NewLibrary(name string, gpu func(LibraryCall) error, host func(Args) error, kernels ...*Kernel) *Library {
	l := &Library{lib: exec.Library{Name: name}}
	for _, k := range kernels {
		l.lib.Kernels = append(l.lib.Kernels, &k.k)
	}
	if gpu != nil {
		l.lib.Device = func(q exec.Queue, args []Arg, work unsafe.Pointer, bytes int) error {
			c := LibraryCall{Args: Args{args}, Workspace: work, Bytes: bytes, queue: q, lib: l}
			if on, ok := q.(exec.Direct); ok { // else kernels are emulated
				c.Stream = on.Stream()
			}
			return gpu(c)
		}
	}
	if host != nil {
		l.lib.Host = func(args []Arg) error { return host(Args{args}) }
	}
	return l
}

// OnlyKernels says that gpu does nothing but launch kernels, so that --device emulate can run it.
// It returns l.
func (l *Library) OnlyKernels() *Library {
	l.lib.OnlyKernels = true
	return l
}

// Describe has fn say by which name a call stands in the summary and in the trace, such as that of
// a product with its shape, and how many bytes it moves, 0 if that is not known. fn is called when
// either is wanted, and returns the same string for equal calls. Describe returns l.
func (l *Library) Describe(fn func(Args) (name string, bytes int)) *Library {
	l.lib.Describe = func(args []Arg) (string, int) { return fn(Args{args}) }
	return l
}

// LibraryCall is one call of a Library on a GPU. It is valid until the function that
// was given it returns.
type LibraryCall struct {
	Args
	Stream    any            // as the package has it that drives the device: a *cuda.Stream (cuda.StreamOf)
	Workspace unsafe.Pointer // device memory aligned to 256 bytes; nil where none was asked for
	Bytes     int            // of Workspace, as asked for
	queue     exec.Queue
	lib       *Library
}

// Pointer returns the address of argument i, a buffer, in the memory of the device;
// nil where it has no elements. It panics where the argument is a number.
func (c LibraryCall) Pointer(i int) unsafe.Pointer {
	x := &c.list[i]
	if x.Kind != exec.BufferArg {
		panic(fmt.Sprintf("argument %d is %v, the call wants a buffer", i, x))
	}
	return x.Ptr
}

// Arg returns argument i, for a kernel.
func (c LibraryCall) Arg(i int) Arg { return c.list[i] }

// WorkspaceArg returns the workspace as an argument of kernels, a buffer of its bytes.
func (c LibraryCall) WorkspaceArg() Arg {
	return Arg{Ptr: c.Workspace, N: c.Bytes, Type: elem.Uint8, Kind: exec.BufferArg}
}

// Launch enqueues k, one of the kernels of the Library, behind what the call has enqueued
// on its stream. The arguments are those of the call, the workspace, and numbers: other
// buffers are not protected from being freed. It neither blocks nor allocates.
func (c LibraryCall) Launch(k *Kernel, g Grid, args ...Arg) error {
	if err := exec.CheckGrid(k.k.Name, (*exec.Grid)(&g)); err != nil {
		return err
	}
	if !slices.Contains(c.lib.lib.Kernels, &k.k) {
		return fmt.Errorf("%s: Launch of %s: NewLibrary was not given this kernel", ccall.At(), k.k.Name)
	}
	return calls.LaunchAtOnce(c.queue, &k.k, exec.Grid(g), args)
}

// Call enqueues the library's work on s with so many bytes of workspace, which belongs to
// the stream, or to the graph in a capture, and is overwritten by its next command that
// needs some: such commands of one stream come from one goroutine. Freed
// buffers and those of another world are refused. The first call on a GPU waits for the
// collectives in flight, since the library may load code; later ones do not block and
// allocate nothing.
//
//go:noinline
func (l *Library) Call(s *Stream, workspace int, args ...Arg) error {
	return s.w.in.CallLibrary(s.q, &l.lib, workspace, args)
}

// Close ends the use of l, whose calls have run: what it stands for is about to go. Graphs
// that hold a call of it cannot be launched any more. It does nothing else, and returns nil.
func (l *Library) Close() error {
	l.lib.Closed.Store(true)
	return nil
}
