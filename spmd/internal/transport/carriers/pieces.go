package carriers

import (
	"errors"
	"slices"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// slots is the number of pieces that have memory. The device copies the operands of one in, the
// host works on the next, and the device copies the result of the third out.
const slots = 3

type slot struct {
	from, to unsafe.Pointer // operands and result, which are one where the host makes a call in place
	here     *cuda.Event    // the operands are there
	gone     *cuda.Event    // the result has been copied
	last     *cuda.Stream   // on which that was recorded
}

// pieces says how a collective is divided. A piece has up to each elements of every rank's part.
type pieces struct {
	each, steps   int
	inPlace       bool // on the host
	reads, writes bool // this rank
	keeps         bool // this rank's own part does not go to the host
	packed        bool // and has no place in the slot
}

func (t *Staged) pieces(c *coll.Call) pieces {
	traits := c.Kind.Traits()
	writes, reads := c.Extents(t.host.Rank(), t.host.Size())
	whole := traits.Dst.Extent == coll.Whole || traits.Src.Extent == coll.Whole
	p := pieces{inPlace: !whole, reads: reads > 0, writes: writes > 0}
	if c.Kind == coll.Broadcast {
		p.reads = t.isRoot(c) && writes > 0
		p.writes = !p.reads && writes > 0
	}
	// If others read a slot it has this rank's operands, else also its results.
	given := t.whole && !traits.Reduces
	switch {
	case given && traits.Src.Extent != coll.Whole || !whole:
		p.cut(c, 1)
	default:
		p.cut(c, t.host.Size())
		if p.packed = given && p.steps > 1; p.packed {
			p.cut(c, t.host.Size()-1)
		}
	}
	p.keeps = c.Kind == coll.Broadcast || (p.steps > 1 || t.whole) && whole && !traits.Reduces
	return p
}

// cut divides a call into steps that have so many parts in a slot.
func (p *pieces) cut(c *coll.Call, parts int) {
	parts = max(parts, 1)
	size := c.Type.Size()
	// A long call has many pieces, so that copies overlap; short pieces take turns too often.
	bytes := min(StagedSizes.Piece, max(StagedSizes.Least, c.Longest()*size*parts/32))
	p.each = max(bytes/size/parts, 1)
	if line := 256 / size; p.each > line {
		p.each -= p.each % line // so that pieces begin where accesses are fast
	}
	p.steps = (c.Longest() + p.each - 1) / p.each
}

func (t *Staged) isRoot(c *coll.Call) bool { return t.host.Rank() == int(c.Root) }

// of returns the elements of a part of n that belong to step k.
func (p *pieces) of(k, n int) (lo, m int) {
	lo = min(k*p.each, n)
	return lo, min(n-lo, p.each)
}

// Whether the ranks have agreed on a call of Staged.Make.
const notAgreed, Agreed = false, true

// Make makes a collective. Stream in has the copies from the device, and out the copies to it. On
// return the last copies may be under way. agreed says that Agree has been called.
func (t *Staged) Make(in, out *cuda.Stream, c *coll.Call, agreed bool) error {
	if c.Kind == coll.Barrier {
		if err := transport.Wait(t.host, in.Query); err != nil {
			return err
		}
		return t.host.Make(c)
	}
	p := t.pieces(c)
	if p.steps == 0 {
		return nil
	}
	first, begun := t.used, 0
	err := t.settle()
	if err == nil && (!t.whole || t.behind(fetched, first+1-slots) < 0) {
		err, begun = t.copyIn(c, &p, 0, first, in), 1
	}
	if err != nil {
		return err
	}
	if !agreed { // while the device copies
		if err := t.Agree(c); err != nil {
			return errors.Join(err, transport.Wait(t.host, t.slots[first%slots].here.Query))
		}
	}
	t.used += p.steps
	if err := t.keep(c, &p, out); err != nil {
		return err
	}
	if t.whole {
		return t.together(&course{c: c, p: &p, first: first, begun: begun, in: in, out: out})
	}
	for k := range p.steps {
		for ; begun < min(k+slots, p.steps); begun++ {
			if err := t.copyIn(c, &p, begun, first+begun, in); err != nil {
				return err
			}
		}
		at := &t.slots[(first+k)%slots]
		if err := transport.Wait(t.host, at.here.Query); err != nil {
			return err
		}
		on := t.step(c, &p, k, at)
		if err := t.host.Make(&on); err != nil {
			return err
		}
		if err := t.copyOut(c, &p, k, at, out); err != nil {
			return err
		}
		if err := at.leave(out); err != nil {
			return err
		}
	}
	return nil
}

// leave says that the last copy out of a slot has been enqueued.
func (at *slot) leave(out *cuda.Stream) error {
	at.last = out
	return at.gone.Record(out)
}

// signed is how many numbers of a rank Agree compares.
const signed = 2

// Agree fails on all ranks if one makes another call: they would make other steps, and wait for
// ever.
func (t *Staged) Agree(c *coll.Call) error {
	mine := t.brought[signed*t.host.Size():]
	mine[0], mine[1] = int64(c.What()), int64(c.Alike())
	err := t.host.AllGather(unsafe.Pointer(&t.brought[0]), unsafe.Pointer(&mine[0]), signed, elem.Int64)
	if err != nil {
		return err
	}
	for r := range t.host.Size() {
		if its := t.brought[signed*r:][:signed]; !slices.Equal(its, mine) {
			return c.Differs(t.host.Rank(), r, uint64(its[0]), int(its[1]))
		}
	}
	return nil
}

func (t *Staged) step(c *coll.Call, p *pieces, k int, at *slot) coll.Call {
	on := *c
	_, on.N = p.of(k, c.N)
	if len(c.Counts) > 0 {
		on.Counts = t.counts
		for r := range on.Counts {
			_, on.Counts[r] = p.of(k, c.Counts[r])
		}
	}
	on.Dst, on.Src = at.to, at.from
	if p.inPlace {
		on.Dst = at.from
	}
	if c.Kind == coll.Broadcast {
		on.Src = nil
	}
	return on
}

// copyIn enqueues the copies of this rank's operands in a step.
func (t *Staged) copyIn(c *coll.Call, p *pieces, k, number int, s *cuda.Stream) error {
	at := &t.slots[number%slots]
	if at.last != nil && at.last != s {
		if err := s.Wait(at.gone); err != nil {
			return err
		}
	}
	if p.reads {
		side, src := c.Kind.Traits().Src, c.Src
		if c.Kind == coll.Broadcast {
			side = c.Kind.Traits().Dst
			if src == nil {
				src = c.Dst
			}
		}
		skip := p.keeps && (side.Extent == coll.Whole || t.isRoot(c) && c.Kind.Traits().Dst.AtRoot)
		if err := t.each(c, p, k, side, skip, func(off, packed, bytes int) error {
			return s.Copy(unsafe.Add(at.from, packed), unsafe.Add(src, off), bytes)
		}); err != nil {
			return err
		}
	}
	return at.here.Record(s)
}

// copyOut enqueues the copies of this rank's results in a step.
func (t *Staged) copyOut(c *coll.Call, p *pieces, k int, at *slot, s *cuda.Stream) error {
	if !p.writes {
		return nil
	}
	from, side := at.to, c.Kind.Traits().Dst
	if p.inPlace {
		from = at.from
	}
	skip := p.keeps && (side.Extent == coll.Whole || t.isRoot(c) && c.Kind.Traits().Src.AtRoot)
	return t.each(c, p, k, side, skip, func(off, packed, bytes int) error {
		return s.Copy(unsafe.Add(c.Dst, off), unsafe.Add(from, packed), bytes)
	})
}

// each calls fn with what a buffer of a call has in a step: its offset there, its offset in the
// slot, and its bytes. skip leaves out this rank's own part.
func (t *Staged) each(c *coll.Call, p *pieces, k int, side coll.Side, skip bool,
	fn func(off, packed, bytes int) error) error {
	size, rank := c.Type.Size(), t.host.Rank()
	part := func(off, packed, r int) (n int, err error) {
		lo, n := p.of(k, c.Share(r))
		if n > 0 && !(skip && r == rank) {
			err = fn((off+lo)*size, packed*size, n*size)
		}
		return n, err
	}
	switch {
	case side.Extent == coll.Part:
		_, err := part(0, 0, rank)
		return err
	case p.steps == 1 && !p.packed:
		if n := c.Offset(t.host.Size()); n > 0 {
			return fn(0, 0, n*size)
		}
		return nil
	}
	off, packed := 0, 0
	for r := range t.host.Size() {
		n, err := part(off, packed, r)
		if err != nil {
			return err
		}
		off += c.Share(r)
		if !p.packed || r != rank {
			packed += n
		}
	}
	return nil
}

// keep enqueues the copy of this rank's own part, if that does not go to the host.
func (t *Staged) keep(c *coll.Call, p *pieces, s *cuda.Stream) error {
	rank, traits := t.host.Rank(), c.Kind.Traits()
	dst, src, n := c.Dst, c.Src, c.Share(rank)
	switch {
	case !p.keeps || n == 0:
		return nil
	case c.Kind == coll.Broadcast:
		if !p.reads || src == nil {
			return nil
		}
	case !p.reads || !p.writes:
		return nil
	}
	if traits.Dst.Extent == coll.Whole {
		dst = elem.At(dst, c.Offset(rank), n, c.Type)
	}
	if traits.Src.Extent == coll.Whole {
		src = elem.At(src, c.Offset(rank), n, c.Type)
	}
	if dst == src {
		return nil
	}
	return s.Copy(dst, src, n*c.Type.Size())
}
