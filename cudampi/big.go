package cudampi

import (
	"unsafe"

	"lockstep/internal/elem"
)

// The collectives of more elements than one MPI call takes, made of calls that take fewer.

// parts are the pieces of a buffer that belong to the ranks, packed in rank order: each elements, or counts[r] of rank r.
type parts struct {
	each   int
	counts []int // nil when all are equal
}

func (p parts) len(r int) int {
	if p.counts == nil {
		return p.each
	}
	return p.counts[r]
}

func (p parts) offset(r int) int {
	if p.counts == nil {
		return r * p.each
	}
	sum := 0
	for _, n := range p.counts[:r] {
		sum += n
	}
	return sum
}

func (c *Comm) bigAllGather(dst, src unsafe.Pointer, p parts, t elem.Type) error {
	move(at(dst, p.offset(c.rank), t), src, p.len(c.rank), t)
	off := 0
	for r := range c.size {
		if err := c.broadcast(at(dst, off, t), p.len(r), t, r); err != nil {
			return err
		}
		off += p.len(r)
	}
	return nil
}

func (c *Comm) bigReduceScatter(dst, src unsafe.Pointer, p parts, t elem.Type, op elem.Op) error {
	off := 0
	for r := range c.size {
		if err := c.reduce(dst, at(src, off, t), p.len(r), t, op, r); err != nil {
			return err
		}
		off += p.len(r)
	}
	return nil
}

func (c *Comm) bigGather(dst, src unsafe.Pointer, p parts, t elem.Type, root int) error {
	if c.rank != root {
		return c.send(src, p.len(c.rank), t, root, tagInternal)
	}
	off := 0
	for r := range c.size {
		if r == root {
			move(at(dst, off, t), src, p.len(r), t)
		} else if err := c.recv(at(dst, off, t), p.len(r), t, r, tagInternal); err != nil {
			return err
		}
		off += p.len(r)
	}
	return nil
}

func (c *Comm) bigScatter(dst, src unsafe.Pointer, p parts, t elem.Type, root int) error {
	if c.rank != root {
		return c.recv(dst, p.len(c.rank), t, root, tagInternal)
	}
	off := 0
	for r := range c.size {
		if r == root {
			move(dst, at(src, off, t), p.len(r), t)
		} else if err := c.send(at(src, off, t), p.len(r), t, r, tagInternal); err != nil {
			return err
		}
		off += p.len(r)
	}
	return nil
}

func (c *Comm) bigAllToAll(dst, src unsafe.Pointer, n int, t elem.Type) error {
	if dst != src {
		return c.exchange(dst, parts{each: n}, src, parts{each: n}, t)
	}
	// In round k ranks r and k-r exchange their parts, so that each pair meets once and nobody waits in a ring.
	limit := min(maxCount, maxSwap)
	for k := range c.size {
		peer := (k - c.rank + c.size) % c.size
		if peer == c.rank {
			continue
		}
		for lo := 0; lo < n; lo += limit {
			buf := at(dst, peer*n+lo, t)
			if err := c.Check("MPI_Sendrecv_replace", sysSwap(c, buf, min(limit, n-lo), t, peer, tagInternal)); err != nil {
				return err
			}
		}
	}
	return nil
}

// exchange sends every rank its part of src and receives that rank's part of dst.
func (c *Comm) exchange(dst unsafe.Pointer, recv parts, src unsafe.Pointer, send parts, t elem.Type) error {
	move(at(dst, recv.offset(c.rank), t), at(src, send.offset(c.rank), t), recv.len(c.rank), t)
	recvAt, sendAt := 0, 0
	for r := range c.size {
		if r != c.rank {
			c.group.add(c, at(dst, recvAt, t), recv.len(r), t, r, tagInternal, true, nil)
			c.group.add(c, at(src, sendAt, t), send.len(r), t, r, tagInternal, false, nil)
		}
		recvAt += recv.len(r)
		sendAt += send.len(r)
	}
	return c.group.Wait()
}
