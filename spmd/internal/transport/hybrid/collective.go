package hybrid

import (
	"math/bits"
	"unsafe"

	"lockstep/host"
	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/spmd/internal/coll"
)

// Make implements transport.Host. The ranks of a process bring what they have to one of them, which exchanges it with those of
// the other processes and gives the result to its own. Sums are formed in the order of the processes: equal inputs give equal
// bits, and the same on all ranks. 16-bit floats are reduced in float32 and rounded once.
func (c *Comm) Make(call *coll.Call) error {
	switch {
	case call.Kind.Traits().Message: // also one to a rank of another process of a smaller communicator
		return c.byMessages(call)
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
	case coll.Scan, coll.ExScan:
		return c.scan(call)
	case coll.Barrier:
		return c.barrier(call)
	default:
		return c.byMessages(call)
	}
}

// inFloat32 makes a reduction of 16-bit floats.
func (c *Comm) inFloat32(call *coll.Call) error {
	into, from := call.Extents(c.rank, c.Size())
	wide := *call
	wide.Type, wide.Src = elem.Float32, c.room(3, (from+into)*elem.Float32.Size())
	wide.Dst = at(wide.Type, wide.Src, from)
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

// sums is the operation whose result the processes exchange: an average is divided at the end.
func sums(op elem.Op) elem.Op {
	if op == elem.Avg {
		return elem.Sum
	}
	return op
}

// combine sets n elements at dst to the result of what each process has brought. own is this process's, and got the others'.
func (c *Comm) combine(dst unsafe.Pointer, call *coll.Call, n int, own unsafe.Pointer, got func(process int) unsafe.Pointer) {
	if n == 0 {
		return
	}
	if own == dst { // it is read after others have been written there
		own = c.room(2, n*call.Type.Size())
		copy(bytesAt(own, n*call.Type.Size()), bytesAt(dst, n*call.Type.Size()))
	}
	c.sources = c.sources[:0]
	for p := range c.process {
		if p == c.mine {
			c.sources = append(c.sources, own)
		} else {
			c.sources = append(c.sources, got(p))
		}
	}
	merge(dst, c.sources, n, call.Type, sums(call.Op))
	if call.Op == elem.Avg {
		c.divide(dst, n, call.Type)
	}
}

// merge sets n elements at dst to op over all src, in their order.
func merge(dst unsafe.Pointer, src []unsafe.Pointer, n int, t elem.Type, op elem.Op) {
	if len(src) == 1 {
		copy(bytesAt(dst, n*t.Size()), bytesAt(src[0], n*t.Size()))
		return
	}
	shm.Reduce(dst, unsafe.Slice((*uintptr)(unsafe.Pointer(&src[0])), len(src)), n, t, op)
}

// zeros is what a sum is averaged with.
var zeros [4096]byte

// divide divides sums by the number of ranks: it averages them with zeros.
func (c *Comm) divide(p unsafe.Pointer, n int, t elem.Type) {
	each := len(zeros) / t.Size()
	c.sources = append(c.sources[:0], nil)
	for range c.Size() - 1 {
		c.sources = append(c.sources, unsafe.Pointer(&zeros))
	}
	for lo := 0; lo < n; lo += each {
		c.sources[0] = at(t, p, lo)
		merge(c.sources[0], c.sources, min(each, n-lo), t, elem.Avg)
	}
}

// at is the address of the i-th element at p.
func at(t elem.Type, p unsafe.Pointer, i int) unsafe.Pointer { return unsafe.Add(p, i*t.Size()) }

// short is the most bytes of an all-reduce that each leader gets whole from all others. Of longer ones each computes a part.
const short = 2048

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
	t, size := call.Type, call.Type.Size()
	slice := func(p int) (lo, n int) {
		if call.N*size <= short {
			return 0, call.N
		}
		each := ((call.N+len(c.process)-1)/len(c.process) + 63) / 64 * 64
		lo = min(p*each, call.N)
		return lo, min(each, call.N-lo)
	}
	for p := range c.process {
		if p != c.mine {
			lo, n := slice(p)
			if err := c.give(call, p, at(t, call.Dst, lo), n*size); err != nil {
				return err
			}
		}
	}
	lo, n := slice(c.mine)
	got, err := c.getAll(call, func(int) int { return n * size })
	if err != nil {
		return err
	}
	if err := c.given(call); err != nil {
		return err
	}
	result := at(t, call.Dst, lo)
	c.combine(result, call, n, result, func(p int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(got[p])) })
	if call.N*size <= short {
		return nil
	}
	for p := range c.process {
		if p != c.mine {
			if err := c.give(call, p, result, n*size); err != nil {
				return err
			}
		}
	}
	for p := range c.process {
		if p != c.mine {
			lo, n := slice(p)
			part, err := c.get(call, p, n*size)
			if err != nil {
				return err
			}
			copy(bytesAt(at(t, call.Dst, lo), n*size), part)
		}
	}
	return c.given(call)
}

// getAll gets what the leaders of all other processes have given, so many bytes of each.
func (c *Comm) getAll(call *coll.Call, bytes func(process int) int) ([][]byte, error) {
	got := make([][]byte, len(c.process))
	for p := range c.process {
		if p != c.mine {
			var err error
			if got[p], err = c.get(call, p, bytes(p)); err != nil {
				return nil, err
			}
		}
	}
	return got, nil
}

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
	if root != c.mine {
		if err := c.give(call, root, sum.Dst, bytes); err != nil {
			return err
		}
		return c.given(call)
	}
	got, err := c.getAll(call, func(int) int { return bytes })
	if err != nil {
		return err
	}
	c.combine(call.Dst, call, call.N, call.Dst, func(p int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(got[p])) })
	return nil
}

// broadcast has the processes pass it on along a tree, whose root is the root's.
func (c *Comm) broadcast(call *coll.Call) error {
	leader, leads := c.leads(call)
	bytes, processes, root := call.N*call.Type.Size(), len(c.process), c.place[call.Root].process
	local := *call
	local.Root = int32(leader)
	if c.mine != root && leads {
		local.Src = nil
	}
	if leads {
		from := call.Src
		if from == nil || c.mine != root {
			from = call.Dst
		}
		place := (c.mine - root + processes) % processes
		gap := 1 << bits.Len(uint(place)) // the first to which this process passes it on
		if place > 0 {
			data, err := c.get(call, (root+place-gap/2)%processes, bytes)
			if err != nil {
				return err
			}
			copy(bytesAt(call.Dst, bytes), data)
		}
		for ; place+gap < processes; gap *= 2 {
			if err := c.give(call, (root+place+gap)%processes, from, bytes); err != nil {
				return err
			}
		}
		if err := c.given(call); err != nil {
			return err
		}
	}
	return c.within(local)
}
