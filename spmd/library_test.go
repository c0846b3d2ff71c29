package spmd_test

import (
	"bytes"
	"errors"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/library"
	"lockstep/spmd/spmdtest"
)

// reverse is a library that turns the halves of src round, by way of its workspace.
func reverse(fail error) *library.Function {
	return library.New("reverse", func(c library.Call) error {
		if fail != nil {
			return fail
		}
		dst, src, half := c.Pointer(0), c.Pointer(1), 4*c.I64(2)
		on := c.Stream
		return errors.Join(on.Fill(c.Workspace, 1, 0xff, c.Bytes), on.Copy(c.Workspace, src, 2*half),
			on.Copy(dst, unsafe.Add(c.Workspace, half), half), on.Copy(unsafe.Add(dst, half), c.Workspace, half))
	}, func(a spmd.Args) error {
		if fail != nil {
			return fail
		}
		dst, src, half := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), a.I64(2)
		old := slices.Clone(src)
		copy(dst, old[half:2*half])
		copy(dst[half:], old[:half])
		return nil
	})
}

func TestLibrary(t *testing.T) { spmdtest.Run(t, []int{1, 3}, testLibrary) }

func testLibrary(t *testing.T, w *spmd.World) {
	s := stream(t, w, "s")
	const half = 700
	x, y := alloc[float32](t, w, 2*half), alloc[float32](t, w, 2*half)
	v := make([]float32, 2*half)
	for i := range v {
		v[i] = float32(i)
	}
	turned := append(slices.Clone(v[half:]), v[:half]...)
	must(t, x.CopyFrom(v))
	holds := func(b spmd.Buffer[float32], want []float32) {
		t.Helper()
		got := make([]float32, 2*half)
		must(t, s.Synchronize())
		must(t, b.CopyTo(got))
		if !slices.Equal(got, want) {
			t.Errorf("got %v..., want %v...", got[:3], want[:3])
		}
	}
	l := reverse(nil)
	call := func() error { return l.Call(s, 8*half, y.Arg(), x.Arg(), spmd.I64(half)) }
	must(t, call())
	holds(y, turned)

	// In a graph: with others of its stream, each replay anew.
	g, err := s.Capture(func() error {
		return errors.Join(spmd.Fill(s, y, -1), call(), l.Call(s, 8*half, x.Arg(), y.Arg(), spmd.I64(half)))
	})
	must(t, err)
	must(t, y.SetAll(0))
	for range 3 {
		must(t, g.Launch(s))
		holds(y, turned)
		holds(x, v)
	}

	// These calls are refused, on the spot.
	refused := func(err error, parts ...string) {
		t.Helper()
		for _, part := range append(parts, "reverse", "spmd/library_test.go:") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("got %v, want %q", err, part)
			}
		}
	}
	refused(l.Call(s, -1, y.Arg(), x.Arg(), spmd.I64(half)), "workspace of -1 bytes")
	refused(library.New("reverse", nil, nil).Call(s, 0), "only")
	gone := alloc[float32](t, w, 3)
	must(t, gone.Free())
	if err := l.Call(s, 8*half, gone.Arg(), x.Arg(), spmd.I64(1)); err == nil ||
		!strings.Contains(err.Error(), "freed") {
		t.Errorf("a freed buffer: %v", err)
	}
	holds(y, turned) // the stream goes on

	// A buffer of a graph may not be freed, and its libraries not be closed.
	l.Close()
	refused(call(), "closed")
	refused(g.Launch(s), "closed")
	must(t, g.Close())
}

// A library's failure is an error: of the call on a GPU, of the stream on the host.
func TestLibraryFails(t *testing.T) {
	spmdtest.RunAlone(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("failing")
		must(t, err)
		b := alloc[float32](t, w, 2)
		fault := errors.New("no such plan")
		err = reverse(fault).Call(s, 0, b.Arg(), b.Arg(), spmd.I64(1))
		if w.OnHost() {
			must(t, err)
			err = s.Synchronize()
		}
		if !errors.Is(err, fault) {
			t.Errorf("got %v, want %v", err, fault)
		}
		if w.OnHost() {
			if err := s.Close(); !errors.Is(err, fault) {
				t.Errorf("Close: %v", err)
			}
		}
	})
}

