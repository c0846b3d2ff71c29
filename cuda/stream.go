package cuda

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Stream is a queue of the device: its commands run in order, beside the other streams'.
type Stream struct {
	d      *Device
	h      unsafe.Pointer
	locked bool        // the capturing goroutine is tied to its thread
	joined atomic.Bool // the next launch also waits for an event
}

// NewStream makes a stream that does not wait for the legacy default stream. Priorities gives the
// range of priorities; others are cut to that range. Source: cuda.h, cuStreamCreateWithPriority
// with CU_STREAM_NON_BLOCKING.
func (d *Device) NewStream(priority int) (*Stream, error) {
	h, status := sysStreamCreate(d, max(min(priority, d.least), d.greatest))
	if status != 0 {
		return nil, check("cuStreamCreateWithPriority", status)
	}
	return &Stream{d: d, h: h}, nil
}

// Handle returns the CUstream, valid until Close.
func (s *Stream) Handle() unsafe.Pointer { return s.h }

// Device returns the device that the stream belongs to.
func (s *Stream) Device() *Device { return s.d }

// Close gives the stream back at once; its commands still run. A second Close does nothing. Source:
// cuda.h, cuStreamDestroy.
func (s *Stream) Close() error {
	if s.h == nil {
		return nil
	}
	status := sysStreamDestroy(s)
	s.h = nil
	s.unlock()
	return check("cuStreamDestroy", status)
}

// Query reports whether all work enqueued on s has finished. Source: cuda.h, cuStreamQuery.
func (s *Stream) Query() (done bool, err error) {
	status := sysStreamQuery(s)
	if status == int(ErrNotReady) {
		return false, nil
	}
	return status == 0, check("cuStreamQuery", status)
}

// Synchronize blocks until all work enqueued on s has finished. Source: cuda.h,
// cuStreamSynchronize.
func (s *Stream) Synchronize() error {
	return check("cuStreamSynchronize", sysStreamSynchronize(s))
}

// Wait makes later commands on s wait for the last record of e; the host does not wait. An event
// that was never recorded is no reason to wait. Source: cuda.h, cuStreamWaitEvent.
func (s *Stream) Wait(e *Event) error {
	s.joined.Store(true)
	return check("cuStreamWaitEvent", sysStreamWait(s, e))
}

// WaitValue makes later commands on s wait until the 32-bit word at p is v, or has passed it:
// counting modulo 2^32, until word-v is not negative. p is memory of MallocHost, which the host may
// write, or of Malloc. Source: cuda.h, cuStreamWaitValue32 with CU_STREAM_WAIT_VALUE_GEQ.
func (s *Stream) WaitValue(p unsafe.Pointer, v uint32) error {
	return check("cuStreamWaitValue32", sysWaitValue(s, p, v))
}

// WriteValue enqueues on s that the 32-bit word at p becomes v, after all memory that s has written
// before. Source: cuda.h, cuStreamWriteValue32.
func (s *Stream) WriteValue(p unsafe.Pointer, v uint32) error {
	return check("cuStreamWriteValue32", sysWriteValue(s, p, v))
}

// Copy enqueues a copy of bytes bytes on s, between device, pinned and managed memory of any kind.
// The two must not overlap. The host may touch neither until s has passed it. Source: cuda.h,
// cuMemcpyAsync.
func (s *Stream) Copy(dst, src unsafe.Pointer, bytes int) error {
	if bytes <= 0 {
		return size("cuMemcpyAsync", bytes)
	}
	return check("cuMemcpyAsync", sysCopy(s, dst, src, bytes))
}

// Fill enqueues on s that n elements of size bytes from dst on get the low bytes of v. size is 1, 2
// or 4, and dst a multiple of it. Source: cuda.h, cuMemsetD8Async, cuMemsetD16Async,
// cuMemsetD32Async.
func (s *Stream) Fill(dst unsafe.Pointer, size int, v uint64, n int) error {
	op := "cuMemsetD32Async"
	switch size {
	case 1:
		op = "cuMemsetD8Async"
	case 2:
		op = "cuMemsetD16Async"
	case 4:
	default:
		return refused(op, "elements of %d bytes, want 1, 2 or 4", size)
	}
	if n < 0 {
		return refused(op, "%d elements", n)
	}
	if n == 0 {
		return nil
	}
	return check(op, sysFill(s, dst, size, uint32(v), n))
}

