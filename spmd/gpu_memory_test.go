package spmd_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/managed"
	"lockstep/spmd/spmdtest"
)

func symmetric(t *testing.T, w *spmd.World, n int) spmd.Buffer[float32] {
	t.Helper()
	b, err := spmd.AllocSymmetric[float32](w, n)
	must(t, err)
	return b
}

// gpuSymmetric: a chunk is registered once. A buffer lies at the same place of it on every rank, in
// whatever order the ranks freed others before.
func gpuSymmetric(t *testing.T, w *spmd.World) {
	newCalls(t)
	const n, class = 1000, 4096 // elements, and the bytes they take
	a := symmetric(t, w, n)
	made := newCalls(t, "ncclMemAlloc", "ncclCommRegister", "ncclBroadcast", "ncclCommWindowRegister")
	if len(made) != 4 || value(made[0], "bytes") != value(made[1], "bytes") ||
		value(made[0], "bytes") != value(made[2], "n") || value(made[0], "bytes") != value(made[3], "bytes") ||
		value(made[1], "comm") != "1" || value(made[2], "comm") != "1" || value(made[3], "comm") != "2" {
		t.Fatalf("the first buffer: %q, want one chunk that is registered with both communicators, of which a "+
			"collective is the first that uses it", made)
	}
	base := number64(t, made[3], "p")
	part, err := w.Comm().Split(0, w.Rank())
	must(t, err)
	wantCalls(t, "memory in use", []string{"ncclCommRegister", "ncclBroadcast"})
	must(t, part.Close())
	place := func(what string, b spmd.Buffer[float32], want uint64) {
		t.Helper()
		if got := addr(t, b) - base; got != want {
			t.Errorf("%s lies at %d, want %d", what, got, want)
		}
	}
	b := symmetric(t, w, n)
	place("the first", a, 0)
	place("the second", b, class)
	must(t, a.Free())
	a = symmetric(t, w, n)
	place("what was freed and asked for again", a, 0)

	// The ranks free in different orders: no place is right on both, so none is reused.
	if w.Rank() == 0 {
		must(t, a.Free())
	}
	must(t, b.Free())
	must(t, a.Free())
	place("after unequal frees", symmetric(t, w, n), 2*class)
	// One rank frees and the other does not.
	c := symmetric(t, w, n)
	place("the next", c, 3*class)
	d := symmetric(t, w, 2*n)
	if w.Rank() == 0 {
		must(t, d.Free())
	}
	place("where one rank has freed", symmetric(t, w, 2*n), 4*class+2*class)
	wantCalls(t, "small buffers", []string{"ncclMemAlloc", "ncclCommWindowRegister", "ncclCommRegister"})

	// Memory that streams still use is waited for, not passed over: another rank may be further.
	s := stream(t, w, "s")
	must(t, spmd.Fill(s, c, 1))
	newCalls(t)
	injected("cuEventQuery=600@1,cuEventQuery=600@2,cuEventQuery=600@3", func() {
		must(t, c.Free())
		c = symmetric(t, w, n)
	})
	if got := newCalls(t, "cuEventQuery"); len(got) != 4 {
		t.Errorf("%q, want it to ask until the stream has passed", got)
	}
	place("what a stream used", c, 3*class)

	symmetric(t, w, 2<<20) // larger than pieces of a chunk
	if got := newCalls(t, "ncclMemAlloc", "ncclCommWindowRegister"); len(got) != 2 {
		t.Errorf("a large buffer: %q, want a chunk of its own", got)
	}
	_, err = spmd.AllocSymmetric[float32](w, n+w.Rank())
	wantText(t, err, "gpu_memory_test.go", "from 1000 to 1001 over the ranks")
}

