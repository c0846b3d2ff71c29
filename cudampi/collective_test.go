package cudampi

import (
	"testing"

	"lockstep/internal/elem"
)

var lengths = []int{0, 1, 3, 67} // nothing, fewer than ranks, no multiple of any rank count or vector width

// TestReductions runs every reduction of every type by every operation, as single calls and in parts.
func TestReductions(t *testing.T) {
	onRanks(t, counts, func(t *testing.T, c *Comm) {
		for _, inParts := range []bool{false, true} {
			if inParts {
				lower(t)
			}
			for _, n := range lengths {
				everyReduction(t, c, n)
			}
		}
	})
}

// everyReduction runs the reductions of n elements of every type by every operation.
func everyReduction(t *testing.T, c *Comm, n int) {
	for op := elem.Op(0); op < elem.Ops; op++ {
		reductions[int8](t, c, n, op)
		reductions[uint8](t, c, n, op)
		reductions[int32](t, c, n, op)
		reductions[uint32](t, c, n, op)
		reductions[int64](t, c, n, op)
		reductions[uint64](t, c, n, op)
		reductions[elem.F16](t, c, n, op)
		reductions[elem.BF16](t, c, n, op)
		reductions[float32](t, c, n, op)
		reductions[float64](t, c, n, op)
	}
}

func reductions[T elem.Elem](t *testing.T, c *Comm, n int, op elem.Op) {
	ty := elem.Of[T]()
	in := input[T](c.rank, n)
	want := reduced[T](c.size, n, op)

	src, dst := filled[T](c.rank, n), alloc[T](n)
	must(t, c.AllReduce(dst.ptr(), src.ptr(), n, ty, op))
	dst.same(t, c, want, "AllReduce %v", op)
	src.same(t, c, in, "src of AllReduce %v", op)
	must(t, c.AllReduce(src.ptr(), src.ptr(), n, ty, op))
	src.same(t, c, want, "AllReduce %v in place", op)

	for _, root := range []int{0, c.size - 1} {
		src, dst = filled[T](c.rank, n), alloc[T](n)
		must(t, c.Reduce(dst.ptr(), src.ptr(), n, ty, op, root))
		src.same(t, c, in, "src of Reduce %v", op)
		if c.rank == root {
			dst.same(t, c, want, "Reduce %v", op)
		} else {
			dst.same(t, c, alloc[T](n).data(), "unused dst of Reduce %v", op)
		}
		must(t, c.Reduce(src.ptr(), src.ptr(), n, ty, op, root))
		if c.rank == root {
			src.same(t, c, want, "Reduce %v in place", op)
		} else {
			src.same(t, c, in, "src of Reduce %v in place", op)
		}
	}

	all := n * c.size
	in, want = input[T](c.rank, all), reduced[T](c.size, all, op)
	src, dst = filled[T](c.rank, all), alloc[T](n)
	lo := c.rank * n
	must(t, c.ReduceScatter(dst.ptr(), src.ptr(), n, ty, op))
	dst.same(t, c, want[lo:lo+n], "ReduceScatter %v", op)
	src.same(t, c, in, "src of ReduceScatter %v", op)
	must(t, c.ReduceScatter(ptr(src.data()[lo:lo+n]), src.ptr(), n, ty, op))
	copy(in[lo:lo+n], want[lo:lo+n])
	src.same(t, c, in, "ReduceScatter %v in place", op)

	for shift := range 2 {
		counts, total, lo := uneven(c, n, shift)
		n := counts[c.rank]
		in, want := input[T](c.rank, total), reduced[T](c.size, total, op)
		src, dst := filled[T](c.rank, total), alloc[T](n)
		must(t, c.ReduceScatterV(dst.ptr(), src.ptr(), counts, ty, op))
		dst.same(t, c, want[lo:lo+n], "ReduceScatterV %v %v", op, counts)
		src.same(t, c, in, "src of ReduceScatterV %v %v", op, counts)
		must(t, c.ReduceScatterV(ptr(src.data()[lo:lo+n]), src.ptr(), counts, ty, op))
		copy(in[lo:lo+n], want[lo:lo+n])
		src.same(t, c, in, "ReduceScatterV %v %v in place", op, counts)
	}
}

// uneven is a list of counts of which some are zero, their sum, and where this rank's part begins.
func uneven(c *Comm, n, shift int) (counts []int, total, offset int) {
	for r := range c.size {
		if r == c.rank {
			offset = total
		}
		k := []int{n, 0, 2*n + 1, n / 2}[(r+shift)%4]
		counts = append(counts, k)
		total += k
	}
	return counts, total, offset
}

// TestMoves runs every collective that only moves data for every type, as single calls and in parts.
func TestMoves(t *testing.T) {
	onRanks(t, counts, func(t *testing.T, c *Comm) {
		for _, inParts := range []bool{false, true} {
			if inParts {
				lower(t)
			}
			for _, n := range lengths {
				everyMove(t, c, n)
			}
		}
	})
}

