package hybrid

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// divided is the elements of a call of which each rank has a part, by process, and the parts of the ranks of this process. It
// is valid until the next.
func (c *Comm) divided(call *coll.Call) (off, here []int) {
	c.off, c.counts = append(c.off[:0], 0), c.counts[:0]
	whole := 0
	for p, members := range c.members {
		for _, r := range members {
			n := call.N
			if len(call.Counts) > 0 {
				n = call.Counts[r]
			}
			whole += n
			if p == c.mine {
				c.counts = append(c.counts, n)
			}
		}
		c.off = append(c.off, whole)
	}
	return c.off, c.counts
}

// evenly is n elements divided among the processes.
func (c *Comm) evenly(n int) []int {
	processes := len(c.process)
	each := ((n+processes-1)/processes + 15) / 16 * 16
	c.off = append(c.off[:0], 0)
	for p := range processes {
		c.off = append(c.off, min((p+1)*each, n))
	}
	return c.off
}

// whole is how many elements all have.
func whole(off []int) int { return off[len(off)-1] }

// parts calls yield for each part of the ranks: where it is by rank, and where it is by process.
func (c *Comm) parts(call *coll.Call, yield func(byRank, byProcess, n int)) {
	c.starts = c.starts[:0]
	at := 0
	for r := range c.place {
		c.starts = append(c.starts, at)
		if len(call.Counts) > 0 {
			at += call.Counts[r]
		} else {
			at += call.N
		}
	}
	c.starts = append(c.starts, at)
	at = 0
	for _, members := range c.members {
		for _, r := range members {
			n := c.starts[r+1] - c.starts[r]
			yield(c.starts[r], at, n)
			at += n
		}
	}
}

// pack copies the parts of the ranks so that those of a process lie together.
func (c *Comm) pack(call *coll.Call, dst, src unsafe.Pointer) {
	c.parts(call, func(byRank, byProcess, n int) {
		copy(bytesAt(elem.At(dst, byProcess, n, call.Type), n*call.Type.Size()), bytesAt(elem.At(src, byRank, n, call.Type), n*call.Type.Size()))
	})
}

// unpack copies them back.
func (c *Comm) unpack(call *coll.Call, dst, src unsafe.Pointer) {
	c.parts(call, func(byRank, byProcess, n int) {
		copy(bytesAt(elem.At(dst, byRank, n, call.Type), n*call.Type.Size()), bytesAt(elem.At(src, byProcess, n, call.Type), n*call.Type.Size()))
	})
}

// ours has a leader get at dst the parts of the ranks of this process.
func (c *Comm) ours(call *coll.Call, dst unsafe.Pointer, counts []int, leader int) error {
	return c.within(coll.Call{Kind: coll.GatherV, Dst: dst, Src: call.Src, Counts: counts, Type: call.Type, Root: int32(leader)})
}

// theirs has the ranks of this process get their parts of what is at src on a leader.
func (c *Comm) theirs(call *coll.Call, src unsafe.Pointer, counts []int, leader int) error {
	return c.within(coll.Call{Kind: coll.ScatterV, Dst: call.Dst, Src: src, Counts: counts, Type: call.Type, Root: int32(leader)})
}

func (c *Comm) allGather(call *coll.Call) error {
	leader, leads := c.leads(call)
	off, here := c.divided(call)
	var b blocks
	var own unsafe.Pointer
	if leads {
		if b = (blocks{call.Dst, off}); !c.orderly {
			b.base = c.room(1, whole(off)*call.Type.Size())
		}
		own, _ = c.own(call, &b)
	}
	if err := c.ours(call, own, here, leader); err != nil {
		return err
	}
	if leads {
		if err := c.gatherAll(call, &b); err != nil {
			return err
		}
		if !c.orderly {
			c.unpack(call, call.Dst, b.base)
		}
	}
	return c.within(coll.Call{Kind: coll.Broadcast, Dst: call.Dst, N: whole(off), Type: call.Type, Root: int32(leader)})
}

func (c *Comm) reduceScatter(call *coll.Call) error {
	leader, leads := c.leads(call)
	off, here := c.divided(call)
	t, bytes := call.Type, whole(off)*call.Type.Size()
	sum := coll.Call{Kind: coll.Reduce, Src: call.Src, N: whole(off), Type: t, Op: sums(call.Op), Root: int32(leader)}
	if leads {
		sum.Dst = c.room(0, bytes)
	}
	if err := c.within(sum); err != nil {
		return err
	}
	var own unsafe.Pointer
	if leads {
		b := blocks{sum.Dst, off}
		if !c.orderly {
			b.base = c.room(1, bytes)
			c.pack(call, b.base, sum.Dst)
		}
		if err := c.sumAll(call, &b); err != nil {
			return err
		}
		p, n := c.own(call, &b)
		c.divide(call, p, n)
		own = p
	}
	return c.theirs(call, own, here, leader)
}