// gpuPool: when the driver is asked for memory and when it is not.
func gpuPool(t *testing.T, w *spmd.World) {
	const n = 1 << 20 // elements: more than a piece of a chunk
	s := stream(t, w, "s")
	newCalls(t)
	x := alloc[float32](t, w, n)
	place := addr(t, x)
	if got := newCalls(t, "cuMemAlloc_v2"); len(got) != 1 || number64(t, got[0], "p") != place {
		t.Errorf("%q, want one call for one block", got)
	}
	must(t, x.Free())
	x = alloc[float32](t, w, n-5) // of the same class
	if addr(t, x) != place {
		t.Error("a free block is not used again")
	}

	// Free while the stream is busy: the block is not handed out before the stream has passed.
	must(t, spmd.Fill(s, x, 1))
	var y spmd.Buffer[float32]
	injected("cuEventQuery=600", func() {
		must(t, x.Free())
		y = alloc[float32](t, w, n)
	})
	if addr(t, y) == place {
		t.Error("a block that a stream still uses is handed out")
	}
	x = alloc[float32](t, w, n)
	if addr(t, x) != place {
		t.Error("a block that the stream has passed is not used again")
	}

	// A collective in flight: the driver's allocator is asked only when it has ended.
	must(t, spmd.AllReduce(w.Comm().On(s), y, x, spmd.Sum))
	newCalls(t)
	injected("cuEventQuery=600@1,cuEventQuery=600@2,cuEventQuery=600@3", func() {
		small := alloc[float32](t, w, 8) // of a new chunk
		must(t, small.Free())
	})
	var order []string
	for _, line := range newCalls(t, "cuEventQuery", "cuMem") {
		name, _, _ := strings.Cut(line, " ")
		order = append(order, name+" "+line[strings.LastIndex(line, "=")+2:])
	}
	if want := []string{"cuEventQuery 600", "cuEventQuery 600", "cuEventQuery 600", "cuEventQuery 0",
		"cuMemAlloc_v2 0"}; !slices.Equal(order, want) {
		t.Errorf("%q, want %q", order, want)
	}
	must(t, spmd.AllReduce(w.Comm().On(s), y, x, spmd.Sum))
	injected("cuEventQuery=600", func() { // memory of the pool needs no driver, and no waiting
		for range 3 {
			b := alloc[float32](t, w, 8)
			must(t, b.Free())
		}
	})
	wantCalls(t, "small blocks", []string{"cuMemAlloc", "cuMemFree"})
	must(t, s.Synchronize())

	// Unused memory of another class goes back before memory is short.
	must(t, y.Free())
	big := alloc[uint8](t, w, 600<<20)
	must(t, big.Free())
	newCalls(t)
	big = alloc[uint8](t, w, 896<<20)
	if got := newCalls(t, "cuMemFree"); len(got) != 2 {
		t.Errorf("%q, want both free blocks to be given back", got)
	}
	_, err := spmd.Alloc[uint8](w, 800<<20)
	wantText(t, err, "gpu_memory_test.go", "asked for 838860800 bytes", "of 1073741824 free on the device",
		"in use", "held by the pool", "CUDA_ERROR_OUT_OF_MEMORY")
	must(t, big.Free())

	// The other kinds of memory.
	for name, get := range map[string]func(*spmd.World, int) (spmd.Buffer[float32], error){
		"cuMemHostAlloc": spmd.AllocPinned[float32], "cuMemAllocManaged": managed.Alloc[float32]} {
		newCalls(t)
		b, err := get(w, n)
		must(t, err)
		if got := newCalls(t, "cuMemAlloc", "cuMemHostAlloc"); len(got) != 1 || !strings.HasPrefix(got[0], name+" ") {
			t.Errorf("%q, want %s", got, name)
		}
		b.Host()[n-1] = 5
		must(t, spmd.Copy(s, x, b))
		must(t, s.Synchronize())
		if x.At(n-1) != 5 || b.At(n-1) != 5 {
			t.Errorf("%s: %v on the device, %v on the host", name, x.At(n-1), b.At(n-1))
		}
		newCalls(t)
		must(t, spmd.Fill(s, b, 1)) // the driver would wait for the stream
		if got := newCalls(t, "cuLaunchKernel", "cuMemset"); len(got) != 1 ||
			value(got[0], "function") != "fill_bytes" ||
			!strings.HasSuffix(value(got[0], "args"), fmt.Sprintf(",%#x,0x3f8000003f800000,0x3f8000003f800000", 4*n)) {
			t.Errorf("a fill after %s: %q", name, got)
		}
		must(t, b.Free())
	}
}

