package spmd_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

var errPlanned = errors.New("planned failure")

func fill(t *testing.T, w *spmd.World, n int, v float32) spmd.Buffer[float32] {
	t.Helper()
	b := alloc[float32](t, w, n)
	must(t, b.SetAll(v))
	return b
}

const testKernels = `
extern "C" __global__ void add_to(float *y, const float *x, float alpha, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) y[i] += alpha * x[i];
}
extern "C" __global__ void nop(const float *x, const float *y, int n) {}
`

var nop = spmd.NewKernel("nop", testKernels, func(spmd.Args) error { return nil })

var addTo = spmd.NewKernel("add_to", testKernels, func(a spmd.Args) error {
	y, x, alpha := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), a.F32(2)
	for i := range y {
		y[i] += alpha * x[i]
	}
	return nil
})

// Memory of Alloc is a GPU's: no device lets a program address it.
func TestHostOfAlloc(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		own, err := spmd.Alloc[int32](w, 3)
		must(t, err)
		pinned, err := spmd.AllocPinned[int32](w, 3)
		must(t, err)
		pinned.Host()[2] = 7
		must(t, own.CopyFrom(pinned.Host()))
		if own.At(2) != 7 {
			t.Errorf("element 2 is %d", own.At(2))
		}
		defer func() {
			if err, ok := recover().(error); !ok || !strings.Contains(err.Error(), "Host: the buffer is of Alloc") {
				t.Errorf("Host of memory of Alloc: %v", err)
			}
		}()
		own.Host()
	})
}

func TestStreamOrder(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		a, b := stream(t, w, "a"), stream(t, w, "b")
		x, y, z := fill(t, w, 100, 1), fill(t, w, 100, 0), fill(t, w, 100, 0)
		open := make(chan struct{})
		release := sync.OnceFunc(func() { close(open) })
		defer release()
		var ran atomic.Bool
		notice := func() error { ran.Store(true); return nil }
		must(t, a.HostFunc(func() error { <-open; return nil }))
		must(t, spmd.Fill(a, x, 5))
		must(t, b.After(a))
		must(t, spmd.Copy(b, y, x))
		e, err := w.NewEvent()
		must(t, err)
		must(t, e.Record(b))
		must(t, a.HostFunc(notice))
		must(t, b.HostFunc(notice))
		for i := range 100 { // more than the queue holds at first
			must(t, addTo.Launch(a, spmd.Cover1D(100, 64), z.Arg(), z.Arg(), spmd.F32(0), spmd.I32(100)))
			must(t, addTo.Launch(b, spmd.Cover1D(100, 64), y.Arg(), y.Arg(), spmd.F32(float32(i%2)), spmd.I32(100)))
		}
		if ran.Load() {
			t.Fatal("something ran before what it had to wait for")
		}
		release()
		must(t, e.Synchronize())
		must(t, b.Synchronize())
		if !ran.Load() {
			t.Error("what was enqueued has not run")
		}
		if got, want := y.At(99), float32(5*(1<<50)); got != want {
			t.Errorf("y = %v, want %v", got, want)
		}
		after, err := w.NewEvent()
		must(t, err)
		if _, err := after.Elapsed(e); err == nil {
			t.Error("Elapsed of an event that was never recorded gave a time")
		}
		must(t, after.Record(b))
		must(t, after.Synchronize())
		if d, err := after.Elapsed(e); err != nil || d <= 0 {
			t.Errorf("Elapsed = %v, %v", d, err)
		}
		must(t, a.Wait(after))
		must(t, a.Close())
		must(t, a.Close())
		testkit.Refused(t, spmd.Fill(a, x, 1), `"a" is closed`)
	})
}

// TestStreamsRunAtTheSameTime holds rank 1 back until a computation on rank 0 has run. The
// computation is behind a collective which cannot end without rank 1. One stream after the other,
// neither would end. The ranks signal through a FIFO, since all calls of MPI queue behind the
// collective.
func TestStreamsRunAtTheSameTime(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		if w.Collectives() == "mpi-aware" {
			t.Skip("mpi-aware: who issues a call makes it, and waits")
		}
		comms, compute := stream(t, w, "comms"), stream(t, w, "compute")
		fifo := make([]byte, 100)
		if w.Rank() == 0 {
			copy(fifo, filepath.Join(t.TempDir(), "fifo"))
			must(t, syscall.Mkfifo(string(bytes.TrimRight(fifo, "\x00")), 0o600))
		}
		name := alloc[uint8](t, w, len(fifo))
		must(t, name.CopyFrom(fifo))
		must(t, spmd.Broadcast(w.Comm(), name, 0))
		must(t, name.CopyTo(fifo))
		path := string(bytes.TrimRight(fifo, "\x00"))

		x := fill(t, w, 1, 1)
		if w.Rank() == 1 {
			_, err := os.ReadFile(path) // until rank 0 has written and closed it
			must(t, err)
		}
		must(t, spmd.AllReduce(w.Comm().On(comms), x, x, spmd.Sum))
		if w.Rank() == 0 {
			must(t, compute.HostFunc(func() error { return os.WriteFile(path, []byte("go"), 0) }))
		}
		must(t, comms.Synchronize())
		must(t, compute.Synchronize())
		if x.At(0) != 2 {
			t.Errorf("sum = %v", x.At(0))
		}
	})
}