// Shape is how a kernel is launched, in blocks and threads.
type Shape struct {
	Blocks, Threads [3]int
	Shared          int // dynamic shared memory of a block, in bytes
	// Cluster is the blocks of a thread block cluster, which divide Blocks; zero for none. Clusters
	// exist from compute capability 9.0 on: before, the launch fails.
	Cluster [3]int
	// Programmatic lets the GPU start the kernel before the previous one in the stream is over. The
	// kernel starts when there is room and all blocks of the previous one have called start_next or
	// ended. Every thread of the kernel calls wait_previous (spmd.cuh) before it touches memory
	// that earlier work touches.
	//
	// The launch is ordinary before compute capability 9.0, and for the first kernel behind a Wait:
	// see LaunchEarly. Source: CUDA C++ Programming Guide, Programmatic Dependent Launch.
	Programmatic bool
}

// Launch enqueues f on s with a grid of blocks times threads, and shared bytes of dynamic shared
// memory. Each argument stands in the low bytes of its word. The driver reads as many words as the
// kernel has parameters, and cannot check their number. Source: cuda.h, cuLaunchKernel.
func (s *Stream) Launch(f *Function, blocks, threads [3]int, shared int, args []uint64) error {
	return s.launch(f, &Shape{Blocks: blocks, Threads: threads, Shared: shared}, args, nil, len(args))
}

// LaunchEarly is Launch of a kernel that the device may start before the kernel ahead of it on s is
// over: once every block of that one has executed griddepcontrol.launch_dependents or ended. So the
// launch takes no time of its own.
//
// Each thread of f must execute griddepcontrol.wait before it touches memory that earlier work
// touches. It returns when all kernels ahead are over and their writes are seen. f waits for
// copies, fills and events on s as ever, and later commands wait for f.
//
// It is Launch if the device or the driver cannot do that: before compute capability 9.0 or CUDA
// 12.3. It is also Launch for a function that Load was not called for, or that was compiled for an
// older architecture without griddepcontrol. It is Launch for the first kernel behind a Wait, too.
// In a capture several kernels may be ahead of that one, and the attribute is defined for one.
// Source: cuda.h, cuLaunchKernelEx with CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION; PTX
// ISA, griddepcontrol.
func (s *Stream) LaunchEarly(f *Function, blocks, threads [3]int, shared int, args []uint64) error {
	shape := Shape{Blocks: blocks, Threads: threads, Shared: shared, Programmatic: true}
	return s.launch(f, &shape, args, nil, len(args))
}

// LaunchShape is Launch with everything that a launch can have. Argument i begins at word at[i] of
// words, so that one may be longer than a word, as a struct is. If at is nil it is word i. Source:
// cuda.h, cuLaunchKernelEx with CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION.
func (s *Stream) LaunchShape(f *Function, g *Shape, words []uint64, at []uint32) error {
	n := len(words)
	if at != nil {
		n = len(at)
		for _, i := range at {
			if int(i) >= len(words) {
				return refused("cuLaunchKernel", "%s: an argument begins at word %d of %d", f.name, i, len(words))
			}
		}
	}
	return s.launch(f, g, words, at, n)
}

func (s *Stream) launch(f *Function, g *Shape, words []uint64, at []uint32, n int) error {
	op := "cuLaunchKernel"
	joined := s.joined.Load()
	early := g.Programmatic && f.early && !joined
	if early || g.Cluster[0] != 0 {
		op = "cuLaunchKernelEx"
	}
	all := g.Shared
	for i := range 3 {
		all |= g.Blocks[i] | g.Threads[i] | g.Cluster[i]
	}
	if all < 0 || all > math.MaxInt32 {
		return refused(op, "%s", f.launchText(g))
	}
	if g.Cluster[0] != 0 && !sysHasLaunchEx() {
		return refused(op, "%s: the driver knows no clusters", f.launchText(g))
	}
	if n > maxArgs {
		return refused(op, "%s: %d arguments, at most %d", f.name, n, maxArgs)
	}
	if status := sysLaunch(s, f, g, early, words, at, n); status != 0 {
		return failed(op, status, f.launchText(g))
	}
	if joined {
		s.joined.Store(false)
	}
	return nil
}

// callbacks are the open ones. The driver knows a callback by a number: no pointer of Go's stays in
// C, and one that comes after Close finds nothing.
var callbacks struct {
	sync.RWMutex
	next uintptr
	byID map[uintptr]func()
}