// everyMove runs the collectives that only move data on n elements of every type.
func everyMove(t *testing.T, c *Comm, n int) {
	moves[int8](t, c, n)
	moves[uint8](t, c, n)
	moves[int32](t, c, n)
	moves[uint32](t, c, n)
	moves[int64](t, c, n)
	moves[uint64](t, c, n)
	moves[elem.F16](t, c, n)
	moves[elem.BF16](t, c, n)
	moves[float32](t, c, n)
	moves[float64](t, c, n)
}

func moves[T elem.Elem](t *testing.T, c *Comm, n int) {
	ty := elem.Of[T]()
	all, lo := n*c.size, c.rank*n
	in := input[T](c.rank, n)
	var gathered []T // every rank's input in rank order
	for r := range c.size {
		gathered = append(gathered, input[T](r, n)...)
	}
	whole := input[T](5, all) // what a root has for all

	must(t, c.Barrier())
	for _, root := range []int{0, c.size - 1} {
		buf := filled[T](c.rank, n)
		must(t, c.Broadcast(buf.ptr(), n, ty, root))
		buf.same(t, c, input[T](root, n), "Broadcast")

		src, dst := filled[T](c.rank, n), alloc[T](all)
		must(t, c.Gather(dst.ptr(), src.ptr(), n, ty, root))
		if c.rank == root {
			dst.same(t, c, gathered, "Gather")
			dst = alloc[T](all)
			copy(dst.data()[lo:], in)
			must(t, c.Gather(dst.ptr(), ptr(dst.data()[lo:lo+n]), n, ty, root))
			dst.same(t, c, gathered, "Gather in place")
		} else {
			dst.same(t, c, alloc[T](all).data(), "unused dst of Gather")
			must(t, c.Gather(nil, src.ptr(), n, ty, root))
		}
		src.same(t, c, in, "src of Gather")

		src, dst = alloc[T](all), alloc[T](n)
		if c.rank == root {
			copy(src.data(), whole)
		}
		must(t, c.Scatter(dst.ptr(), src.ptr(), n, ty, root))
		dst.same(t, c, whole[lo:lo+n], "Scatter")
		dst = alloc[T](n)
		if c.rank == root {
			must(t, c.Scatter(ptr(src.data()[lo:lo+n]), src.ptr(), n, ty, root))
			src.same(t, c, whole, "Scatter in place")
		} else {
			must(t, c.Scatter(dst.ptr(), nil, n, ty, root))
			dst.same(t, c, whole[lo:lo+n], "Scatter")
		}
	}

	src, dst := filled[T](c.rank, n), alloc[T](all)
	must(t, c.AllGather(dst.ptr(), src.ptr(), n, ty))
	dst.same(t, c, gathered, "AllGather")
	dst = alloc[T](all)
	copy(dst.data()[lo:], in)
	must(t, c.AllGather(dst.ptr(), ptr(dst.data()[lo:lo+n]), n, ty))
	dst.same(t, c, gathered, "AllGather in place")

	src, dst = filled[T](c.rank, all), alloc[T](all)
	var want []T
	for r := range c.size {
		want = append(want, input[T](r, all)[lo:lo+n]...)
	}
	must(t, c.AllToAll(dst.ptr(), src.ptr(), n, ty))
	dst.same(t, c, want, "AllToAll")
	src.same(t, c, input[T](c.rank, all), "src of AllToAll")
	must(t, c.AllToAll(src.ptr(), src.ptr(), n, ty))
	src.same(t, c, want, "AllToAll in place")

	for shift := range 2 {
		vectors[T](t, c, n, shift)
	}
}