// gpuTransfers: between Go's memory and the device, whatever the size.
func gpuTransfers(t *testing.T, w *spmd.World) {
	const half = 2 << 20 // bytes of a half of the staging buffer
	rng := rand.New(rand.NewPCG(1, 2))
	b := alloc[uint8](t, w, 4*half+4097)
	for _, n := range []int{0, 1, 3, 4097, half - 1, half, half + 1, 2*half + 1, 4*half + 4095} {
		src, dst := make([]byte, n), make([]byte, n)
		for i := range src {
			src[i] = byte(rng.Uint32())
		}
		part := b.Slice(1, n+1) // at an odd address
		must(t, part.CopyFrom(src))
		must(t, part.CopyTo(dst))
		if !bytes.Equal(src, dst) {
			t.Errorf("%d bytes do not come back as they went", n)
		}
		if n > 0 && part.At(n-1) != src[n-1] {
			t.Errorf("the last of %d bytes is %d, want %d", n, part.At(n-1), src[n-1])
		}
	}

	// The halves take turns, and none is written before its old contents have gone.
	newCalls(t)
	must(t, b.CopyFrom(make([]byte, b.Len())))
	ready := map[string]bool{}
	pieces, last := 0, ""
	for _, line := range newCalls(t, "cuMemcpyAsync", "cuEventQuery") {
		from := value(line, "src")
		switch {
		case from == "":
			clear(ready) // all that was recorded has run
		case ready[from] || from == last || number64(t, line, "bytes") > half:
			t.Errorf("piece %d comes from %s again, or is too large: %s", pieces, from, line)
		default:
			ready[from], last = true, from
			pieces++
		}
	}
	if pieces != 5 {
		t.Errorf("%d pieces, want 5", pieces)
	}

	fillAndSet(t, w, uint8(7), 9)
	fillAndSet(t, w, int32(-3), 9)
	fillAndSet(t, w, spmd.ToF16(1.5), spmd.ToF16(-2))
	fillAndSet(t, w, float32(0.1), 9)
	long := alloc[float64](t, w, 5)
	must(t, long.CopyFrom([]float64{1, 2, 3, 4, 5}))
	long.Set(4, -1)
	if long.At(3) != 4 || long.At(4) != -1 {
		t.Errorf("float64: %v, %v", long.At(3), long.At(4))
	}
	newCalls(t)
	must(t, long.SetAll(1)) // no driver fills 8 bytes
	if got := newCalls(t, "cuLaunchKernel"); len(got) != 1 || value(got[0], "function") != "fill_bytes" ||
		!strings.HasSuffix(value(got[0], "args"), ",0x28,0x3ff0000000000000,0x3ff0000000000000") {
		t.Errorf("a fill of float64: %q", got)
	}

	err := func() (err error) {
		defer func() { err, _ = recover().(error) }()
		b.Host()
		return nil
	}()
	wantText(t, err, "gpu_memory_test.go", "Host: the buffer is of Alloc, which a GPU has in its own memory",
		"use CopyTo, or AllocPinned")
	wantText(t, b.CopyFrom(make([]byte, 3)), "gpu_memory_test.go",
		fmt.Sprintf("buffer has %d elements, slice 3", b.Len()))
	must(t, b.Free())
	wantText(t, b.CopyTo(make([]byte, b.Len())), "gpu_memory_test.go",
		"the buffer was freed at spmd/gpu_memory_test.go")
}

