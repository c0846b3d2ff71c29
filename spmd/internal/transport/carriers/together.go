package carriers

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"lockstep/cuda"
	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/shm"
	"lockstep/spmd/internal/transport"
)

// progress is a rank's report of its steps to the others, if all reach the memory of all: how many
// have their operands in the slot, have the slice reduced, and have been copied out.
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

// behind returns a rank that has not come as far as want; -1 if all have.
func (t *Staged) behind(what, want int) int {
	for r, w := range t.ranks {
		if w[what].n.Load() < int64(want) {
			return r
		}
	}
	return -1
}

// tell says that this rank has come to n.
func (t *Staged) tell(what, n int) { t.ranks[t.host.Rank()][what].n.Store(int64(n)) }

// settle tells the others which copies to this rank's device are over.
func (t *Staged) settle() error {
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
func (t *Staged) place(rank, number int) (from, to unsafe.Pointer) {
	from = unsafe.Add(t.pinned.Parts[rank], t.slotsAt()+2*(number%slots)*StagedSizes.Piece)
	return from, unsafe.Add(from, StagedSizes.Piece)
}

// course is a call that is being made, where the ranks read each other's slots: a reduction
// there, and other calls by copies from there to the devices.
type course struct {
	c       *coll.Call
	p       *pieces
	first   int // the number of its first step
	in, out *cuda.Stream

	begun  int // steps whose copies from the device are enqueued
	given  int // and over
	folded int // and whose share of this rank is reduced
	left   int // and whose copies to the device are enqueued
	late   int // a rank that a step waits for; -1 if none does
}

// together makes a call. Each step goes on when what it needs itself is there: while one waits for
// another rank, the devices copy others.
func (t *Staged) together(x *course) error {
	var lost error
	for looks, asked := 1, -1; x.left < x.p.steps; looks++ {
		moved, err := t.goOn(x)
		switch {
		case err != nil:
			return err
		case moved:
			looks, lost = 0, nil
			continue
		case lost != nil && x.late == asked:
			return x.c.Failed(t.host.Rank(), lost)
		}
		if lost = nil; looks%transport.Looks == 0 && x.late >= 0 {
			asked = x.late
			lost = t.host.Lost(asked)
		}
		if err := t.host.Pause(looks); err != nil {
			return err
		}
	}
	return nil
}

// goOn takes a call on by what can be done now.
func (t *Staged) goOn(x *course) (moved bool, err error) {
	x.late = -1
	have := func(what, want int) bool {
		r := t.behind(what, want)
		x.late = max(x.late, r)
		return r < 0
	}
	if err := t.settle(); err != nil {
		return false, err
	}
	if number := x.first + x.begun; x.begun < x.p.steps && have(fetched, number+1-slots) {
		if err := t.copyIn(x.c, x.p, x.begun, number, x.in); err != nil {
			return false, err
		}
		x.begun++
		moved = true
	}
	if x.given < x.begun {
		there, err := t.slots[(x.first+x.given)%slots].here.Query()
		if err != nil {
			return false, err
		}
		if there {
			x.given++
			t.tell(given, x.first+x.given)
			moved = true
		}
	}
	if x.folded < x.given && have(given, x.first+x.folded+1) {
		if x.c.Kind.Traits().Reduces {
			s := t.share(x, x.folded)
			s.reduce(x.c)
		}
		x.folded++
		t.tell(folded, x.first+x.folded)
		moved = true
	}
	if number := x.first + x.left; x.left < x.folded && (!t.slicing(x, x.left) || have(folded, number+1)) {
		if err := t.takeOut(x, x.left); err != nil {
			return false, err
		}
		if err := t.slots[number%slots].leave(x.out); err != nil {
			return false, err
		}
		x.left++
		t.leaving = x.first + x.left
		moved = true
	}
	return moved, nil
}

// takeOut enqueues the copies of what this rank gets in a step.
func (t *Staged) takeOut(x *course, k int) error {
	if !x.p.writes {
		return nil
	}
	if !x.c.Kind.Traits().Reduces {
		return t.fetch(x, k)
	}
	size := x.c.Type.Size()
	lo, n := x.p.of(k, x.c.Share(t.host.Rank()))
	return x.out.Copy(unsafe.Add(x.c.Dst, lo*size), t.share(x, k).result, n*size)
}

// fetch is takeOut for data of the others that this rank only copies.
func (t *Staged) fetch(x *course, k int) error {
	c, p, me, ranks, size := x.c, x.p, t.host.Rank(), t.host.Size(), x.c.Type.Size()
	on := t.step(c, p, k, &t.slots[(x.first+k)%slots])
	take := func(from, off, n int) error {
		lo, n := p.of(k, n)
		if n == 0 || from == me {
			return nil
		}
		skip := 0
		if c.Kind.Traits().Src.Extent == coll.Whole {
			if skip = on.Offset(me); p.packed && from < me {
				skip -= on.Share(from)
			}
		}
		at, _ := t.place(from, x.first+k)
		return x.out.Copy(unsafe.Add(c.Dst, (off+lo)*size), unsafe.Add(at, skip*size), n*size)
	}
	if c.Kind.Traits().Dst.Extent != coll.Whole {
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

// share is this rank's part of a step's reduction.
type share struct {
	from   []uintptr      // the operands
	n      int            // elements of each
	to     unsafe.Pointer // where the result goes
	result unsafe.Pointer // what this rank gets, which may be of others
}

// slicing reports whether each rank reduces a slice of a step for all.
func (t *Staged) slicing(x *course, k int) bool {
	_, n := x.p.of(k, x.c.N)
	return (x.c.Kind == coll.AllReduce || x.c.Kind == coll.Reduce) && n*x.c.Type.Size() > StagedSizes.Alone &&
		t.host.Size() > 1
}

func (t *Staged) share(x *course, k int) share {
	me, ranks, size, number := t.host.Rank(), t.host.Size(), x.c.Type.Size(), x.first+k
	on := t.step(x.c, x.p, k, &t.slots[number%slots])
	_, to := t.place(me, number)
	s := share{n: on.N, to: to, result: to}
	off := 0
	switch on.Kind {
	case coll.ReduceScatter, coll.ReduceScatterV:
		off, s.n = on.Offset(me), on.Share(me)
	case coll.Scan:
		ranks = me + 1
	case coll.ExScan:
		ranks = me
	default:
		if t.slicing(x, k) {
			each := ((s.n+ranks-1)/ranks + 63) / 64 * 64
			off = min(me*each, s.n)
			s.n = min(each, s.n-off)
			_, s.result = t.place(number%ranks, number)
			s.to = unsafe.Add(s.result, off*size)
		} else if on.Kind == coll.Reduce && !t.isRoot(&on) {
			s.n = 0
		}
	}
	s.from = t.operands[:ranks]
	for r := range s.from {
		from, _ := t.place(r, number)
		s.from[r] = ccall.Address(from) + uintptr(off*size)
	}
	if ranks == 1 {
		from, _ := t.place(0, number)
		s.result = unsafe.Add(from, off*size)
	}
	return s
}

// foldGrain is the bytes of each operand that are worth a goroutine: it takes time to wake up.
const foldGrain = 256 << 10

// reduce reduces the share, if there is more than one operand.
func (s *share) reduce(c *coll.Call) {
	if len(s.from) < 2 {
		return
	}
	size := c.Type.Size()
	host.Parallel(s.n, foldGrain/size, func(lo, hi int) {
		from := slices.Clone(s.from)
		for r := range from {
			from[r] += uintptr(lo * size)
		}
		shm.Reduce(unsafe.Add(s.to, lo*size), from, hi-lo, c.Type, c.Op)
	})
}