// Callback is a Go function that streams call.
type Callback struct{ id uintptr }

// NewCallback makes fn callable from streams, any number of times and from graphs too, until Close.
// fn runs on a thread of the driver's and holds the stream up. It must not call CUDA, and should do
// no more than signal.
func NewCallback(fn func()) *Callback {
	callbacks.Lock()
	defer callbacks.Unlock()
	if callbacks.byID == nil {
		callbacks.byID = make(map[uintptr]func())
	}
	callbacks.next++
	callbacks.byID[callbacks.next] = fn
	return &Callback{callbacks.next}
}

// Close forgets the function: a stream that still comes to the callback goes on without it. A
// second Close does nothing.
func (c *Callback) Close() {
	callbacks.Lock()
	defer callbacks.Unlock()
	delete(callbacks.byID, c.id)
}

func runCallback(id uintptr) {
	callbacks.RLock()
	fn := callbacks.byID[id]
	callbacks.RUnlock()
	if fn != nil {
		fn()
	}
}

// HostFunc enqueues a call of c on s: later commands on s wait until it has returned. After a
// failure of the device, it is not called. Source: cuda.h, cuLaunchHostFunc.
func (s *Stream) HostFunc(c *Callback) error {
	return check("cuLaunchHostFunc", sysHostFunc(s, c.id))
}

// CaptureMode says which calls of others break a capture.
type CaptureMode int

// Source: cuda.h, CUstreamCaptureMode.
const (
	Global      CaptureMode = iota // allocations and the like of any thread are refused meanwhile
	ThreadLocal                    // calls of the capturing thread are
	Relaxed                        // no call is
)

// BeginCapture makes s record commands instead of running them, until EndCapture or Abandon. So do
// streams that wait for s's events. Except for Relaxed, the goroutine is tied to its thread for
// that time, and the same goroutine must end the capture. Source: cuda.h, cuStreamBeginCapture.
func (s *Stream) BeginCapture(m CaptureMode) error {
	if m < Global || m > Relaxed {
		return refused("cuStreamBeginCapture", "capture mode %d", m)
	}
	lock := m != Relaxed
	if lock {
		runtime.LockOSThread()
	}
	if status := sysBeginCapture(s, int(m)); status != 0 {
		if lock {
			runtime.UnlockOSThread()
		}
		return check("cuStreamBeginCapture", status)
	}
	s.locked = lock
	return nil
}

// EndCapture ends the capture and returns its graph. It fails after a call that a capture does not
// allow, and with work on other streams that s has not waited for; the capture is over then too. On
// another goroutine than BeginCapture's it returns ErrCaptureWrongThread, and the capture is lost:
// the first goroutine still has to call Abandon. Source: cuda.h, cuStreamEndCapture.
func (s *Stream) EndCapture() (*Graph, error) {
	h, status := s.endCapture()
	if status != 0 {
		return nil, check("cuStreamEndCapture", status)
	}
	return &Graph{d: s.d, h: h}, nil
}

func (s *Stream) endCapture() (graph unsafe.Pointer, status int) {
	graph, status = sysEndCapture(s)
	if Result(status) != ErrCaptureWrongThread {
		s.unlock()
	}
	return graph, status
}

// unlock undoes what BeginCapture does to the goroutine.
func (s *Stream) unlock() {
	if s.locked {
		s.locked = false
		runtime.UnlockOSThread()
	}
}

// Capturing reports whether s is between BeginCapture and its end, in a valid capture or not.
// Source: cuda.h, cuStreamIsCapturing.
func (s *Stream) Capturing() (bool, error) {
	state, status := sysIsCapturing(s)
	return state != 0, check("cuStreamIsCapturing", status)
}

// Abandon ends the capture, if there is one, and destroys the recorded commands. A capture that has
// become invalid is no error here. Source: cuda.h, cuStreamEndCapture, cuGraphDestroy.
func (s *Stream) Abandon() error {
	capturing, err := s.Capturing()
	if err != nil {
		return err
	}
	if !capturing {
		s.unlock() // another thread may have ended it
		return nil
	}
	h, status := s.endCapture()
	if status == 0 {
		return (&Graph{d: s.d, h: h}).Close()
	}
	if capturing, err = s.Capturing(); err == nil && capturing {
		err = check("cuStreamEndCapture", status)
	}
	return err
}