// TestEventKeepsItsPoint: a waiter for an event waits for its point of then.
func TestEventKeepsItsPoint(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		busy, idle, waiter := stream(t, w, "busy"), stream(t, w, "idle"), stream(t, w, "waiter")
		e, err := w.NewEvent()
		must(t, err)
		open := make(chan struct{})
		var opened, early atomic.Bool
		must(t, busy.HostFunc(func() error { <-open; return nil }))
		must(t, e.Record(busy))
		must(t, waiter.Wait(e))
		must(t, waiter.HostFunc(func() error { early.Store(!opened.Load()); return nil }))
		must(t, e.Record(idle))
		must(t, e.Synchronize())
		must(t, idle.Synchronize())
		opened.Store(true)
		close(open)
		must(t, waiter.Synchronize())
		if early.Load() {
			t.Error("a second Record let go who waited for the first")
		}
		must(t, busy.Close())
		testkit.Refused(t, e.Record(busy), "closed")
		must(t, e.Synchronize()) // still at idle's point
		must(t, waiter.After(busy))

		g, err := waiter.Capture(func() error { return e.Record(waiter) })
		must(t, err)
		must(t, g.Launch(waiter))
		must(t, waiter.Close())
		must(t, g.Launch(idle)) // the replay before was on a stream that is closed now
		must(t, idle.Synchronize())
		testkit.Refused(t, e.Synchronize(), "recorded in a capture")
	})
}

func TestAfterClose(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		x := fill(t, w, 3, 1)
		must(t, w.Close())
		must(t, x.Free())
		y := x.Slice(0, 1)
		if err := y.CopyTo(make([]float32, 1)); err == nil {
			t.Error("CopyTo after the world was closed")
		}
		if _, err := w.NewStream("late"); err == nil {
			t.Error("NewStream after the world was closed")
		}
		if _, err := spmd.Alloc[int8](w, 1); err == nil {
			t.Error("Alloc after the world was closed")
		}
	})
}

func TestFailedStream(t *testing.T) {
	spmdtest.RunAlone(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, other := stream(t, w, "bad"), stream(t, w, "other")
		ran := false
		must(t, s.HostFunc(func() error { return errPlanned }))
		_ = s.HostFunc(func() error { ran = true; return nil }) // may be refused already
		if err := s.Synchronize(); !errors.Is(err, errPlanned) || !strings.Contains(err.Error(), `stream "bad"`) ||
			!strings.Contains(err.Error(), "spmd/stream_test.go:") {
			t.Errorf("Synchronize: %v", err)
		}
		if err := s.HostFunc(func() error { ran = true; return nil }); !errors.Is(err, errPlanned) {
			t.Errorf("a later call: %v", err)
		}
		if ran {
			t.Error("a command ran after the failure")
		}
		if err := other.After(s); !errors.Is(err, errPlanned) {
			t.Errorf("After a failed stream: %v", err)
		}
		must(t, other.HostFunc(func() error { panic("boom") }))
		testkit.Refused(t, other.Synchronize(), "panic: boom")
		if !w.OnHost() { // a GPU cannot tell one type from another
			if err := w.Close(); !errors.Is(err, errPlanned) {
				t.Errorf("Close: %v", err)
			}
			return
		}
		k := stream(t, w, "types")
		x := alloc[float64](t, w, 1)
		err := addTo.Launch(k, spmd.Cover1D(1, 1), x.Arg(), x.Arg(), spmd.F32(1), spmd.I32(1))
		if err == nil { // there is no C++ compiler to compare it with the CUDA source
			err = k.Synchronize()
		}
		testkit.Refused(t, err, "argument 0 is a buffer of 1 float64, ", "float32")
		if err := w.Close(); !errors.Is(err, errPlanned) {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestMemoryIsReusedOnlyWhenStreamsHavePassed(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "s")
		fill := func(t *testing.T, w *spmd.World, n int, v float32) spmd.Buffer[float32] {
			b, err := spmd.AllocPinned[float32](w, n) // whose addresses the host sees on every device
			must(t, err)
			must(t, b.SetAll(v))
			return b
		}
		x := fill(t, w, 1000, 1)
		at := unsafe.Pointer(&x.Host()[0])
		if uintptr(at)%256 != 0 {
			t.Errorf("a buffer at %p is not aligned to 256 bytes", at)
		}
		open := make(chan struct{})
		must(t, s.HostFunc(func() error { <-open; return nil }))
		must(t, spmd.Fill(s, x, 7)) // writes after Free, before the memory is given out again
		must(t, x.Free())
		y := fill(t, w, 1000, 2)
		if unsafe.Pointer(&y.Host()[0]) == at {
			t.Fatal("memory was given out while a stream was going to write it")
		}
		close(open)
		must(t, s.Synchronize())
		if y.At(0) != 2 {
			t.Errorf("y[0] = %v", y.At(0))
		}
		z := fill(t, w, 1000, 0)
		if unsafe.Pointer(&z.Host()[0]) != at {
			t.Error("memory that nobody uses was not given out again")
		}
		defer func() {
			if r := recover(); r == nil {
				t.Error("At on a freed buffer did not panic")
			}
		}()
		x.At(0)
	})
}

