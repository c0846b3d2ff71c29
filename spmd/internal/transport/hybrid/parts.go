package hybrid

import (
	"unsafe"

	"lockstep/spmd/internal/coll"
)

// share is how many elements a rank has of a call, and where they begin.
func (c *Comm) share(call *coll.Call, rank int) (off, n int) {
	if len(call.Counts) == 0 {
		return rank * call.N, call.N
	}
	return coll.Sum(call.Counts[:rank]), call.Counts[rank]
}

// shares are those of the ranks of a process, and their sum.
func (c *Comm) shares(call *coll.Call, process int) (counts []int, sum int) {
	c.counts = c.counts[:0]
	for _, r := range c.members[process] {
		_, n := c.share(call, r)
		c.counts = append(c.counts, n)
		sum += n
	}
	return c.counts, sum
}

// whole is how many elements all ranks have.
func (c *Comm) whole(call *coll.Call) int {
	off, n := c.share(call, c.Size()-1)
	return off + n
}

func (c *Comm) allGather(call *coll.Call) error {
	leader, leads := c.leads(call)
	t, size := call.Type, call.Type.Size()
	counts, here := c.shares(call, c.mine)
	ours := unsafe.Pointer(nil)
	if leads {
		ours = c.room(0, here*size)
	}
	if err := c.within(coll.Call{Kind: coll.GatherV, Dst: ours, Src: call.Src, Counts: counts, Type: t, Root: int32(leader)}); err != nil {
		return err
	}
	if leads {
		for p := range c.process {
			if p != c.mine {
				if err := c.give(call, p, ours, here*size); err != nil {
					return err
				}
			}
		}
		for p := range c.process {
			data := ours
			if p != c.mine {
				_, sum := c.shares(call, p)
				got, err := c.get(call, p, sum*size)
				if err != nil {
					return err
				}
				data = unsafe.Pointer(unsafe.SliceData(got))
			}
			for _, r := range c.members[p] {
				off, n := c.share(call, r)
				copy(bytesAt(at(t, call.Dst, off), n*size), bytesAt(data, n*size))
				data = at(t, data, n)
			}
		}
		if err := c.given(call); err != nil {
			return err
		}
	}
	return c.within(coll.Call{Kind: coll.Broadcast, Dst: call.Dst, N: c.whole(call), Type: t, Root: int32(leader)})
}

func (c *Comm) reduceScatter(call *coll.Call) error {
	leader, leads := c.leads(call)
	t, size, whole := call.Type, call.Type.Size(), c.whole(call)
	sum := coll.Call{Kind: coll.Reduce, Src: call.Src, N: whole, Type: t, Op: sums(call.Op), Root: int32(leader)}
	if leads {
		sum.Dst = c.room(0, whole*size)
	}
	if err := c.within(sum); err != nil {
		return err
	}
	ours := unsafe.Pointer(nil)
	if leads {
		packed := c.room(1, whole*size) // the parts, by process
		own := packed
		for p := range c.process {
			part, n := packed, 0
			for _, r := range c.members[p] {
				off, k := c.share(call, r)
				copy(bytesAt(packed, k*size), bytesAt(at(t, sum.Dst, off), k*size))
				packed = at(t, packed, k)
				n += k
			}
			if p == c.mine {
				own = part
			} else if err := c.give(call, p, part, n*size); err != nil {
				return err
			}
		}
		_, n := c.shares(call, c.mine)
		got, err := c.getAll(call, func(int) int { return n * size })
		if err != nil {
			return err
		}
		if err := c.given(call); err != nil {
			return err
		}
		ours = c.room(2, n*size)
		c.combine(ours, call, n, own, func(p int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(got[p])) })
	}
	counts, _ := c.shares(call, c.mine)
	return c.within(coll.Call{Kind: coll.ScatterV, Dst: call.Dst, Src: ours, Counts: counts, Type: t, Root: int32(leader)})
}

// scan has each rank get what all bring, and combine what is before it.
func (c *Comm) scan(call *coll.Call) error {
	t, bytes := call.Type, call.N*call.Type.Size()
	all := c.room(1, c.Size()*bytes)
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

// barrier has each process hear, in a few rounds, that all others have come.
func (c *Comm) barrier(call *coll.Call) error {
	if err := c.within(*call); err != nil {
		return err
	}
	if _, leads := c.leads(call); leads {
		processes := len(c.process)
		for gap := 1; gap < processes; gap *= 2 {
			if err := c.give(call, (c.mine+gap)%processes, nil, 0); err != nil {
				return err
			}
			if _, err := c.get(call, (c.mine-gap+processes)%processes, 0); err != nil {
				return err
			}
		}
		c.sending = c.sending[:0]
	}
	return c.within(*call)
}