func fillAndSet[T spmd.Elem](t *testing.T, w *spmd.World, v, other T) {
	t.Helper()
	b := alloc[T](t, w, 1001)
	must(t, b.SetAll(v))
	b.Set(500, other)
	got, want := make([]T, 1001), slices.Repeat([]T{v}, 1001)
	want[500] = other
	must(t, b.CopyTo(got))
	if !slices.Equal(got, want) {
		t.Errorf("a buffer of %T filled with %v holds %v ... %v", v, v, got[:3], got[499:502])
	}
}

// gpuGraphs: the driver records in the mode that lets other threads work, and a failed capture
// leaves nothing behind.
func gpuGraphs(t *testing.T, w *spmd.World) {
	a, b := stream(t, w, "a"), stream(t, w, "b")
	x, y := fill(t, w, 8, 0), fill(t, w, 8, 0)
	runs := 0
	newCalls(t)
	g, err := a.Capture(func() error {
		return errors.Join(
			spmd.Fill(a, x, 2),
			b.After(a),
			spmd.Copy(b, y, x),
			nop.Launch(a, spmd.Cover1D(1, 1), x.Arg(), y.Arg(), spmd.I32(8)),
			a.After(b),
			a.HostFunc(func() error { runs++; return nil }),
			spmd.AllReduce(w.Comm().On(a), x, x, spmd.Sum))
	})
	must(t, err)
	if got := newCalls(t, "cuStreamBeginCapture"); len(got) != 1 || value(got[0], "mode") != "2" {
		t.Errorf("%q, want a relaxed capture", got)
	}
	if y.At(0) != 0 || runs != 0 {
		t.Error("the capture ran what it recorded")
	}
	newCalls(t)
	for range 3 {
		must(t, g.Launch(b)) // on another stream than the one it was captured from
	}
	must(t, b.Synchronize())
	if n := len(newCalls(t, "replay cuLaunchKernel")); y.At(7) != 2 || runs != 3 || n != 3 {
		t.Errorf("after three replays: y is %v, the host function ran %d times, the kernel %d", y.At(7), runs, n)
	}

	for name, tc := range map[string]struct {
		inject string
		fn     func() error
		want   []string
	}{
		"it fails": {"", func() error { return errors.Join(spmd.Fill(a, x, 1), errPlanned) },
			[]string{"planned failure"}},
		"it panics": {"", func() error { panic("in a capture") }, []string{"in a capture"}},
		"a stream is left": {"", func() error { return errors.Join(b.After(a), spmd.Fill(b, x, 1)) },
			[]string{"a.After(b)"}},
		"it synchronizes": {"", a.Synchronize, []string{`stream "a" is being captured`}},
		"it blocks": {"", func() error { return spmd.AllReduce(w.Comm(), x, x, spmd.Sum) },
			[]string{"in the middle of a capture"}},
		"it begins with none": {"cuStreamBeginCapture_v2=801", func() error { return nil },
			[]string{"cuStreamBeginCapture", "(801)"}},
		"a call fails": {"cuMemsetD32Async=1", func() error { return spmd.Fill(a, x, 1) },
			[]string{"cuMemsetD32Async", "CUDA_ERROR_INVALID_VALUE"}},
		"no graph comes": {"cuGraphInstantiateWithFlags=2", func() error { return spmd.Fill(a, x, 1) },
			[]string{"cuGraphInstantiate", "CUDA_ERROR_OUT_OF_MEMORY"}},
	} {
		injected(tc.inject, func() {
			_, err := a.Capture(tc.fn)
			wantText(t, err, tc.want...)
		})
		for _, s := range []*spmd.Stream{a, b} {
			must(t, spmd.Fill(s, x, 4))
			must(t, s.Synchronize())
			again, err := s.Capture(func() error { return spmd.Fill(s, x, 6) })
			if err != nil {
				t.Fatalf("%s, and the next capture fails: %v", name, err)
			}
			if x.At(0) != 4 {
				t.Errorf("%s, and a fill gives %v", name, x.At(0))
			}
			must(t, again.Launch(s))
			must(t, s.Synchronize())
			if x.At(0) != 6 {
				t.Errorf("%s, and a replay gives %v", name, x.At(0))
			}
			must(t, again.Close())
		}
	}
	must(t, y.Free())
	wantText(t, g.Launch(a), "gpu_memory_test.go", "the buffer was freed at", "the graph still uses it")
	must(t, g.Close())
	wantText(t, g.Launch(a), "the graph is closed")
}

