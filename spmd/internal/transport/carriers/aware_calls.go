package carriers

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// make makes a collective, once what s holds is over.
func (t *Aware) make(s *cuda.Stream, c *coll.Call) error {
	if c.Kind == coll.Barrier {
		return t.short.Make(s, s, c, Agreed)
	}
	if c.Longest() == 0 {
		return nil
	}
	if err := t.short.Agree(c); err != nil { // or ranks would choose differently
		return err
	}
	switch long := c.Longest()*c.Type.Size() >= AwareSizes.Direct; {
	case !long, c.Kind == coll.Scan, c.Kind == coll.ExScan, c.Kind == coll.AllToAll && c.Dst == c.Src:
		return t.short.Make(s, s, c, Agreed)
	}
	if err := t.passed(s); err != nil {
		return err
	}
	switch {
	case c.Kind.Traits().Reduces:
		return t.reduce(s, c)
	case c.Kind == coll.Broadcast:
		return t.broadcast(s, c)
	}
	return t.exchange(s, c)
}

// send and receive add steps; one of no elements is none.
func (t *Aware) send(p unsafe.Pointer, n int, c *coll.Call, to int) error {
	if n == 0 {
		return nil
	}
	return t.steps.Send(t.c.Comm, p, n, c.Type, to)
}

func (t *Aware) receive(p unsafe.Pointer, n int, c *coll.Call, from int) error {
	if n == 0 {
		return nil
	}
	return t.steps.Recv(t.c.Comm, p, n, c.Type, from)
}

// others calls fn with each other rank, until it fails, and then makes the steps that were added.
func (t *Aware) others(fn func(r int) error) error {
	for r := range t.c.Size() {
		if r != t.c.Rank() {
			if err := fn(r); err != nil {
				return err
			}
		}
	}
	return t.steps.Wait()
}

// exchange makes a call in which each rank gives the others their parts.
func (t *Aware) exchange(s *cuda.Stream, c *coll.Call) error {
	rank, root, traits := t.c.Rank(), int(c.Root), c.Kind.Traits()
	given := func(from, to int) bool {
		return !traits.Rooted || traits.FromRoot && from == root || !traits.FromRoot && to == root
	}
	part := func(p unsafe.Pointer, side coll.Side, r int) (unsafe.Pointer, int) { // of a buffer, for rank r
		if side.Extent != coll.Whole {
			return p, c.Share(rank)
		}
		return elem.At(p, c.Offset(r), c.Share(r), c.Type), c.Share(r)
	}
	if given(rank, rank) && c.Share(rank) > 0 {
		dst, n := part(c.Dst, traits.Dst, rank)
		if src, _ := part(c.Src, traits.Src, rank); dst != src {
			if err := s.Copy(dst, src, n*c.Type.Size()); err != nil {
				return err
			}
		}
	}
	return t.others(func(r int) error {
		if given(r, rank) {
			p, n := part(c.Dst, traits.Dst, r)
			if err := t.receive(p, n, c, r); err != nil {
				return err
			}
		}
		if given(rank, r) {
			p, n := part(c.Src, traits.Src, r)
			return t.send(p, n, c, r)
		}
		return nil
	})
}

// slice returns the elements of rank r when n are shared out.
func (t *Aware) slice(n, r int) (lo, m int) {
	each := (n + t.c.Size() - 1) / t.c.Size()
	each = (each + 15) / 16 * 16
	lo = min(r*each, n)
	return lo, min(n-lo, each)
}

// broadcast sends each rank a slice, which it sends on to the others: the root alone
// could not fill their links.
func (t *Aware) broadcast(s *cuda.Stream, c *coll.Call) error {
	rank, root, from := t.c.Rank(), int(c.Root), c.Dst
	slice := func(r int) (unsafe.Pointer, int) {
		lo, n := t.slice(c.N, r)
		return elem.At(from, lo, n, c.Type), n
	}
	if rank == root && c.Src != nil && c.Src != c.Dst {
		from = c.Src
		if err := s.Copy(c.Dst, c.Src, c.N*c.Type.Size()); err != nil {
			return err
		}
	}
	err := t.others(func(r int) error {
		switch {
		case rank == root:
			p, n := slice(r)
			return t.send(p, n, c, r)
		case r == root:
			p, n := slice(rank)
			return t.receive(p, n, c, r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	mine, n := slice(rank)
	return t.others(func(r int) error {
		if rank != root {
			p, m := slice(r)
			if err := t.receive(p, m, c, r); err != nil {
				return err
			}
		}
		if r != root {
			return t.send(mine, n, c, r)
		}
		return nil
	})
}

// reduce sends every rank its slice of each step, folds the received slices in the order of the
// ranks, and sends the results on. In an all-reduce of n bytes on p ranks each rank sends 2 (p-1)/p
// n bytes. That is as in a ring, but in two rounds of messages.
func (t *Aware) reduce(s *cuda.Stream, c *coll.Call) error {
	rank, ranks, size, scatters := t.c.Rank(), t.c.Size(), c.Type.Size(), c.Kind.Traits().Src.Extent == coll.Whole
	each, longest := t.stride/size/16*16, 0
	whole := func(r int) (lo, n int) { return t.slice(c.N, r) }
	if scatters {
		whole = func(r int) (lo, n int) { return c.Offset(r), c.Share(r) }
	}
	for r := range ranks {
		_, n := whole(r)
		longest = max(longest, n)
	}
	for done := 0; done < longest; done += each {
		part := func(r int) (lo, n int) { // of rank r in this step
			lo, n = whole(r)
			skip := min(done, n)
			return lo + skip, min(n-skip, each)
		}
		off, mine := part(rank)
		if mine > 0 {
			if err := s.Copy(t.slot(rank), elem.At(c.Src, off, mine, c.Type), mine*size); err != nil {
				return err
			}
		}
		if err := t.others(func(r int) error {
			lo, n := part(r)
			if err := t.receive(t.slot(r), mine, c, r); err != nil {
				return err
			}
			return t.send(elem.At(c.Src, lo, n, c.Type), n, c, r)
		}); err != nil {
			return err
		}
		result, gets := t.slot(ranks), c.Kind == coll.AllReduce || rank == int(c.Root)
		switch {
		case scatters:
			result = elem.At(c.Dst, done, mine, c.Type)
		case gets:
			result = elem.At(c.Dst, off, mine, c.Type)
		}
		if err := t.fold.Fold(s, result, t.table, 0, mine, c.Type, c.Op, ranks); err != nil {
			return err
		}
		if err := t.passed(s); err != nil {
			return err
		}
		if scatters {
			continue
		}
		if err := t.others(func(r int) error {
			if gets {
				lo, n := part(r)
				if err := t.receive(elem.At(c.Dst, lo, n, c.Type), n, c, r); err != nil {
					return err
				}
			}
			if c.Kind == coll.AllReduce || r == int(c.Root) {
				return t.send(result, mine, c, r)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
