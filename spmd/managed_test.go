package spmd_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/managed"
	"lockstep/spmd/spmdtest"
)

var allAdvice = []managed.Advice{
	managed.ReadMostly, managed.PreferDevice, managed.PreferHost, managed.AccessedByDevice,
}

// TestManaged: a program may prefetch and advise wherever it runs. Memory keeps its contents, and
// misuse is refused on the host as on a GPU.
func TestManaged(t *testing.T) {
	spmdtest.Run(t, everyRanks, func(t *testing.T, w *spmd.World) {
		const n, from, to = 1<<18 + 7, 1000, 200001
		s := stream(t, w, "s")
		x, err := managed.Alloc[int32](w, n)
		must(t, err)
		for i := range x.Host() {
			x.Host()[i] = int32(i)
		}
		part := x.Slice(from, to)
		must(t, managed.Prefetch(s, x, managed.ToDevice))
		for _, a := range allAdvice {
			must(t, managed.Advise(part, a))
			must(t, spmd.Fill(s, part, int32(a)))
			must(t, managed.Prefetch(s, part, managed.ToHost))
			must(t, s.Synchronize())
			for i, v := range x.Host() {
				want := int32(i)
				if i >= from && i < to {
					want = int32(a)
				}
				if v != want {
					t.Fatalf("advice %d: [%d] = %d, want %d", a, i, v, want)
				}
			}
		}
		must(t, managed.Prefetch(s, x.Slice(5, 5), managed.ToDevice))
		must(t, managed.Advise(x.Slice(5, 5), managed.ReadMostly))
		must(t, managed.Advise(spmd.Buffer[int32]{}, managed.ReadMostly))
		must(t, managed.Prefetch(s, spmd.Buffer[int32]{}, managed.ToHost))

		wantText(t, managed.Prefetch(s, x, 2), "managed_test.go", "no such place: 2")
		wantText(t, managed.Advise(x, 0), "managed_test.go", "no such advice: 0")
		wantText(t, managed.Advise(x, 5), "managed_test.go", "no such advice: 5")
		refusedInCapture(t, s, x)
		must(t, x.Free())
		wantText(t, managed.Prefetch(s, part, managed.ToDevice), "managed_test.go", "was freed at spmd/managed_test.go")
		wantText(t, managed.Advise(part, managed.ReadMostly), "managed_test.go", "was freed at spmd/managed_test.go")
	})
}

// refusedInCapture: a capture goes on without the prefetch.
func refusedInCapture(t *testing.T, s *spmd.Stream, x spmd.Buffer[int32]) {
	t.Helper()
	g, err := s.Capture(func() error {
		wantText(t, managed.Prefetch(s, x, managed.ToDevice), "managed_test.go", `stream "s" is being captured`,
			"call it before Launch")
		return spmd.Fill(s, x, 7)
	})
	must(t, err)
	must(t, g.Launch(s))
	must(t, s.Synchronize())
	if got := x.At(x.Len() - 1); got != 7 {
		t.Errorf("the graph left %d, want 7", got)
	}
	must(t, g.Close())
}

// gpuManaged: the driver's arguments, the bytes and the place.
func gpuManaged(t *testing.T, w *spmd.World) {
	s := stream(t, w, "s")
	const n = 1 << 20 // elements: a block of its own
	x, err := managed.Alloc[int32](w, n)
	must(t, err)
	wantTold := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, line := range newCalls(t, "cuMemPrefetch", "cuMemAdvise") {
			if name, _, _ := strings.Cut(line, " "); name == "cuMemAdvise_v2" {
				got = append(got, fmt.Sprint("advice ", value(line, "advice"), " ", value(line, "of"), " ",
					number64(t, line, "p")-uint64(x.Address()), " ", value(line, "bytes")))
			} else {
				got = append(got, fmt.Sprint("to ", value(line, "to"), " ", number64(t, line, "p")-uint64(x.Address()),
					" ", value(line, "bytes")))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: the driver is told %q, want %q", what, got, want)
		}
	}
	newCalls(t)
	must(t, managed.Prefetch(s, x, managed.ToDevice))
	must(t, managed.Prefetch(s, x.Slice(3, 1003), managed.ToHost))
	must(t, managed.Prefetch(s, x.Slice(3, 3), managed.ToHost))
	wantTold("prefetches", "to 1:0 0 4194304", "to 2:0 12 4000")
	for _, a := range allAdvice {
		must(t, managed.Advise(x.Slice(100, 200), a))
	}
	must(t, managed.Advise(x.Slice(3, 3), managed.ReadMostly))
	wantTold("advice", "advice 1 1:0 400 400", "advice 3 1:0 400 400", "advice 3 2:0 400 400",
		"advice 5 1:0 400 400")
	must(t, s.Synchronize())
	refusedInCapture(t, s, x)
	wantTold("in a capture")

	// Collectives in flight come first.
	y := alloc[float32](t, w, n)
	must(t, spmd.AllReduce(w.Comm().On(s), y, y, spmd.Sum))
	newCalls(t)
	injected("cuEventQuery=600@1,cuEventQuery=600@2", func() { must(t, managed.Advise(x, managed.ReadMostly)) })
	if got := newCalls(t, "cuEventQuery", "cuMemAdvise"); len(got) != 4 ||
		!strings.HasPrefix(got[3], "cuMemAdvise_v2 ") {
		t.Errorf("%q, want it to wait until the collective is over", got)
	}

	// The next owner of the memory does not get the advice, once.
	was := x.Address()
	must(t, x.Free())
	for _, want := range [][]string{{"advice 2 1:0 0 4194304", "advice 4 1:0 0 4194304",
		"advice 6 1:0 0 4194304"}, nil} {
		x, err = managed.Alloc[int32](w, n)
		must(t, err)
		if x.Address() != was {
			t.Fatal("the block is not used again")
		}
		wantTold("memory used again", want...)
		must(t, x.Free())
	}

	// Other memory, and the driver's refusals.
	pinned, err := spmd.AllocPinned[float32](w, 9)
	must(t, err)
	for _, b := range []spmd.Buffer[float32]{y, pinned} {
		wantText(t, managed.Prefetch(s, b, managed.ToDevice), "managed_test.go",
			"managed.Prefetch: the buffer is not of managed.Alloc")
		wantText(t, managed.Advise(b, managed.ReadMostly), "managed_test.go",
			"managed.Advise: the buffer is not of managed.Alloc")
	}
	wantTold("other memory")
	x, err = managed.Alloc[int32](w, n)
	must(t, err)
	injected("cuMemPrefetchAsync_v2=801,cuMemAdvise_v2=801", func() {
		wantText(t, managed.Prefetch(s, x, managed.ToHost), "managed_test.go", "cuMemPrefetchAsync",
			"CUDA_ERROR_NOT_SUPPORTED (801)", "4194304 bytes to the host")
		wantText(t, managed.Advise(x, managed.PreferHost), "managed_test.go", "cuMemAdvise",
			"CUDA_ERROR_NOT_SUPPORTED (801)")
		must(t, x.Free())
		_, err = managed.Alloc[int32](w, n)
		wantText(t, err, "managed_test.go", "Alloc of 1048576 int32", "cuMemAdvise")
	})
	must(t, errors.Join(s.Synchronize(), y.Free(), pinned.Free()))
}
