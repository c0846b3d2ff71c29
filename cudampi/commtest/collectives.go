package commtest

import (
	"testing"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// Communicator is one of package cudampi, or one that wraps it.
type Communicator interface {
	Ranks
	Barrier() error
	AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error
	Reduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error
	Scan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error
	ExScan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error
	Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error
	AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error
	AllGatherV(dst, src unsafe.Pointer, counts []int, t elem.Type) error
	ReduceScatter(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error
	ReduceScatterV(dst, src unsafe.Pointer, counts []int, t elem.Type, op elem.Op) error
	AllToAll(dst, src unsafe.Pointer, n int, t elem.Type) error
	AllToAllV(dst unsafe.Pointer, recvCounts []int, src unsafe.Pointer, sendCounts []int, t elem.Type) error
	Gather(dst, src unsafe.Pointer, n int, t elem.Type, root int) error
	GatherV(dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error
	Scatter(dst, src unsafe.Pointer, n int, t elem.Type, root int) error
	ScatterV(dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error
	Send(src unsafe.Pointer, n int, t elem.Type, to int) error
	Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error
	SendRecv(dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type) error
}

// Lengths are the lengths of calls: nothing, fewer than ranks, and no multiple of any number of
// ranks or of vectors.
var Lengths = []int{0, 1, 3, 67}

// eachType calls the functions, one for each type. make test has every type on some number of ranks
// up to 3, make test-all on all.
func eachType(ranks int, calls ...func()) {
	for k, call := range calls {
		if testkit.AllCases() || k%3 == ranks%3 {
			call()
		}
	}
}

// TypesLeft says what eachType leaves out of a test on so many numbers of ranks.
func TypesLeft(t *testing.T, ranks int, what string) {
	t.Helper()
	testkit.More(t, ranks*int(elem.Types)*len(Lengths)*2/3, "types by lengths and numbers of ranks of "+what)
}

// EveryReduction runs the reductions of n elements of every type by every operation.
func EveryReduction(t *testing.T, c Communicator, n int) {
	for op := elem.Op(0); op < elem.Ops; op++ {
		eachType(c.Size(),
			func() { Reductions[int8](t, c, n, op) },
			func() { Reductions[uint8](t, c, n, op) },
			func() { Reductions[int32](t, c, n, op) },
			func() { Reductions[uint32](t, c, n, op) },
			func() { Reductions[int64](t, c, n, op) },
			func() { Reductions[uint64](t, c, n, op) },
			func() { Reductions[elem.F16](t, c, n, op) },
			func() { Reductions[elem.BF16](t, c, n, op) },
			func() { Reductions[float32](t, c, n, op) },
			func() { Reductions[float64](t, c, n, op) },
			func() { Reductions[complex64](t, c, n, op) },
			func() { Reductions[complex128](t, c, n, op) },
		)
	}
}

// Reductions runs the reductions of n elements by op, for Min and Max of floats also with Extremes.
// It does nothing if the type lacks the operation.
func Reductions[T elem.Elem](t *testing.T, c Communicator, n int, op elem.Op) {
	if !op.On(elem.Of[T]()) {
		return
	}
	reductions(t, c, n, op, Input[T])
	if HasExtremes[T](op) {
		reductions(t, c, n, op, Extremes[T](c.Size()))
	}
}

func reductions[T elem.Elem](t *testing.T, c Communicator, n int, op elem.Op, values Values[T]) {
	ty := elem.Of[T]()
	in := values(c.Rank(), n)
	want := values.Reduced(c.Size(), n, op)

	src, dst := Hold(in), Alloc[T](n)
	Must(t, c.AllReduce(dst.Ptr(), src.Ptr(), n, ty, op))
	dst.Same(t, c, want, "AllReduce %v", op)
	alike(t, c, dst.Data(), op)
	src.Same(t, c, in, "src of AllReduce %v", op)
	Must(t, c.AllReduce(src.Ptr(), src.Ptr(), n, ty, op))
	src.Same(t, c, want, "AllReduce %v in place", op)

	for _, root := range []int{0, c.Size() - 1} {
		src, dst = Hold(values(c.Rank(), n)), Alloc[T](n)
		Must(t, c.Reduce(dst.Ptr(), src.Ptr(), n, ty, op, root))
		src.Same(t, c, in, "src of Reduce %v", op)
		if c.Rank() == root {
			dst.Same(t, c, want, "Reduce %v", op)
		} else {
			dst.Same(t, c, Alloc[T](n).Data(), "unused dst of Reduce %v", op)
		}
		Must(t, c.Reduce(src.Ptr(), src.Ptr(), n, ty, op, root))
		if c.Rank() == root {
			src.Same(t, c, want, "Reduce %v in place", op)
		} else {
			src.Same(t, c, in, "src of Reduce %v in place", op)
		}
	}

	if op != elem.Avg {
		scans(t, c, in, op, values)
	}

	all := n * c.Size()
	in, want = values(c.Rank(), all), values.Reduced(c.Size(), all, op)
	src, dst = Hold(in), Alloc[T](n)
	lo := c.Rank() * n
	Must(t, c.ReduceScatter(dst.Ptr(), src.Ptr(), n, ty, op))
	dst.Same(t, c, want[lo:lo+n], "ReduceScatter %v", op)
	src.Same(t, c, in, "src of ReduceScatter %v", op)
	Must(t, c.ReduceScatter(Ptr(src.Data()[lo:lo+n]), src.Ptr(), n, ty, op))
	copy(in[lo:lo+n], want[lo:lo+n])
	src.Same(t, c, in, "ReduceScatter %v in place", op)

	for shift := range 2 {
		counts, total, lo := Uneven(c, n, shift)
		n := counts[c.Rank()]
		in, want := values(c.Rank(), total), values.Reduced(c.Size(), total, op)
		src, dst := Hold(in), Alloc[T](n)
		Must(t, c.ReduceScatterV(dst.Ptr(), src.Ptr(), counts, ty, op))
		dst.Same(t, c, want[lo:lo+n], "ReduceScatterV %v %v", op, counts)
		src.Same(t, c, in, "src of ReduceScatterV %v %v", op, counts)
		Must(t, c.ReduceScatterV(Ptr(src.Data()[lo:lo+n]), src.Ptr(), counts, ty, op))
		copy(in[lo:lo+n], want[lo:lo+n])
		src.Same(t, c, in, "ReduceScatterV %v %v in place", op, counts)
	}
}

// alike fails the test unless all ranks have the same bits.
func alike[T elem.Elem](t *testing.T, c Communicator, result []T, op elem.Op) {
	t.Helper()
	n := len(result)
	all := make([]T, n*c.Size())
	Must(t, c.AllGather(Ptr(all), Ptr(result), n, elem.Of[T]()))
	for i, x := range all {
		if n > 0 && bits(x) != bits(result[i%n]) {
			t.Fatalf("AllReduce %v: [%d] is %#x on rank %d, %#x on rank %d",
				op, i%n, bits(x), i/n, bits(result[i%n]), c.Rank())
		}
	}
}

// scans runs the scans of in, this rank's input.
func scans[T elem.Elem](t *testing.T, c Communicator, in []T, op elem.Op, values Values[T]) {
	n, ty, before := len(in), elem.Of[T](), Alloc[T](len(in)).Data() // rank 0 keeps this in dst
	if c.Rank() > 0 {
		before = values.Reduced(c.Rank(), n, op)
	}
	src, dst := Hold(values(c.Rank(), n)), Alloc[T](n)
	Must(t, c.ExScan(dst.Ptr(), src.Ptr(), n, ty, op))
	dst.Same(t, c, before, "ExScan %v", op)
	src.Same(t, c, in, "src of ExScan %v", op)
	Must(t, c.Scan(dst.Ptr(), src.Ptr(), n, ty, op))
	dst.Same(t, c, values.Reduced(c.Rank()+1, n, op), "Scan %v", op)
	src.Same(t, c, in, "src of Scan %v", op)
	Must(t, c.Scan(src.Ptr(), src.Ptr(), n, ty, op))
	src.Same(t, c, dst.Data(), "Scan %v in place", op)

	src = Hold(values(c.Rank(), n))
	Must(t, c.ExScan(src.Ptr(), src.Ptr(), n, ty, op))
	if c.Rank() == 0 {
		before = in
	}
	src.Same(t, c, before, "ExScan %v in place", op)
}

// Uneven returns a list of counts, some of them zero, their sum, and where this rank's part begins.
func Uneven(c Communicator, n, shift int) (counts []int, total, offset int) {
	for r := range c.Size() {
		if r == c.Rank() {
			offset = total
		}
		k := []int{n, 0, 2*n + 1, n / 2}[(r+shift)%4]
		counts = append(counts, k)
		total += k
	}
	return counts, total, offset
}

// EveryMove runs the collectives that only move data on n elements of every type.
func EveryMove(t *testing.T, c Communicator, n int) {
	eachType(c.Size(),
		func() { Moves[int8](t, c, n) },
		func() { Moves[uint8](t, c, n) },
		func() { Moves[int32](t, c, n) },
		func() { Moves[uint32](t, c, n) },
		func() { Moves[int64](t, c, n) },
		func() { Moves[uint64](t, c, n) },
		func() { Moves[elem.F16](t, c, n) },
		func() { Moves[elem.BF16](t, c, n) },
		func() { Moves[float32](t, c, n) },
		func() { Moves[float64](t, c, n) },
		func() { Moves[complex64](t, c, n) },
		func() { Moves[complex128](t, c, n) },
	)
}

// Moves runs the collectives that only move data on n elements, and on lengths around n if
// ranks differ.
func Moves[T elem.Elem](t *testing.T, c Communicator, n int) {
	ty := elem.Of[T]()
	all, lo := n*c.Size(), c.Rank()*n
	in := Input[T](c.Rank(), n)
	var gathered []T // every rank's input in rank order
	for r := range c.Size() {
		gathered = append(gathered, Input[T](r, n)...)
	}
	whole := Input[T](5, all) // what a root has for all

	Must(t, c.Barrier())
	for _, root := range []int{0, c.Size() - 1} {
		buf := Filled[T](c.Rank(), n)
		Must(t, c.Broadcast(buf.Ptr(), n, ty, root))
		buf.Same(t, c, Input[T](root, n), "Broadcast")

		src, dst := Filled[T](c.Rank(), n), Alloc[T](all)
		Must(t, c.Gather(dst.Ptr(), src.Ptr(), n, ty, root))
		if c.Rank() == root {
			dst.Same(t, c, gathered, "Gather")
			dst = Alloc[T](all)
			copy(dst.Data()[lo:], in)
			Must(t, c.Gather(dst.Ptr(), Ptr(dst.Data()[lo:lo+n]), n, ty, root))
			dst.Same(t, c, gathered, "Gather in place")
		} else {
			dst.Same(t, c, Alloc[T](all).Data(), "unused dst of Gather")
			Must(t, c.Gather(nil, src.Ptr(), n, ty, root))
		}
		src.Same(t, c, in, "src of Gather")

		src, dst = Alloc[T](all), Alloc[T](n)
		if c.Rank() == root {
			copy(src.Data(), whole)
		}
		Must(t, c.Scatter(dst.Ptr(), src.Ptr(), n, ty, root))
		dst.Same(t, c, whole[lo:lo+n], "Scatter")
		dst = Alloc[T](n)
		if c.Rank() == root {
			Must(t, c.Scatter(Ptr(src.Data()[lo:lo+n]), src.Ptr(), n, ty, root))
			src.Same(t, c, whole, "Scatter in place")
		} else {
			Must(t, c.Scatter(dst.Ptr(), nil, n, ty, root))
			dst.Same(t, c, whole[lo:lo+n], "Scatter")
		}
	}

	src, dst := Filled[T](c.Rank(), n), Alloc[T](all)
	Must(t, c.AllGather(dst.Ptr(), src.Ptr(), n, ty))
	dst.Same(t, c, gathered, "AllGather")
	dst = Alloc[T](all)
	copy(dst.Data()[lo:], in)
	Must(t, c.AllGather(dst.Ptr(), Ptr(dst.Data()[lo:lo+n]), n, ty))
	dst.Same(t, c, gathered, "AllGather in place")

	src, dst = Filled[T](c.Rank(), all), Alloc[T](all)
	var want []T
	for r := range c.Size() {
		want = append(want, Input[T](r, all)[lo:lo+n]...)
	}
	Must(t, c.AllToAll(dst.Ptr(), src.Ptr(), n, ty))
	dst.Same(t, c, want, "AllToAll")
	src.Same(t, c, Input[T](c.Rank(), all), "src of AllToAll")
	Must(t, c.AllToAll(src.Ptr(), src.Ptr(), n, ty))
	src.Same(t, c, want, "AllToAll in place")

	for shift := range 2 {
		vectors[T](t, c, n, shift)
	}
}

func vectors[T elem.Elem](t *testing.T, c Communicator, n, shift int) {
	ty := elem.Of[T]()
	counts, total, lo := Uneven(c, n, shift)
	n = counts[c.Rank()]
	in, whole := Input[T](c.Rank(), n), Input[T](5, total)
	var gathered []T
	for r, k := range counts {
		gathered = append(gathered, Input[T](r, k)...)
	}

	src, dst := Filled[T](c.Rank(), n), Alloc[T](total)
	Must(t, c.AllGatherV(dst.Ptr(), src.Ptr(), counts, ty))
	dst.Same(t, c, gathered, "AllGatherV %v", counts)
	dst = Alloc[T](total)
	copy(dst.Data()[lo:], in)
	Must(t, c.AllGatherV(dst.Ptr(), Ptr(dst.Data()[lo:lo+n]), counts, ty))
	dst.Same(t, c, gathered, "AllGatherV %v in place", counts)

	for _, root := range []int{0, c.Size() - 1} {
		src, dst = Filled[T](c.Rank(), n), Alloc[T](total)
		Must(t, c.GatherV(dst.Ptr(), src.Ptr(), counts, ty, root))
		if c.Rank() == root {
			dst.Same(t, c, gathered, "GatherV %v", counts)
			dst = Alloc[T](total)
			copy(dst.Data()[lo:], in)
			Must(t, c.GatherV(dst.Ptr(), Ptr(dst.Data()[lo:lo+n]), counts, ty, root))
			dst.Same(t, c, gathered, "GatherV %v in place", counts)
		} else {
			dst.Same(t, c, Alloc[T](total).Data(), "unused dst of GatherV %v", counts)
			Must(t, c.GatherV(nil, src.Ptr(), counts, ty, root))
		}

		src, dst = Alloc[T](total), Alloc[T](n)
		if c.Rank() == root {
			copy(src.Data(), whole)
		}
		Must(t, c.ScatterV(dst.Ptr(), src.Ptr(), counts, ty, root))
		dst.Same(t, c, whole[lo:lo+n], "ScatterV %v", counts)
		if c.Rank() == root {
			Must(t, c.ScatterV(Ptr(src.Data()[lo:lo+n]), src.Ptr(), counts, ty, root))
			src.Same(t, c, whole, "ScatterV %v in place", counts)
		} else {
			Must(t, c.ScatterV(dst.Ptr(), nil, counts, ty, root))
			dst.Same(t, c, whole[lo:lo+n], "ScatterV %v", counts)
		}
	}

	// Rank s sends pair(s, r) elements to rank r, from the front of its own input.
	pair := func(s, r int) int { return []int{0, 1, n0(counts), 2}[(s*2+r+shift)%4] }
	var send, recv []int
	sendTotal, recvTotal := 0, 0
	var want []T
	for r := range c.Size() {
		send, recv = append(send, pair(c.Rank(), r)), append(recv, pair(r, c.Rank()))
		sendTotal, recvTotal = sendTotal+pair(c.Rank(), r), recvTotal+pair(r, c.Rank())
		skip := 0 // what rank r sends to the ranks before this one
		for q := range c.Rank() {
			skip += pair(r, q)
		}
		want = append(want, Input[T](r, skip+pair(r, c.Rank()))[skip:]...)
	}
	src, dst = Filled[T](c.Rank(), sendTotal), Alloc[T](recvTotal)
	Must(t, c.AllToAllV(dst.Ptr(), recv, src.Ptr(), send, ty))
	dst.Same(t, c, want, "AllToAllV %v -> %v", send, recv)
	src.Same(t, c, Input[T](c.Rank(), sendTotal), "src of AllToAllV")
}

// n0 is the same on every rank, unlike a rank's own count.
func n0(counts []int) int { return counts[0] }
