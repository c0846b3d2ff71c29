package spmd_test

import (
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/spmdtest"
)

// Sums and products of complex numbers are Go's; Avg divides the parts; all moves carry them. Parts
// are small integers, so that every order is exact.
func TestComplex(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		complexCalls[complex64](t, w, func(re, im int) complex64 { return complex(float32(re), float32(im)) })
		complexCalls[complex128](t, w, func(re, im int) complex128 { return complex(float64(re), float64(im)) })
	})
}

func complexCalls[T complex64 | complex128](t *testing.T, w *spmd.World, of func(re, im int) T) {
	const n = 37
	size, me := w.Size(), w.Rank()
	input := func(rank int) []T {
		x := make([]T, n)
		for i := range x {
			x[i] = of(i%5-rank, rank+i%3)
		}
		return x
	}
	s, err := w.NewStream("complex")
	spmdtest.Must(t, err)
	src, dst, all := alloc[T](t, w, n), alloc[T](t, w, n), alloc[T](t, w, n*size)
	spmdtest.Must(t, src.CopyFrom(input(me)))
	for _, op := range []spmd.Op{spmd.Sum, spmd.Prod, spmd.Avg} {
		spmdtest.Must(t, dst.SetAll(of(1, 2)))
		g, err := s.Capture(func() error { return spmd.AllReduce(w.Comm().On(s), dst, src, op) })
		spmdtest.Must(t, err)
		spmdtest.Must(t, g.Launch(s))
		got := make([]T, n)
		spmdtest.Must(t, dst.CopyTo(got))
		for i := range got {
			want := input(0)[i]
			for r := 1; r < size; r++ {
				if op == spmd.Prod {
					want *= input(r)[i]
				} else {
					want += input(r)[i]
				}
			}
			if op == spmd.Avg { // of which the reference divides in another way
				if d := got[i] - want/of(size, 0); real(complex128(d*T(of(1<<20, 0)))) > 1 ||
					imag(complex128(d*T(of(1<<20, 0)))) > 1 {
					t.Fatalf("average %d is %v, want %v", i, got[i], want/of(size, 0))
				}
			} else if got[i] != want {
				t.Fatalf("%v: element %d is %v, want %v", op, i, got[i], want)
			}
		}
	}
	spmdtest.Must(t, spmd.AllGather(w.Comm(), all, src))
	for r := range size {
		if got, want := all.At(r*n+4), input(r)[4]; got != want {
			t.Errorf("of rank %d came %v, not %v", r, got, want)
		}
	}
	spmdtest.Must(t, spmd.ExScan(w.Comm().On(s), dst, src, spmd.Prod))
	spmdtest.Must(t, s.Synchronize())
	if want := input(0)[6]; me == 1 && dst.At(6) != want {
		t.Errorf("ExScan gave %v, not %v", dst.At(6), want)
	}
	product, err := hostdata.AllReduce(w.Comm(), of(me+1, 0), spmd.Prod)
	spmdtest.Must(t, err)
	if want := of([]int{1: 1, 3: 6}[size], 0); product != want {
		t.Errorf("the product of numbers is %v, not %v", product, want)
	}
	err = spmd.AllReduce(w.Comm(), dst, src, spmd.Max)
	testkit.Refused(t, err, "has no order, and no max")
	spmdtest.Must(t, spmd.Fill(s, dst, of(3, -4)))
	spmdtest.Must(t, s.Synchronize())
	if dst.At(n-1) != of(3, -4) || dst.At(0) != of(3, -4) {
		t.Errorf("filled with %v", dst.At(0))
	}
}

type particle struct {
	at     [3]float32
	charge int8
	serial uint64
}

// Structs are moved as they are. Types that hold pointers are refused.
func TestStructs(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		size, me, each := w.Size(), w.Rank(), int(unsafe.Sizeof(particle{}))
		of := func(r, i int) particle {
			return particle{at: [3]float32{float32(r), 2, 3}, charge: -1, serial: uint64(1000*r + i)}
		}
		mine, err := spmd.AllocStructs[particle](w, 5)
		spmdtest.Must(t, err)
		all, err := spmd.AllocStructs[particle](w, 5*size)
		spmdtest.Must(t, err)
		h := make([]particle, 5)
		for i := range h {
			h[i] = of(me, i)
		}
		spmdtest.Must(t, mine.CopyFrom(h))
		spmdtest.Must(t, spmd.AllGather(w.Comm(), all.Bytes(), mine.Bytes()))
		got := make([]particle, 5*size)
		spmdtest.Must(t, all.CopyTo(got))
		for k, p := range got {
			if p != of(k/5, k%5) {
				t.Fatalf("struct %d is %v, want %v", k, p, of(k/5, k%5))
			}
		}
		spmdtest.Must(t, spmd.Broadcast(w.Comm(), mine.Bytes().Slice(each, 3*each), size-1))
		spmdtest.Must(t, mine.CopyTo(h))
		if h[0] != of(me, 0) || h[1] != of(size-1, 1) || h[2] != of(size-1, 2) || h[3] != of(me, 3) || mine.Len() != 5 {
			t.Errorf("after the broadcast they are %v", h)
		}
		if _, err := spmd.AllocStructs[struct{ name string }](w, 1); err == nil ||
			!strings.Contains(err.Error(), "struct { name string }: it holds pointers") {
			t.Errorf("a struct with a string: %v", err)
		}
		if err := mine.CopyTo(h[:2]); err == nil {
			t.Error("copied into a shorter slice")
		}
		spmdtest.Must(t, mine.Bytes().Free())
	})
}
