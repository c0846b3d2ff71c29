package hybrid

import (
	"unsafe"

	"lockstep/host"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// Make implements transport.Host. The ranks of a process bring what they have to one of them, which exchanges it with those of
// the other processes, in as many rounds as their number has bits, and gives the result to its own. The order of a sum depends
// on nothing but the call: equal inputs give equal bits, and the same on all ranks. 16-bit floats are reduced in float32 and
// rounded once.
func (c *Comm) Make(call *coll.Call) error {
	switch {
	case call.Kind.Traits().Message: // also one to a rank of another process of a smaller communicator
		return c.message(call)
	case len(c.process) == 1: // whose ranks are in the order of c
		return c.local.Make(call)
	case call.Type.Half() && call.Kind.Traits().Reduces:
		return c.inFloat32(call)
	}
	c.turn++
	switch call.Kind {
	case coll.AllReduce:
		return c.allReduce(call)
	case coll.Reduce:
		return c.reduce(call)
	case coll.Broadcast:
		return c.broadcast(call)
	case coll.AllGather, coll.AllGatherV:
		return c.allGather(call)
	case coll.ReduceScatter, coll.ReduceScatterV:
		return c.reduceScatter(call)
	case coll.Gather, coll.GatherV:
		return c.gather(call)
	case coll.Scatter, coll.ScatterV:
		return c.scatter(call)
	case coll.Scan, coll.ExScan:
		return c.scan(call)
	case coll.AllToAll, coll.AllToAllV:
		return c.allToAll(call)
	default:
		return c.barrier(call)
	}
}

// inFloat32 makes a reduction of 16-bit floats.
func (c *Comm) inFloat32(call *coll.Call) error {
	into, from := call.Extents(c.rank, c.Size())
	wide := *call
	wide.Type, wide.Src = elem.Float32, c.room(3, (from+into)*elem.Float32.Size())
	wide.Dst = elem.At(wide.Src, from, into, wide.Type)
	src, dst := unsafe.Slice((*float32)(wide.Src), from), unsafe.Slice((*float32)(wide.Dst), into)
	if call.Type == elem.Float16 {
		host.Widen(src, unsafe.Slice((*elem.F16)(call.Src), from))
	} else {
		host.Widen(src, unsafe.Slice((*elem.BF16)(call.Src), from))
	}
	if err := c.Make(&wide); err != nil {
		return err
	}
	if call.Type == elem.Float16 {
		host.Round(unsafe.Slice((*elem.F16)(call.Dst), into), dst)
	} else {
		host.Round(unsafe.Slice((*elem.BF16)(call.Dst), into), dst)
	}
	return nil
}

// within makes a call of the ranks of this process.
func (c *Comm) within(call coll.Call) error { return c.local.Make(&call) }

// leads says whether this rank speaks for those of its process: the first of them, and the root where it is in there.
func (c *Comm) leads(call *coll.Call) (leader int, mine bool) {
	if call.Kind.Traits().Rooted {
		if at := c.place[call.Root]; at.process == c.mine {
			leader = at.local
		}
	}
	return leader, c.local.Rank() == leader
}

// Tests change them.
var (
	// short is the most bytes that a leader gets of an all-reduce, from all others together. Of longer ones each sums a part.
	short = 16 << 10
	// tree is the most bytes that go through a tree in which a leader has to do with what is not for its own ranks.
	tree = 256 << 10
)

func (c *Comm) allReduce(call *coll.Call) error {
	leader, leads := c.leads(call)
	sum := *call
	sum.Kind, sum.Op, sum.Root = coll.Reduce, sums(call.Op), int32(leader)
	if err := c.within(sum); err != nil {
		return err
	}
	if leads {
		if err := c.among(call); err != nil {
			return err
		}
	}
	return c.within(coll.Call{Kind: coll.Broadcast, Dst: call.Dst, N: call.N, Type: call.Type, Root: int32(leader)})
}

// among makes the leaders' part of an all-reduce, on what is at Dst.
func (c *Comm) among(call *coll.Call) error {
	bytes, processes := call.N*call.Type.Size(), len(c.process)
	if processes*bytes <= short {
		return c.amongFew(call, bytes)
	}
	b := blocks{call.Dst, c.evenly(call.N)}
	if err := c.sumAll(call, &b); err != nil {
		return err
	}
	p, n := c.own(call, &b)
	c.divide(call, p, n)
	return c.gatherAll(call, &b)
}

// amongFew has each leader get what all have, and sum it in the order of the processes.
func (c *Comm) amongFew(call *coll.Call, bytes int) error {
	b := blocks{c.room(1, len(c.process)*bytes), append(c.off[:0], 0)}
	for p := range c.process {
		b.off = append(b.off, (p+1)*call.N)
	}
	c.off = b.off
	copy(bytesAt(unsafe.Add(b.base, c.mine*bytes), bytes), bytesAt(call.Dst, bytes))
	if err := c.gatherAll(call, &b); err != nil {
		return err
	}
	c.sources = c.sources[:0]
	for p := range c.process {
		c.sources = append(c.sources, unsafe.Add(b.base, p*bytes))
	}
	merge(call.Dst, c.sources, call.N, call.Type, sums(call.Op))
	c.divide(call, call.Dst, call.N)
	return nil
}

// reduce sums along a tree of leaders. Of what is long each leader sums a part, and the root gets the parts.
func (c *Comm) reduce(call *coll.Call) error {
	leader, leads := c.leads(call)
	bytes, root := call.N*call.Type.Size(), c.place[call.Root].process
	sum := *call
	sum.Op, sum.Root = sums(call.Op), int32(leader)
	if leads && root != c.mine {
		sum.Dst = c.room(0, bytes)
	}
	if err := c.within(sum); err != nil || !leads {
		return err
	}
	if bytes <= tree || len(c.process) == 2 {
		if err := c.sumAt(call, sum.Dst, call.N, root); err != nil {
			return err
		}
	} else {
		b := blocks{sum.Dst, c.evenly(call.N)}
		if err := c.sumAll(call, &b); err != nil {
			return err
		}
		if err := c.collect(call, &b, root); err != nil {
			return err
		}
	}
	if root == c.mine {
		c.divide(call, call.Dst, call.N)
	}
	return nil
}

// broadcast has the leaders pass it on along a tree. Of what is long each gets a part, and then the others' parts.
func (c *Comm) broadcast(call *coll.Call) error {
	leader, leads := c.leads(call)
	bytes, root := call.N*call.Type.Size(), c.place[call.Root].process
	local := *call
	local.Root = int32(leader)
	if leads {
		if c.mine == root && call.Src != nil {
			copy(bytesAt(call.Dst, bytes), bytesAt(call.Src, bytes))
		}
		local.Src = nil
		if bytes <= tree || len(c.process) == 2 {
			if err := c.passOn(call, call.Dst, call.N, root); err != nil {
				return err
			}
		} else {
			b := blocks{call.Dst, c.evenly(call.N)}
			if err := c.spread(call, &b, root); err != nil {
				return err
			}
			if err := c.gatherAll(call, &b); err != nil {
				return err
			}
		}
	}
	return c.within(local)
}

// barrier has each process hear that all others have come.
func (c *Comm) barrier(call *coll.Call) error {
	if err := c.within(*call); err != nil {
		return err
	}
	if _, leads := c.leads(call); leads {
		if err := c.meetAll(call); err != nil {
			return err
		}
	}
	return c.within(*call)
}