func vectors[T elem.Elem](t *testing.T, c *Comm, n, shift int) {
	ty := elem.Of[T]()
	counts, total, lo := uneven(c, n, shift)
	n = counts[c.rank]
	in, whole := input[T](c.rank, n), input[T](5, total)
	var gathered []T
	for r, k := range counts {
		gathered = append(gathered, input[T](r, k)...)
	}

	src, dst := filled[T](c.rank, n), alloc[T](total)
	must(t, c.AllGatherV(dst.ptr(), src.ptr(), counts, ty))
	dst.same(t, c, gathered, "AllGatherV %v", counts)
	dst = alloc[T](total)
	copy(dst.data()[lo:], in)
	must(t, c.AllGatherV(dst.ptr(), ptr(dst.data()[lo:lo+n]), counts, ty))
	dst.same(t, c, gathered, "AllGatherV %v in place", counts)

	for _, root := range []int{0, c.size - 1} {
		src, dst = filled[T](c.rank, n), alloc[T](total)
		must(t, c.GatherV(dst.ptr(), src.ptr(), counts, ty, root))
		if c.rank == root {
			dst.same(t, c, gathered, "GatherV %v", counts)
			dst = alloc[T](total)
			copy(dst.data()[lo:], in)
			must(t, c.GatherV(dst.ptr(), ptr(dst.data()[lo:lo+n]), counts, ty, root))
			dst.same(t, c, gathered, "GatherV %v in place", counts)
		} else {
			dst.same(t, c, alloc[T](total).data(), "unused dst of GatherV %v", counts)
			must(t, c.GatherV(nil, src.ptr(), counts, ty, root))
		}

		src, dst = alloc[T](total), alloc[T](n)
		if c.rank == root {
			copy(src.data(), whole)
		}
		must(t, c.ScatterV(dst.ptr(), src.ptr(), counts, ty, root))
		dst.same(t, c, whole[lo:lo+n], "ScatterV %v", counts)
		if c.rank == root {
			must(t, c.ScatterV(ptr(src.data()[lo:lo+n]), src.ptr(), counts, ty, root))
			src.same(t, c, whole, "ScatterV %v in place", counts)
		} else {
			must(t, c.ScatterV(dst.ptr(), nil, counts, ty, root))
			dst.same(t, c, whole[lo:lo+n], "ScatterV %v", counts)
		}
	}

	// Rank s sends pair(s, r) elements to rank r, from the front of its own input on.
	pair := func(s, r int) int { return []int{0, 1, n0(counts), 2}[(s*2+r+shift)%4] }
	var send, recv []int
	sendTotal, recvTotal := 0, 0
	var want []T
	for r := range c.size {
		send, recv = append(send, pair(c.rank, r)), append(recv, pair(r, c.rank))
		sendTotal, recvTotal = sendTotal+pair(c.rank, r), recvTotal+pair(r, c.rank)
		skip := 0 // what rank r sends to the ranks before this one
		for q := range c.rank {
			skip += pair(r, q)
		}
		want = append(want, input[T](r, skip+pair(r, c.rank))[skip:]...)
	}
	src, dst = filled[T](c.rank, sendTotal), alloc[T](recvTotal)
	must(t, c.AllToAllV(dst.ptr(), recv, src.ptr(), send, ty))
	dst.same(t, c, want, "AllToAllV %v -> %v", send, recv)
	src.same(t, c, input[T](c.rank, sendTotal), "src of AllToAllV")
}

// n0 is the same on every rank, unlike a rank's own count.
func n0(counts []int) int { return counts[0] }

// TestHalfConversions takes every 16-bit float through float32 and back, and rounds sums that neither type holds.
func TestHalfConversions(t *testing.T) {
	onRanks(t, []int{1, 2}, func(t *testing.T, c *Comm) {
		const n = 1 << 16
		f, b := alloc[elem.F16](n), alloc[elem.BF16](n)
		for i := range n {
			f.data()[i], b.data()[i] = elem.F16(i), elem.BF16(i)
		}
		// The largest of equal numbers is that number, and so goes through the conversions alone.
		must(t, c.AllReduce(f.ptr(), f.ptr(), n, elem.Float16, elem.Max))
		must(t, c.AllReduce(b.ptr(), b.ptr(), n, elem.BFloat16, elem.Max))
		for i := range n {
			want, got := elem.F16(i).Float32(), f.data()[i].Float32()
			if got != want && (got == got || want == want) {
				t.Fatalf("float16 %#04x comes back as %#04x", i, f.data()[i])
			}
			want, got = elem.BF16(i).Float32(), b.data()[i].Float32()
			if got != want && (got == got || want == want) {
				t.Fatalf("bfloat16 %#04x comes back as %#04x", i, b.data()[i])
			}
		}
		if c.size == 1 {
			return
		}
		// Sums of any two: one that float32 holds exactly (checked in float64) has one right rounding.
		for _, step := range []int{1, 257, 4099, 30011} {
			for i := range n {
				j := i
				if c.rank == 1 {
					j = (i*step + 12345) & (n - 1)
				}
				f.data()[i], b.data()[i] = elem.F16(j), elem.BF16(j)
			}
			must(t, c.AllReduce(f.ptr(), f.ptr(), n, elem.Float16, elem.Sum))
			must(t, c.AllReduce(b.ptr(), b.ptr(), n, elem.BFloat16, elem.Sum))
			for i := range n {
				j := (i*step + 12345) & (n - 1)
				x, y := elem.F16(i).Float32(), elem.F16(j).Float32()
				if s := float64(x) + float64(y); s == float64(float32(s)) && f.data()[i] != elem.ToF16(float32(s)) {
					t.Fatalf("float16 %v + %v is %v, want %v", x, y, f.data()[i].Float32(), elem.ToF16(float32(s)).Float32())
				}
				x, y = elem.BF16(i).Float32(), elem.BF16(j).Float32()
				if s := float64(x) + float64(y); s == float64(float32(s)) && b.data()[i] != elem.ToBF16(float32(s)) {
					t.Fatalf("bfloat16 %v + %v is %v, want %v", x, y, b.data()[i].Float32(), elem.ToBF16(float32(s)).Float32())
				}
			}
		}
	})
}
