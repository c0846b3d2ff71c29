package spmd_test

import (
	"slices"
	"testing"
	"unsafe"

	"lockstep/cuda/nvrtc"
	"lockstep/spmd"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/managed"
	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// The kernel that fills memory writes each byte of it and no other, wherever it begins.
func TestFillKernel(t *testing.T) {
	const name = "fill_bytes"
	all := kernels.All()
	i := slices.IndexFunc(all, func(s kernels.Source) bool { return slices.Contains(s.Names, name) })
	if i < 0 {
		t.Fatalf("no kernel %s is declared", name)
	}
	p, err := kernels.Emulate(nvrtc.DefaultCache().Dir,
		kernels.EmulatedSource{Text: all[i].Text, Flags: all[i].AllFlags(), Names: all[i].Names,
			Headers: kernels.Headers})
	if err != nil {
		t.Skip(err)
	}
	const before, size = 0xee, 128
	even, odd := uint64(0x8877665544332211), uint64(0x0fedcba987654321)
	memory := make([]uint64, size/8)
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&memory[0])), size)
	for off := range 8 {
		for n := range 40 {
			for i := range bytes {
				bytes[i] = before
			}
			words := []uint64{uint64(uintptr(unsafe.Pointer(&bytes[16+off]))), uint64(n), even, odd}
			for block := range 2 { // of 2 threads: the loops go on
				must(t, p.Launch(name, kernels.Part{Blocks: [3]int{2, 1, 1}, Threads: [3]int{2, 1, 1}, First: block,
					Last: block + 1}, words,
					[]uint32{0, 1, 2, 3}))
			}
			for i, got := range bytes {
				want := byte(before)
				if at := i - 16 - off; at >= 0 && at < n {
					want = byte([]uint64{even, odd}[at/8%2] >> (8 * (at % 8)))
				}
				if got != want {
					t.Fatalf("%d bytes from %d on: byte %d is %#x, want %#x", n, off, i-16-off, got, want)
				}
			}
		}
	}
}

// A fill of any memory is only enqueued, also behind a command that waits for the caller, and in a
// graph.
func TestFillIsEnqueued(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		fillIsEnqueued(t, w, int8(-7))
		fillIsEnqueued(t, w, spmd.ToF16(1.5))
		fillIsEnqueued(t, w, float32(0.1))
		fillIsEnqueued(t, w, int64(-1)<<40)
		fillIsEnqueued(t, w, complex(1.5, -2))
	})
}

func fillIsEnqueued[T spmd.Stored](t *testing.T, w *spmd.World, v T) {
	t.Helper()
	const n, lo, hi = 1001, 3, 998 // not whole words
	var zero T
	want := slices.Concat(make([]T, lo), slices.Repeat([]T{v}, hi-lo), make([]T, n-hi))
	s := stream(t, w, "fills")
	for kind, alloc := range map[string]func(*spmd.World, int) (spmd.Buffer[T], error){
		"device": spmd.Alloc[T], "pinned": spmd.AllocPinned[T], "managed": managed.Alloc[T],
	} {
		x, err := alloc(w, n)
		must(t, err)
		must(t, x.SetAll(zero))
		open := make(chan struct{})
		must(t, s.HostFunc(func() error { <-open; return nil }))
		must(t, spmd.Fill(s, x.Slice(lo, hi), v))
		close(open) // which would not be reached if the fill waited
		must(t, s.Synchronize())
		got := make([]T, n)
		must(t, x.CopyTo(got))
		if !slices.Equal(got, want) {
			t.Errorf("%T, %s: %v ...", v, kind, got[:8])
		}
		must(t, x.SetAll(zero))
		g, err := s.Capture(func() error { return spmd.Fill(s, x.Slice(lo, hi), v) })
		must(t, err)
		must(t, g.Launch(s))
		must(t, s.Synchronize())
		must(t, x.CopyTo(got))
		if !slices.Equal(got, want) {
			t.Errorf("%T, %s, in a graph: %v ...", v, kind, got[:8])
		}
		must(t, g.Close())
		must(t, x.Free())
	}
	must(t, s.Close())
}
