package spmd

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// Library is a call into a library that works on streams, such as a plan of cuDNN's:
// one computation in two forms, as a Kernel, the one for GPUs by a Go function that
// has the library enqueue its work.
type Library struct {
	name    string
	gpu     func(LibraryCall) error
	host    func(Args) error
	kernels []*Kernel
	ready   atomic.Pointer[gpu] // that it has been called on
	closed  atomic.Bool
}

// NewLibrary declares a call of a library. The name appears in errors.
//
// gpu enqueues the work on the call's stream and returns: it neither blocks nor
// allocates on the device, and keeps no argument. It may be called inside of a
// capture. host does the same to the same arguments in host memory. Either is nil
// where there is no such form; a call there is an error. What gpu returns is the
// error of Call, what host returns fails the stream. kernels are those that gpu launches
// beside the library's own.
func NewLibrary(name string, gpu func(LibraryCall) error, host func(Args) error, kernels ...*Kernel) *Library {
	return &Library{name: name, gpu: gpu, host: host, kernels: kernels}
}

// LibraryCall is one call of a Library on a GPU. It is valid until the function that
// was given it returns.
type LibraryCall struct {
	Args
	Stream    *cuda.Stream
	Workspace unsafe.Pointer // device memory aligned to 256 bytes; nil where none was asked for
	Bytes     int            // of Workspace, as asked for
	queue     *gpuQueue
	lib       *Library
}

// Pointer returns the address of argument i, a buffer, in the memory of the device;
// nil where it has no elements. It panics where the argument is a number.
func (c LibraryCall) Pointer(i int) unsafe.Pointer {
	x := &c.list[i]
	if x.kind != bufferArg {
		panic(fmt.Sprintf("argument %d is %v, the call wants a buffer", i, x))
	}
	return x.ptr
}

// Arg returns argument i, for a kernel.
func (c LibraryCall) Arg(i int) Arg { return c.list[i] }

// WorkspaceArg returns the workspace as an argument of kernels, a buffer of its bytes.
func (c LibraryCall) WorkspaceArg() Arg {
	return Arg{ptr: c.Workspace, n: c.Bytes, typ: elem.Uint8, kind: bufferArg}
}

// Launch enqueues k, one of the kernels of the Library, behind what the call has enqueued
// on its stream. The arguments are those of the call, the workspace, and numbers: other
// buffers are not protected from being freed. It neither blocks nor allocates.
func (c LibraryCall) Launch(k *Kernel, g Grid, args ...Arg) error {
	if err := g.check(k.name); err != nil {
		return err
	}
	if !slices.Contains(c.lib.kernels, k) {
		return fmt.Errorf("%s: Launch of %s: NewLibrary was not given this kernel", ccall.At(), k.name)
	}
	return c.queue.launch(k, g, args)
}

// Call enqueues the library's work on s with so many bytes of workspace, which belongs to
// the stream, or to the graph in a capture, and is overwritten by its next command that
// needs some: such commands of one stream come from one goroutine. Freed
// buffers and those of another world are refused. The first call on a GPU waits for the
// collectives in flight, since the library may load code; later ones do not block and
// allocate nothing.
func (l *Library) Call(s *Stream, workspace int, args ...Arg) error {
	switch {
	case workspace < 0:
		return fmt.Errorf("%s: Call of %s: workspace of %d bytes", ccall.At(), l.name, workspace)
	case l.closed.Load():
		return fmt.Errorf("%s: Call of %s: it is closed", ccall.At(), l.name)
	case s.dev != nil && l.gpu == nil:
		return fmt.Errorf("%s: Call of %s: it runs on the host only", ccall.At(), l.name)
	case s.dev == nil && l.host == nil:
		return fmt.Errorf("%s: Call of %s: it runs on GPUs only", ccall.At(), l.name)
	}
	c := command{kind: cmdLibrary, call: call{Call: coll.Call{N: workspace}}, lib: l}
	return s.submit(&c, args)
}

// Close ends the use of l, whose calls have run: what it stands for is about to go. Graphs
// that hold a call of it cannot be launched any more. It does nothing else, and returns nil.
func (l *Library) Close() error {
	l.closed.Store(true)
	return nil
}

// libraryCall hands a call to the library. The arguments are copied, so that those of
// Call stay on its caller's stack.
func (q *gpuQueue) libraryCall(c *command, args []Arg, work unsafe.Pointer) (err error) {
	q.args = append(q.args[:0], args...)
	defer clear(q.args) // not to be kept alive by it
	err = c.lib.gpu(LibraryCall{Args{q.args}, q.h, work, c.N, q, c.lib})
	if of, ok := err.(*ccall.Error); ok { // which has its place in front of the name
		named := *of
		named.Op = c.lib.name + ": " + named.Op
		return &named
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.lib.name, err)
	}
	return nil
}

// open makes the kernels of l ready for its first call, which may load code itself.
func (l *Library) open(g *gpu) error {
	for _, k := range l.kernels {
		if _, err := g.function(k); err != nil {
			return err
		}
	}
	l.ready.Store(g)
	return nil
}

// GPU returns the GPU that the world's buffers and streams are on, for libraries that
// are to be opened for it; nil where that is the host.
func (w *World) GPU() *cuda.Device {
	if w.gpu == nil {
		return nil
	}
	return w.gpu.dev
}

// Quiet waits until no collective that this rank enqueued is in flight. Call it before
// what may wait for the device, as loading code and allocating memory by the driver's own
// means do: a collective there waits for other ranks, which may be waiting for this one.
// On the host there is nothing to wait for.
func (w *World) Quiet() error { return w.quiet() }

// AtClose has Close call fn when the streams are through and the graphs are closed, while
// all else is still there: what was opened for the GPU is closed then. fn makes no
// collective calls. What was registered last is called first. The returned function takes
// fn back.
func (w *World) AtClose(fn func() error) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := &fn
	w.closers = append(w.closers, at)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closers = slices.DeleteFunc(w.closers, func(f *func() error) bool { return f == at })
	}
}

// runClosers calls what AtClose was given. The functions may take themselves back.
func (w *World) runClosers() error {
	w.mu.Lock()
	closers := slices.Clone(w.closers)
	w.closers = nil
	w.mu.Unlock()
	var errs []error
	for _, fn := range slices.Backward(closers) {
		errs = append(errs, (*fn)())
	}
	return errors.Join(errs...)
}