// gpuAllocations: a call costs no Go allocation.
func gpuAllocations(t *testing.T, w *spmd.World) {
	x, y := fill(t, w, 64, 0), fill(t, w, 64, 0)
	s := stream(t, w, "s")
	c := w.Comm()
	q := c.On(s)
	n, r := w.Size(), w.Rank()
	counts := slices.Repeat([]int{2}, n)
	g, err := s.Capture(func() error { return spmd.Fill(s, x, 1) })
	must(t, err)
	e, err := w.NewEvent()
	must(t, err)
	os.Unsetenv("FAKECUDA_LOG")
	os.Unsetenv("FAKENCCL_LOG")
	defer openLog(calls.File)
	grouped := func() error {
		for i := range 12 {
			lo, hi := 5*i, 5*i+5
			if err := errors.Join(spmd.Send(q, x.Slice(lo, hi), (r+1)%n),
				spmd.Recv(q, y.Slice(lo, hi), (r+n-1)%n)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, tc := range []struct {
		name string
		call func() error
	}{
		{"kernel", func() error { return nop.Launch(s, spmd.Cover1D(1, 1), x.Arg(), y.Arg(), spmd.I32(8)) }},
		{"copy", func() error { return spmd.Copy(s, y, x) }},
		{"fill", func() error { return spmd.Fill(s, x, 1) }},
		{"graph", func() error { return g.Launch(s) }},
		{"record", func() error { return e.Record(s) }},
		{"AllReduce", func() error { return spmd.AllReduce(q, y, x, spmd.Sum) }},
		{"Broadcast", func() error { return spmd.Broadcast(q, x, 0) }},
		{"AllGather", func() error { return spmd.AllGather(q, y.Slice(0, 2*n), x.Slice(0, 2)) }},
		{"ReduceScatter", func() error { return spmd.ReduceScatter(q, y.Slice(0, 2), x.Slice(0, 2*n), spmd.Sum) }},
		{"AllToAll in place", func() error { return spmd.AllToAll(q, x, x) }},
		{"AllGatherV", func() error { return spmd.AllGatherV(q, y.Slice(0, 2*n), x.Slice(0, 2), counts) }},
		{"AllToAllV", func() error { return spmd.AllToAllV(q, y.Slice(0, 2*n), x.Slice(0, 2*n), counts, counts) }},
		{"SendRecv", func() error { return spmd.SendRecv(q, y, (r+n-1)%n, x, (r+1)%n) }},
		{"Barrier", func() error { return spmd.Barrier(q) }},
		{"Group", func() error { return q.Group(grouped) }},
		{"a blocking AllReduce", func() error { return spmd.AllReduce(c, y, x, spmd.Sum) }},
		{"Synchronize", func() error { return errors.Join(spmd.Fill(s, x, 1), s.Synchronize()) }},
	} {
		failed := 0
		if got := testkit.Allocations(50, func() {
			if tc.call() != nil {
				failed++
			}
		}); got != 0 || failed != 0 {
			t.Errorf("%s: %v allocations, %d calls failed", tc.name, got, failed)
		}
		must(t, s.Synchronize())
	}
}

// everything makes one of each thing that a world holds.
func everything(t *testing.T, w *spmd.World) (spmd.Comm, *spmd.Graph, *spmd.Stream, spmd.Buffer[float32]) {
	t.Helper()
	c, err := w.Comm().Split(0, w.Rank())
	must(t, err)
	s := stream(t, w, "s")
	x := fill(t, w, 1<<20, 1)
	_, err = spmd.AllocPinned[float32](w, 9)
	must(t, err)
	_, err = managed.Alloc[float32](w, 9)
	must(t, err)
	symmetric(t, w, 100)
	e, err := w.NewEvent()
	must(t, err)
	must(t, e.Record(s))
	g, err := s.Capture(func() error {
		return errors.Join(spmd.AllReduce(c.On(s), x, x, spmd.Sum), spmd.AllToAll(w.Comm().On(s), x, x),
			s.HostFunc(func() error { return nil }))
	})
	must(t, err)
	must(t, g.Launch(s))
	return c, g, s, x
}

func gpuNothingClosed(t *testing.T, w *spmd.World) {
	everything(t, w)
	ending(t, func(lines []string) {
		for name, n := range map[string]int{"cuGraphExecDestroy": 1, "ncclCommDestroy": 4,
			"ncclCommWindowDeregister": 2, "ncclCommDeregister": 2, "ncclMemFree": 1} {
			if got := count(lines, name); got != n {
				t.Errorf("%d calls of %s, want %d", got, name, n)
			}
		}
	})
}

// gpuOddOrder: an application closes things in a wrong order.
func gpuOddOrder(t *testing.T, w *spmd.World) {
	c, g, s, x := everything(t, w)
	must(t, s.Synchronize())
	must(t, x.Free())
	newCalls(t)
	must(t, c.Close())
	got := newCalls(t, "cuGraphExecDestroy", "ncclComm")
	if len(got) < 2 || !strings.HasPrefix(got[0], "cuGraphExecDestroy") || got[len(got)-1] != "ncclCommDestroy comm=2" {
		t.Errorf("%q, want the graph to go before its communicator", got)
	}
	wantText(t, g.Launch(s), "gpu_memory_test.go")
	wantText(t, spmd.Barrier(c.On(s)), "the communicator is closed")
	must(t, g.Close())
	must(t, g.Close())
	must(t, c.Close())
	must(t, s.Close())
	wantText(t, spmd.Fill(s, fill(t, w, 1, 0), 1), `stream "s" is closed`)
	// With two communicators and two streams, the stream of the last collective is gone.
	other, err := w.Comm().Split(0, w.Rank())
	must(t, err)
	y, s2, s3 := fill(t, w, 4, 1), stream(t, w, "s2"), stream(t, w, "s3")
	must(t, spmd.AllReduce(other.On(s2), y, y, spmd.Sum))
	must(t, s2.Close())
	must(t, spmd.AllReduce(w.Comm().On(s3), y, y, spmd.Sum))
	ending(t, func(lines []string) {
		if n := count(lines, "ncclCommDestroy"); n != 4 {
			t.Errorf("%d communicators destroyed, want 4", n)
		}
	})
}

// gpuCloseFailed: a world of one rank whose stream has failed is taken down like any other.
func gpuCloseFailed(t *testing.T, w *spmd.World) {
	second, err := spmd.Open(spmdtest.Config())
	must(t, err)
	_, _, s, _ := everything(t, second)
	must(t, s.HostFunc(func() error { return errPlanned }))
	newCalls(t)
	wantText(t, second.Close(), `stream "s"`, "planned failure", "gpu_memory_test.go")
	lines := newCalls(t)
	wantOrder(t, lines)
	if count(lines, "cuGraphExecDestroy") != 1 || count(lines, "cuMemFree_v2") == 0 ||
		count(lines, "cuStreamDestroy_v2") != 3 {
		t.Errorf("not all is given back: %q", lines)
	}
	must(t, second.Close())
	ending(t, nil)
}