// gather has the root get what all have, by a tree of leaders where that is short, and else from each process.
func (c *Comm) gather(call *coll.Call) error {
	leader, leads := c.leads(call)
	off, here := c.divided(call)
	t, bytes, root := call.Type, whole(off)*call.Type.Size(), c.place[call.Root].process
	var b blocks
	var own unsafe.Pointer
	var n int
	if leads {
		b = blocks{call.Dst, off}
		switch {
		case c.mine == root && c.orderly:
			own, n = c.own(call, &b)
		case c.mine == root || bytes <= tree:
			b.base = c.room(1, bytes)
			own, n = c.own(call, &b)
		default:
			n = off[c.mine+1] - off[c.mine]
			own = c.room(1, n*t.Size())
		}
	}
	if err := c.ours(call, own, here, leader); err != nil || !leads {
		return err
	}
	switch {
	case bytes <= tree:
		if err := c.collect(call, &b, root); err != nil {
			return err
		}
	case c.mine != root:
		if err := c.give(call, root, own, n*t.Size()); err != nil {
			return err
		}
		return c.given(call)
	default:
		for p := range c.process {
			if p == root {
				continue
			}
			if err := c.fetchRun(call, p, &b, run{p, 1}); err != nil {
				return err
			}
		}
		if err := c.given(call); err != nil {
			return err
		}
	}
	if c.mine == root && !c.orderly {
		c.unpack(call, call.Dst, b.base)
	}
	return nil
}

// scatter is gather, backwards.
func (c *Comm) scatter(call *coll.Call) error {
	leader, leads := c.leads(call)
	off, here := c.divided(call)
	bytes, root := whole(off)*call.Type.Size(), c.place[call.Root].process
	var own unsafe.Pointer
	if leads {
		b := blocks{call.Src, off}
		switch {
		case c.mine == root && c.orderly:
		case c.mine == root:
			b.base = c.room(1, bytes)
			c.pack(call, b.base, call.Src)
		case bytes <= tree:
			b.base = c.room(1, bytes)
		}
		var err error
		if own, err = c.getOwn(call, &b, root, bytes); err != nil {
			return err
		}
	}
	return c.theirs(call, own, here, leader)
}

// getOwn has a leader get its block of a scatter, and returns where that is.
func (c *Comm) getOwn(call *coll.Call, b *blocks, root, bytes int) (unsafe.Pointer, error) {
	size, own := call.Type.Size(), b.off[c.mine+1]-b.off[c.mine]
	switch {
	case bytes <= tree:
		if err := c.spread(call, b, root); err != nil {
			return nil, err
		}
	case c.mine != root:
		p := c.room(1, own*size)
		if err := c.fetch(call, root, p, own*size); err != nil {
			return nil, err
		}
		return p, c.given(call)
	default:
		for p := range c.process {
			if p == root {
				continue
			}
			if err := c.giveRun(call, p, b, run{p, 1}); err != nil {
				return nil, err
			}
		}
		if err := c.given(call); err != nil {
			return nil, err
		}
	}
	p, _ := c.own(call, b)
	return p, nil
}

// scan has the ranks of a process scan, and the last of them, who knows the sum of all, learn the sum of the processes before.
func (c *Comm) scan(call *coll.Call) error {
	if !c.orderly {
		return c.scanApart(call)
	}
	t, n, bytes := call.Type, call.N, call.N*call.Type.Size()
	last := c.local.Size() - 1
	sum, before, own := c.room(0, bytes), c.room(1, bytes), c.room(2, bytes)
	if err := c.within(coll.Call{Kind: coll.Scan, Dst: sum, Src: call.Src, N: n, Type: t, Op: call.Op}); err != nil {
		return err
	}
	if call.Kind == coll.ExScan {
		if err := c.within(coll.Call{Kind: coll.ExScan, Dst: own, Src: call.Src, N: n, Type: t, Op: call.Op}); err != nil {
			return err
		}
	} else {
		copy(bytesAt(own, bytes), bytesAt(sum, bytes))
	}
	if c.local.Rank() == last {
		if err := c.sumBefore(call, before, sum, n); err != nil {
			return err
		}
	}
	if c.mine > 0 {
		if err := c.within(coll.Call{Kind: coll.Broadcast, Dst: before, N: n, Type: t, Root: int32(last)}); err != nil {
			return err
		}
	}
	first := call.Kind == coll.ExScan && c.local.Rank() == 0 // who has no sum of its own
	switch {
	case c.mine == 0 && first:
	case c.mine == 0:
		copy(bytesAt(call.Dst, bytes), bytesAt(own, bytes))
	case first:
		copy(bytesAt(call.Dst, bytes), bytesAt(before, bytes))
	default:
		c.both(call, call.Dst, before, own, n)
	}
	return nil
}

// scanApart has each rank get what all bring, and combine what is before it: ranks of a process do not follow each other.
func (c *Comm) scanApart(call *coll.Call) error {
	t, bytes := call.Type, call.N*call.Type.Size()
	all := c.room(2, c.Size()*bytes)
	gather := *call
	gather.Kind, gather.Dst = coll.AllGather, all
	if err := c.allGather(&gather); err != nil {
		return err
	}
	ranks := c.rank + 1
	if call.Kind == coll.ExScan {
		ranks--
	}
	if ranks == 0 || call.N == 0 {
		return nil
	}
	c.sources = c.sources[:0]
	for r := range ranks {
		c.sources = append(c.sources, unsafe.Add(all, r*bytes))
	}
	merge(call.Dst, c.sources, call.N, t, call.Op)
	return nil
}