func TestLibraryAllocations(t *testing.T) { spmdtest.Run(t, []int{1}, libraryAllocations) }

func libraryAllocations(t *testing.T, w *spmd.World) {
	s := stream(t, w, "s")
	x := alloc[float32](t, w, 64)
	l := reverse(nil)
	if w.OnHost() {
		l = library.New("nothing", nil, func(spmd.Args) error { return nil })
	}
	if n := testkit.Allocations(50, func() {
		for range 8 {
			if err := l.Call(s, 256, x.Arg(), x.Arg(), spmd.I64(32)); err != nil {
				t.Error(err)
			}
		}
		if err := s.Synchronize(); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// All ranks take rank 0's choice, or its error.
func TestChoose(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		type choice struct {
			Name  string
			Sizes []int
		}
		asked := false
		got, err := library.Choose(w, "Pick", func() (choice, error) {
			asked = true
			return choice{"fast", []int{3, 1}}, nil
		})
		must(t, err)
		if got.Name != "fast" || !slices.Equal(got.Sizes, []int{3, 1}) || asked != (w.Rank() == 0) {
			t.Errorf("rank %d: %v, asked: %v", w.Rank(), got, asked)
		}
		_, err = library.Choose(w, "Pick", func() (int, error) { return 1, errors.New("nothing to pick") })
		wantText(t, err, "spmd/library_test.go:", "Pick: rank 0: nothing to pick")
		if best, err := library.Choose(w, "Pick", func() (float64, error) { return math.Inf(1), nil }); err != nil ||
			!math.IsInf(best, 1) {
			t.Errorf("of infinity came %v, %v", best, err)
		}
		_, err = library.Choose(w, "Pick", func() (func(), error) { return func() {}, nil })
		wantText(t, err, "spmd/library_test.go:", "Pick: rank 0: a value of type func() cannot be sent")
		s := stream(t, w, "s")
		g, err := s.Capture(func() error {
			_, err := library.Choose(w, "Pick", func() (int, error) { return 1, nil })
			wantText(t, err, "spmd/library_test.go:", "Pick: a stream is being captured")
			return spmd.Fill(s, alloc[float32](t, w, 1), 1)
		})
		must(t, err)
		must(t, g.Close())
	})
}

// An argument becomes its buffer again, and an address tells parts of a buffer apart.
func TestArgBuffer(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		b := alloc[float64](t, w, 10)
		part := b.Slice(3, 7)
		if at := b.Address(); at%256 != 0 || part.Address() != at+3*8 || b.Slice(2, 2).Address() != 0 {
			t.Errorf("at %#x, a part at %#x", at, part.Address())
		}
		if got, ok := library.BufferOf[float64](part.Arg()); !ok || got != part {
			t.Errorf("%v, %v, want %v", got, ok, part)
		}
		if got, ok := library.BufferOf[float64](b.Slice(2, 2).Arg()); !ok || got.Len() != 0 {
			t.Errorf("of no elements: %v, %v", got, ok)
		}
		for what, a := range map[string]spmd.Arg{"another type": alloc[float32](t, w, 1).Arg(),
			"a number": spmd.F64(1), "nothing": {}} {
			if got, ok := library.BufferOf[float64](a); ok {
				t.Errorf("%s: %v", what, got)
			}
		}
	})
}

