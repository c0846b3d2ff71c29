package coll

import "unsafe"

// Library says which calls of the table a library makes itself.
type Library struct {
	Kinds Set // that it has
	Apart Set // those of Kinds that it does not do in place
}

// Steps yields the calls that c is made of, for a library that does not have all kinds, until yield
// returns false. A step is a call that the library has, or a Send or Recv, which every library has,
// or Local. work is memory of Scratch bytes.
//
// Local steps come first, and are done before the others, which start together, as in a group.
// Sends and receives with this rank itself are among the Local ones. Steps of a collective that
// move nothing are left out. A message of nothing is a message. A Broadcast of an AllGatherV has
// the root's data at Src, which need not be Dst.
//
// Steps keeps nothing and allocates nothing.
func (c Call) Steps(rank, size int, lib *Library, work unsafe.Pointer, yield func(Call) bool) {
	if lib.Kinds.Has(c.Kind) {
		if n := c.staged(rank, size, lib); n > 0 {
			copied := Call{Kind: Copy, Type: c.Type, Dst: work, Src: c.Src, N: n}
			c.Src = work
			if !yield(copied) {
				return
			}
		}
		if t := c.Kind.Traits(); t.Message || !t.Moves() || c.Longest() > 0 {
			yield(c)
		}
		return
	}
	switch c.Kind {
	case AllGather, AllGatherV:
		c.gatherByBroadcasts(rank, size, yield)
	case ReduceScatter, ReduceScatterV:
		c.scatterByReductions(rank, size, yield)
	case Gather, GatherV:
		c.withRoot(rank, size, Send, Recv, c.Src, c.Dst, yield)
	case Scatter, ScatterV:
		c.withRoot(rank, size, Recv, Send, c.Dst, c.Src, yield)
	case AllToAll, AllToAllV:
		c.exchangeByMessages(size, yield)
	case Scan, ExScan:
		c.scanByReduction(rank, size, lib, work, yield)
	case SendRecv:
		c.Messages(yield)
	}
}

// Scratch returns the bytes of memory that Steps needs beside the operands.
func (c *Call) Scratch(rank, size int, lib *Library) int {
	switch {
	case lib.Kinds.Has(c.Kind):
	case c.Kind == Scan, c.Kind == ExScan:
		return (size + 1) * c.N * c.Type.Size()
	default:
		return 0
	}
	return c.staged(rank, size, lib) * c.Type.Size()
}

// staged returns how many elements of src are copied first, since the library does not do the call
// in place.
func (c *Call) staged(rank, size int, lib *Library) int {
	if !lib.Apart.Has(c.Kind) || !c.InPlace(rank) {
		return 0
	}
	_, src := c.Extents(rank, size)
	return src
}

// Longest returns the elements of the longest part of any rank, as far as this rank knows. It is 0
// if no rank gives or gets anything.
func (c *Call) Longest() int {
	n := c.N
	for _, counts := range [...][]int{c.Counts, c.RecvCounts} {
		for _, k := range counts {
			n = max(n, k)
		}
	}
	return n
}

// message returns a step between two ranks.
func (c *Call) message(kind Kind, buf unsafe.Pointer, n int, peer int32) Call {
	m := Call{Kind: kind, Type: c.Type, N: n, Root: peer}
	if kind == Send {
		m.Src = buf
	} else {
		m.Dst = buf
	}
	return m
}

// scanByReduction has each rank give the others the elements to add up: its own elements to the
// ranks behind it, and the identity to the others. A ReduceScatter adds up the elements that each
// rank gets.
func (c *Call) scanByReduction(rank, size int, lib *Library, work unsafe.Pointer, yield func(Call) bool) {
	if c.N == 0 {
		return
	}
	before := rank // so many ranks get nothing from this one
	if c.Kind == ExScan {
		before++
	}
	if before > 0 && !yield(Call{Kind: Fill, Type: c.Type, Op: c.Op, Dst: work, N: before * c.N}) {
		return
	}
	for r := before; r < size; r++ {
		if !yield(Call{Kind: Copy, Type: c.Type, Dst: c.at(work, r*c.N, c.N), Src: c.Src, N: c.N}) {
			return
		}
	}
	sum := Call{Kind: ReduceScatter, Type: c.Type, Op: c.Op, Dst: c.Dst, Src: work, N: c.N}
	if c.Kind == ExScan && rank == 0 {
		sum.Dst = c.at(work, size*c.N, c.N) // whose dst remains as it is
	}
	sum.Steps(rank, size, lib, nil, yield)
}

func (c *Call) gatherByBroadcasts(rank, size int, yield func(Call) bool) {
	off := 0
	for r := range size {
		n := c.Share(r)
		b := Call{Kind: Broadcast, Type: c.Type, Root: int32(r), Dst: c.at(c.Dst, off, n), N: n}
		if b.Src = b.Dst; r == rank {
			b.Src = c.Src
		}
		off += n
		if n > 0 && !yield(b) {
			return
		}
	}
}

func (c *Call) scatterByReductions(rank, size int, yield func(Call) bool) {
	off := 0
	for r := range size {
		n := c.Share(r)
		b := Call{Kind: Reduce, Type: c.Type, Op: c.Op, Root: int32(r), Src: c.at(c.Src, off, n), N: n}
		if r == rank {
			b.Dst = c.Dst
		}
		off += n
		if n > 0 && !yield(b) {
			return
		}
	}
}

// withRoot makes up a Gather or a Scatter: every rank but the root makes one message of kind leaf
// with its own part, and the root one of kind root with each part of the whole.
func (c *Call) withRoot(rank, size int, leaf, root Kind, own, whole unsafe.Pointer, yield func(Call) bool) {
	n := c.Share(rank)
	if rank != int(c.Root) {
		if n > 0 {
			yield(c.message(leaf, own, n, c.Root))
		}
		return
	}
	off, apart := 0, false // whether the root's own part is not in place
	for r := range size {
		n := c.Share(r)
		part := c.at(whole, off, n)
		off += n
		if n == 0 || r == rank && part == own {
			continue
		}
		if apart = apart || r == rank; !yield(c.message(root, part, n, int32(r))) {
			return
		}
	}
	if apart {
		yield(c.message(leaf, own, n, c.Root))
	}
}

func (c *Call) exchangeByMessages(size int, yield func(Call) bool) {
	out, in := 0, 0
	for r := range size {
		sent, received := c.Share(r), c.Share(r)
		if len(c.RecvCounts) > 0 {
			received = c.RecvCounts[r]
		}
		if sent > 0 && !yield(c.message(Send, c.at(c.Src, out, sent), sent, int32(r))) ||
			received > 0 && !yield(c.message(Recv, c.at(c.Dst, in, received), received, int32(r))) {
			return
		}
		out, in = out+sent, in+received
	}
}

// Messages yields the parts of a Send, Recv or SendRecv, the sending first, until yield returns
// false.
func (c *Call) Messages(yield func(Call) bool) {
	if c.Kind != SendRecv {
		yield(*c)
	} else if yield(c.message(Send, c.Src, c.N, c.Root)) {
		yield(c.message(Recv, c.Dst, c.RecvN, c.From))
	}
}
