package spmd_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

var allAdvice = []spmd.Advice{
	spmd.ReadMostly, spmd.NotReadMostly, spmd.PreferDevice, spmd.PreferHost, spmd.PreferNone,
	spmd.AccessedByDevice, spmd.NotAccessedByDevice,
}

// TestManaged: a program may prefetch and advise wherever it runs. Memory keeps its contents, and
// misuse is refused on the host as on a GPU.
func TestManaged(t *testing.T) {
	spmdtest.Run(t, everyRanks, func(t *testing.T, w *spmd.World) {
		const n, from, to = 1<<18 + 7, 1000, 200001
		s := stream(t, w, "s")
		x, err := spmd.AllocManaged[int32](w, n)
		must(t, err)
		for i := range x.Host() {
			x.Host()[i] = int32(i)
		}
		part := x.Slice(from, to)
		must(t, x.Prefetch(s, spmd.ToDevice))
		for _, a := range allAdvice {
			must(t, part.Advise(a))
			must(t, spmd.Fill(s, part, int32(a)))
			must(t, part.Prefetch(s, spmd.ToHost))
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
		must(t, x.Slice(5, 5).Prefetch(s, spmd.ToDevice))
		must(t, x.Slice(5, 5).Advise(spmd.ReadMostly))
		must(t, spmd.Buffer[int32]{}.Advise(spmd.ReadMostly))
		must(t, spmd.Buffer[int32]{}.Prefetch(s, spmd.ToHost))

		wantText(t, x.Prefetch(s, 2), "managed_test.go", "no such place: 2")
		wantText(t, x.Advise(0), "managed_test.go", "no such advice: 0")
		wantText(t, x.Advise(8), "managed_test.go", "no such advice: 8")
		refusedInCapture(t, s, x)
		must(t, x.Free())
		wantText(t, part.Prefetch(s, spmd.ToDevice), "managed_test.go", "was freed at spmd/managed_test.go")
		wantText(t, part.Advise(spmd.ReadMostly), "managed_test.go", "was freed at spmd/managed_test.go")
	})
}

// refusedInCapture: a capture goes on without the prefetch.
func refusedInCapture(t *testing.T, s *spmd.Stream, x spmd.Buffer[int32]) {
	t.Helper()
	g, err := s.Capture(func() error {
		wantText(t, x.Prefetch(s, spmd.ToDevice), "managed_test.go", `stream "s" is being captured`,
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
	x, err := spmd.AllocManaged[int32](w, n)
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
	must(t, x.Prefetch(s, spmd.ToDevice))
	must(t, x.Slice(3, 1003).Prefetch(s, spmd.ToHost))
	must(t, x.Slice(3, 3).Prefetch(s, spmd.ToHost))
	wantTold("prefetches", "to 1:0 0 4194304", "to 2:0 12 4000")
	for _, a := range allAdvice {
		must(t, x.Slice(100, 200).Advise(a))
	}
	must(t, x.Slice(3, 3).Advise(spmd.ReadMostly))
	wantTold("advice", "advice 1 1:0 400 400", "advice 2 1:0 400 400", "advice 3 1:0 400 400", "advice 3 2:0 400 400",
		"advice 4 1:0 400 400", "advice 5 1:0 400 400", "advice 6 1:0 400 400")
	must(t, s.Synchronize())
	refusedInCapture(t, s, x)
	wantTold("in a capture")

	// Collectives in flight come first.
	y := alloc[float32](t, w, n)
	must(t, spmd.AllReduce(w.Comm().On(s), y, y, spmd.Sum))
	newCalls(t)
	injected("cuEventQuery=600@1,cuEventQuery=600@2", func() { must(t, x.Advise(spmd.ReadMostly)) })
	if got := newCalls(t, "cuEventQuery", "cuMemAdvise"); len(got) != 4 ||
		!strings.HasPrefix(got[3], "cuMemAdvise_v2 ") {
		t.Errorf("%q, want it to wait until the collective is over", got)
	}

	// The next owner of the memory does not get the advice, once.
	was := x.Address()
	must(t, x.Free())
	for _, want := range [][]string{{"advice 2 1:0 0 4194304", "advice 4 1:0 0 4194304",
		"advice 6 1:0 0 4194304"}, nil} {
		x, err = spmd.AllocManaged[int32](w, n)
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
		wantText(t, b.Prefetch(s, spmd.ToDevice), "managed_test.go", "Prefetch: the buffer is not of AllocManaged")
		wantText(t, b.Advise(spmd.ReadMostly), "managed_test.go", "Advise: the buffer is not of AllocManaged")
	}
	wantTold("other memory")
	x, err = spmd.AllocManaged[int32](w, n)
	must(t, err)
	injected("cuMemPrefetchAsync_v2=801,cuMemAdvise_v2=801", func() {
		wantText(t, x.Prefetch(s, spmd.ToHost), "managed_test.go", "cuMemPrefetchAsync",
			"CUDA_ERROR_NOT_SUPPORTED (801)", "4194304 bytes to the host")
		wantText(t, x.Advise(spmd.PreferHost), "managed_test.go", "cuMemAdvise", "CUDA_ERROR_NOT_SUPPORTED (801)")
		must(t, x.Free())
		_, err = spmd.AllocManaged[int32](w, n)
		wantText(t, err, "managed_test.go", "Alloc of 1048576 int32", "cuMemAdvise")
	})
	must(t, errors.Join(s.Synchronize(), y.Free(), pinned.Free()))
}
