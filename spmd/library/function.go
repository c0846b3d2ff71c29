package library

import (
	"fmt"
	"slices"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/world"
)

// Function is a call into a library that works on streams, such as a plan of cuDNN's. Like a Kernel
// it is one computation in two forms. The form for GPUs is a Go function that has the library
// enqueue its work.
type Function struct{ f exec.Library }

// New declares a call of a library. The name appears in errors.
//
// gpu enqueues the work on the call's stream and returns: it neither blocks nor allocates on the
// device, and keeps no argument. It may be called inside of a capture. host does the same to the
// same arguments in host memory. A function is nil if there is no such form; a call then fails. An
// error of gpu is the error of Call, and an error of host fails the stream. gpu launches kernels
// beside the library's own.
func New(name string, gpu func(Call) error, host func(spmd.Args) error, kernels ...*spmd.Kernel) *Function {
	f := &Function{exec.Library{Name: name, Host: host}}
	for _, k := range kernels {
		f.f.Kernels = append(f.f.Kernels, (*exec.Kernel)(k))
	}
	if gpu != nil {
		f.f.Device = func(q exec.Queue, args []spmd.Arg, work unsafe.Pointer, bytes int) error {
			c := Call{Args: args, Workspace: work, Bytes: bytes, queue: q, f: &f.f}
			if on, ok := q.(exec.Direct); ok { // else kernels are emulated
				c.Stream = on.Stream()
			}
			return gpu(c)
		}
	}
	return f
}

// OnlyKernels says that gpu does nothing but launch kernels, so that --device emulate can run it.
// It returns f.
func (f *Function) OnlyKernels() *Function {
	f.f.OnlyKernels = true
	return f
}

// Writes says which arguments a call writes, as bits. It only reads the others. --check uses that.
// It returns f.
func (f *Function) Writes(args uint64) *Function {
	f.f.Written = args
	return f
}

// Describe has fn give the name of a call for the summary and the trace, such as a product with its
// shape. fn also returns how many bytes the call moves, 0 if that is not known. It is called if a
// summary or a trace is wanted, and returns the same string for equal calls. Describe returns f.
func (f *Function) Describe(fn func(spmd.Args) (name string, bytes int)) *Function {
	f.f.Describe = fn
	return f
}

// Call enqueues the library's work on s with so many bytes of workspace. It fails for freed buffers
// and buffers of another world. The first call on a GPU waits for the collectives in flight, since
// the library may load code. Later ones do not block and allocate nothing.
//
// The workspace belongs to the stream, or to the graph in a capture. The next command that needs a
// workspace overwrites it: such commands of one stream come from one goroutine.
//
//go:noinline
func (f *Function) Call(s *spmd.Stream, workspace int, args ...spmd.Arg) error {
	on := (*world.Stream)(s)
	return on.Rank().CallLibrary(on.Queue(), &f.f, workspace, args)
}

// Close ends the use of f, whose calls have run. Graphs that hold a call of f cannot be launched
// any more. It does nothing else, and returns nil.
func (f *Function) Close() error {
	f.f.Closed.Store(true)
	return nil
}

// Call is one call of a Function on a GPU. It is valid until the function that got it returns.
type Call struct {
	spmd.Args
	Stream    *cuda.Stream   // nil if kernels are emulated
	Workspace unsafe.Pointer // device memory aligned to 256 bytes; nil if none was asked for
	Bytes     int            // of Workspace, as asked for
	queue     exec.Queue
	f         *exec.Library
}

// Pointer returns the address of argument i, a buffer, in the memory of the device; nil if it has
// no elements. It panics if the argument is a number.
func (c Call) Pointer(i int) unsafe.Pointer {
	x := &c.Args[i]
	if x.Kind != exec.BufferArg {
		panic(fmt.Sprintf("argument %d is %v, the call wants a buffer", i, x))
	}
	return x.Ptr
}

// WorkspaceArg returns the workspace as an argument of kernels, a buffer of its bytes.
func (c Call) WorkspaceArg() spmd.Arg {
	return spmd.Arg{Ptr: c.Workspace, N: c.Bytes, Type: elem.Uint8, Kind: exec.BufferArg}
}

// Launch enqueues k, one of the kernels of the Function, on the stream of the call. Its arguments
// are arguments of the call, the workspace, and numbers: other buffers are not protected from being
// freed. It neither blocks nor allocates.
func (c Call) Launch(k *spmd.Kernel, g spmd.Grid, args ...spmd.Arg) error {
	in := (*exec.Kernel)(k)
	if err := exec.CheckGrid(in.Name(), &g); err != nil {
		return err
	}
	if !slices.Contains(c.f.Kernels, in) {
		return fmt.Errorf("%s: Launch of %s: library.New was not given this kernel", ccall.At(), in.Name())
	}
	return calls.LaunchAtOnce(c.queue, in, g, args)
}
