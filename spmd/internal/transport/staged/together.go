package staged

import (
	"sync/atomic"
	"unsafe"

	"lockstep/cuda"
	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/shm"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// progress is what a rank tells the others of its steps, where all reach the memory of all: how
// many have their operands in the slot, have the slice reduced, and have been copied out.
type progress [3]struct {
	n atomic.Int64
	_ [56]byte
}

const (
	given = iota
	folded
	fetched

	progressBytes = int(unsafe.Sizeof(progress{}))
)

// behind is a rank that has not come as far as want; -1 where all have.
func (t *Transport) behind(what, want int) int {
	for r, w := range t.ranks {
		if w[what].n.Load() < int64(want) {
			return r
		}
	}
	return -1
}

// tell says that this rank has come to n.
func (t *Transport) tell(what, n int) { t.ranks[t.host.Rank()][what].n.Store(int64(n)) }

// await waits until all ranks have come as far as want.
func (t *Transport) await(c *coll.Call, what, want int) error {
	for looks := 1; ; looks++ {
		r := t.behind(what, want)
		if r < 0 {
			return nil
		}
		if err := t.settle(); err != nil {
			return err
		}
		if looks%transport.Looks == 0 {
			if err := t.host.Lost(r); err != nil && t.behind(what, want) == r {
				return transport.Failed(c, t.host.Rank(), err)
			}
		}
		if err := t.host.Pause(looks); err != nil {
			return err
		}
	}
}

// settle tells the others which copies to this rank's device are over.
func (t *Transport) settle() error {
	for t.whole && t.settled < t.leaving {
		if over, err := t.slots[t.settled%slots].gone.Query(); err != nil || !over {
			return err
		}
		t.settled++
		t.tell(fetched, t.settled)
	}
	return nil
}

// place is where the slot of a rank for a step lies, and the result beside it.
func (t *Transport) place(rank, number int) (from, to unsafe.Pointer) {
	from = unsafe.Add(t.pinned.Parts[rank], t.slotsAt()+2*(number%slots)*Sizes.Piece)
	return from, unsafe.Add(from, Sizes.Piece)
}

// together makes a step of a call, which on is on the host, where the ranks read each other's
// slots: a reduction there, and other calls by copies from there to the devices.
func (t *Transport) together(c, on *coll.Call, p *pieces, k, number int, out *cuda.Stream) error {
	t.tell(given, number+1)
	if err := t.await(c, given, number+1); err != nil {
		return err
	}
	if !c.Kind.Traits().Reduces {
		return t.fetch(c, on, p, k, number, out)
	}
	result, err := t.fold(on, number)
	if err != nil || !p.writes {
		return err
	}
	size := c.Type.Size()
	lo, n := p.of(k, c.Share(t.host.Rank()))
	return out.Copy(unsafe.Add(c.Dst, lo*size), result, n*size)
}

// fetch enqueues the copies of what the others give this rank.
func (t *Transport) fetch(c, on *coll.Call, p *pieces, k, number int, out *cuda.Stream) error {
	me, ranks, size, traits := t.host.Rank(), t.host.Size(), c.Type.Size(), c.Kind.Traits()
	if !p.writes {
		return nil
	}
	skip := 0
	if traits.Src.Extent == coll.Whole {
		skip = on.Offset(me) * size
	}
	take := func(from, off, n int) error {
		lo, n := p.of(k, n)
		if n == 0 || from == me {
			return nil
		}
		at, _ := t.place(from, number)
		return out.Copy(unsafe.Add(c.Dst, (off+lo)*size), unsafe.Add(at, skip), n*size)
	}
	if traits.Dst.Extent != coll.Whole {
		return take(int(c.Root), 0, c.Share(me))
	}
	for i := range ranks { // not all from the same rank at once
		r := (me + i) % ranks
		if err := take(r, c.Offset(r), c.Share(r)); err != nil {
			return err
		}
	}
	return nil
}

// foldGrain is the bytes of each operand that are worth a goroutine: it takes time to wake up.
const foldGrain = 256 << 10

// fold reduces this rank's share of a step, and returns where the result is. Of long ones each
// rank reduces a slice for all.
func (t *Transport) fold(on *coll.Call, number int) (unsafe.Pointer, error) {
	me, ranks, size := t.host.Rank(), t.host.Size(), on.Type.Size()
	_, to := t.place(me, number)
	off, n, of := 0, on.N, ranks
	sliced := false
	switch on.Kind {
	case coll.ReduceScatter, coll.ReduceScatterV:
		off, n = on.Offset(me), on.Share(me)
	case coll.Scan:
		of = me + 1
	case coll.ExScan:
		of = me
	default:
		if sliced = n*size > Sizes.Alone && ranks > 1; sliced {
			each := ((n+ranks-1)/ranks + 63) / 64 * 64
			off = min(me*each, n)
			n = min(each, n-off)
			_, to = t.place(number%ranks, number)
			to = unsafe.Add(to, off*size)
		} else if on.Kind == coll.Reduce && !t.isRoot(on) {
			return nil, nil
		}
	}
	if of == 1 {
		from, _ := t.place(0, number)
		return unsafe.Add(from, off*size), nil
	}
	if of > 1 {
		host.Parallel(n, foldGrain/size, func(lo, hi int) {
			src := make([]uintptr, of)
			for r := range src {
				from, _ := t.place(r, number)
				src[r] = ccall.Address(from) + uintptr((off+lo)*size)
			}
			shm.Reduce(unsafe.Add(to, lo*size), src, hi-lo, on.Type, on.Op)
		})
	}
	if !sliced {
		return to, nil
	}
	t.tell(folded, number+1)
	return unsafe.Add(to, -off*size), t.await(on, folded, number+1)
}
