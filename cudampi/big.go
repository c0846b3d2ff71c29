package cudampi

import (
	"unsafe"

	"lockstep/internal/elem"
)

// Collectives of more elements than one MPI call takes are made of calls that take fewer.

func (c *Comm) bigAllGather(dst, src unsafe.Pointer, p Parts, t elem.Type) error {
	move(elem.At(dst, p.Offset(c.rank), p.Len(c.rank), t), src, p.Len(c.rank), t)
	off := 0
	for r := range c.size {
		if err := c.broadcast(elem.At(dst, off, p.Len(r), t), p.Len(r), t, r); err != nil {
			return err
		}
		off += p.Len(r)
	}
	return nil
}

func (c *Comm) bigReduceScatter(dst, src unsafe.Pointer, p Parts, t elem.Type, op elem.Op) error {
	off := 0
	for r := range c.size {
		if err := c.reduce(dst, elem.At(src, off, p.Len(r), t), p.Len(r), t, op, r); err != nil {
			return err
		}
		off += p.Len(r)
	}
	return nil
}

func (c *Comm) bigGather(dst, src unsafe.Pointer, p Parts, t elem.Type, root int) error {
	if c.rank != root {
		return c.send(src, p.Len(c.rank), t, root, tagInternal)
	}
	off := 0
	for r := range c.size {
		if r == root {
			move(elem.At(dst, off, p.Len(r), t), src, p.Len(r), t)
		} else if err := c.recv(elem.At(dst, off, p.Len(r), t), p.Len(r), t, r, tagInternal); err != nil {
			return err
		}
		off += p.Len(r)
	}
	return nil
}

func (c *Comm) bigScatter(dst, src unsafe.Pointer, p Parts, t elem.Type, root int) error {
	if c.rank != root {
		return c.recv(dst, p.Len(c.rank), t, root, tagInternal)
	}
	off := 0
	for r := range c.size {
		if r == root {
			move(dst, elem.At(src, off, p.Len(r), t), p.Len(r), t)
		} else if err := c.send(elem.At(src, off, p.Len(r), t), p.Len(r), t, r, tagInternal); err != nil {
			return err
		}
		off += p.Len(r)
	}
	return nil
}

func (c *Comm) bigAllToAll(dst, src unsafe.Pointer, n int, t elem.Type) error {
	if dst != src {
		return c.exchange(dst, Parts{Each: n}, src, Parts{Each: n}, t)
	}
	// In round k ranks r and k-r exchange their parts, so that each pair meets once and nobody
	// waits in a ring.
	limit := min(maxCount, maxSwap)
	for k := range c.size {
		peer := (k - c.rank + c.size) % c.size
		if peer == c.rank {
			continue
		}
		for lo := 0; lo < n; lo += limit {
			k := min(limit, n-lo)
			buf := elem.At(dst, peer*n+lo, k, t)
			if err := c.Check("MPI_Sendrecv_replace", sysSwap(c, buf, k, t, peer, tagInternal)); err != nil {
				return err
			}
		}
	}
	return nil
}

// exchange sends every rank its part of src and receives that rank's part of dst.
func (c *Comm) exchange(dst unsafe.Pointer, recv Parts, src unsafe.Pointer, send Parts, t elem.Type) error {
	if own := recv.Len(c.rank); own > 0 {
		move(elem.At(dst, recv.Offset(c.rank), own, t), elem.At(src, send.Offset(c.rank), own, t), own, t)
	}
	recvAt, sendAt, tag := 0, 0, tagTyped+int(t)
	for r := range c.size {
		if r != c.rank {
			c.group.add(c, elem.At(dst, recvAt, recv.Len(r), t), recv.Len(r), t, r, tag, incoming, nil)
			c.group.add(c, elem.At(src, sendAt, send.Len(r), t), send.Len(r), t, r, tag, outgoing, nil)
		}
		recvAt += recv.Len(r)
		sendAt += send.Len(r)
	}
	return c.group.Wait()
}