func TestGraph(t *testing.T) {
	everyKind(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		main, side := stream(t, w, "main"), stream(t, w, "side")
		x, y := fill(t, w, 10, 1), fill(t, w, 10, 0)
		size := float32(w.Size())
		// main: x = 2x; side meanwhile sums y over the ranks; then main: x += y.
		g, err := main.Capture(func() error {
			if err := side.After(main); err != nil {
				return err
			}
			if err := spmd.AllReduce(w.Comm().On(side), y, y, spmd.Sum); err != nil {
				return err
			}
			if err := addTo.Launch(main, spmd.Cover1D(10, 32), x.Arg(), x.Arg(), spmd.F32(1),
				spmd.I32(10)); err != nil {
				return err
			}
			if err := main.After(side); err != nil {
				return err
			}
			return addTo.Launch(main, spmd.Cover1D(10, 32), x.Arg(), y.Arg(), spmd.F32(1), spmd.I32(10))
		})
		must(t, err)
		if x.At(0) != 1 {
			t.Fatal("capturing ran the commands")
		}
		wantX, wantY := float32(1), float32(1)
		must(t, y.SetAll(1))
		for i := range 5 {
			s := main
			if i%2 == 1 {
				s = side // replays on different streams do not overlap
			}
			must(t, g.Launch(s))
			wantY *= size
			wantX = 2*wantX + wantY
		}
		must(t, main.Synchronize())
		must(t, side.Synchronize())
		if x.At(9) != wantX || y.At(9) != wantY {
			t.Errorf("after 5 replays x, y = %v, %v, want %v, %v", x.At(9), y.At(9), wantX, wantY)
		}
		must(t, y.Free())
		testkit.Refused(t, g.Launch(main), "freed at spmd/stream_test.go:")
		must(t, g.Close())
		testkit.Refused(t, g.Launch(main), "closed")
	})
}

func TestCaptureRefuses(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, side := stream(t, w, "s"), stream(t, w, "side")
		x := fill(t, w, 1, 1)
		e, err := w.NewEvent()
		must(t, err)
		must(t, e.Record(side))
		empty, err := s.Capture(func() error { return nil })
		must(t, err)
		for _, tc := range []struct {
			name string
			fn   func() error
			want string
		}{
			{"an error of the function", func() error { return errPlanned }, errPlanned.Error()},
			{"a panic of the function", func() error { panic("boom") }, "panic: boom"},
			{"a stream that is not joined again", func() error {
				if err := side.After(s); err != nil {
					return err
				}
				return spmd.Fill(side, x, 2)
			}, `"side" was joined`},
			{"Synchronize", s.Synchronize, "is being captured"},
			{"a blocking collective", func() error { return spmd.AllReduce(w.Comm(), x, x, spmd.Sum) },
				"use comm.On(stream)"},
			{"an event from outside", func() error { return s.Wait(e) }, "outside the capture"},
			{"a capture in a capture", func() error {
				_, err := s.Capture(func() error { return nil })
				return err
			}, "already"},
			{"a launch", func() error { return empty.Launch(s) }, "is being captured"},
		} {
			if _, err := s.Capture(tc.fn); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
			}
		}
		if _, err := s.Capture(func() error { return e.Record(s) }); err != nil {
			t.Fatal(err)
		}
		testkit.Refused(t, side.Wait(e), "has ended")
		must(t, spmd.Fill(s, x, 3)) // the streams are usable again
		must(t, s.Synchronize())
		must(t, spmd.Fill(side, x, 3))
		must(t, side.Synchronize())
	})
}