// Things opened for the GPU are closed after graphs and before memory and the context, the last
// first, but not those taken back.
func TestAtClose(t *testing.T) {
	spmdtest.Run(t, []int{1, 2}, func(t *testing.T, w *spmd.World) {
		var order []int
		fault := errors.New("could not be closed")
		library.AtClose(w, func() error { order = append(order, 1); return fault })
		cancel := library.AtClose(w, func() error { order = append(order, 2); return nil })
		library.AtClose(w, func() error { order = append(order, 3); return nil })
		cancel()
		if err := w.Close(); !errors.Is(err, fault) {
			t.Errorf("Close: %v, want %v", err, fault)
		}
		stacks := make([]byte, 1<<20)
		if stacks = stacks[:runtime.Stack(stacks, true)]; bytes.Contains(stacks, []byte("watch.(*Net).beat(")) {
			t.Error("the watch goes on after a Close that fails")
		}
		if want := []int{3, 1}; !slices.Equal(order, want) {
			t.Errorf("called %v, want %v", order, want)
		}
	})
}

// gpuLibrary is the part that only the driver's log shows.
func gpuLibrary(t *testing.T, w *spmd.World) {
	testLibrary(t, w)
	// A kernel that the library launches runs behind its own work, eagerly and in a graph.
	s := stream(t, w, "s")
	x := alloc[float32](t, w, 4)
	grid := spmd.Cover1D(1, 1)
	call := func(c library.Call) error {
		if err := c.Stream.Fill(c.Workspace, 1, 0, 8); err != nil {
			return err
		}
		return c.Launch(nop, grid, c.Args[0], c.WorkspaceArg(), c.Args[1])
	}
	l := library.New("with a kernel", call, nil, nop)
	enqueue := func() error { return l.Call(s, 8, x.Arg(), spmd.I32(3)) }
	must(t, enqueue())
	newCalls(t)
	g, err := s.Capture(enqueue)
	must(t, errors.Join(enqueue(), err))
	must(t, g.Close())
	ran := newCalls(t, "cuMemsetD8Async", "cuLaunchKernel")
	for i, line := range ran {
		if len(ran) != 4 || !strings.HasPrefix(line, []string{"cuMemsetD8Async", "cuLaunchKernel"}[i%2]) {
			t.Errorf("%q, want a fill and a kernel, and again", ran)
			break
		}
	}
	wantText(t, library.New("other", call, nil).Call(s, 8, x.Arg(), spmd.I32(3)),
		"other: spmd/library_test.go:", "Launch of nop", "not given this kernel")
	grid.Threads[0] = 0
	wantText(t, enqueue(), "with a kernel: spmd/library_test.go:", "Launch of nop: grid of")
	// A status of the driver has its place in front, as everywhere.
	injected("cuMemsetD8Async=700", func() {
		if err := enqueue(); err == nil || !regexp.MustCompile(
			`^spmd/library_test.go:\d+: with a kernel: cuMemsetD8Async: `).MatchString(err.Error()) {
			t.Error(err)
		}
	})
	must(t, s.Close())
	library.AtClose(w, func() error {
		for _, line := range newCalls(t, "cuGraphExecDestroy", "cuMemFree", "cuDevicePrimaryCtxRelease") {
			if !strings.HasPrefix(line, "cuGraphExecDestroy") {
				t.Errorf("before what was registered is closed: %s", line)
			}
		}
		return nil
	})
	newCalls(t)
	must(t, w.Close())
	if len(newCalls(t, "cuMemFree")) == 0 {
		t.Error("no memory is freed after it")
	}
}

// A package's state for a world is made once, whoever asks, and not shared by worlds.
func TestPerWorld(t *testing.T) {
	mpirun.Job(t)
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		var made atomic.Int32
		p := library.PerWorld[int32]{Open: func(*spmd.World) *int32 { n := made.Add(1); return &n }}
		var wg sync.WaitGroup
		var got [8]*int32
		for i := range got {
			wg.Go(func() { got[i] = p.Of(w) })
		}
		wg.Wait()
		if i := slices.IndexFunc(got[:], func(v *int32) bool { return v != got[0] }); i >= 0 || made.Load() != 1 {
			t.Errorf("made %d times; %v", made.Load(), got)
		}
		other, err := spmd.Open(spmdtest.Config())
		must(t, err)
		if p.Of(other) == got[0] || made.Load() != 2 {
			t.Errorf("another world has the same, of %d", made.Load())
		}
		must(t, other.Close())
		if n := testkit.Allocations(50, func() { p.Of(w) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}
