package hybrid

import (
	"math/bits"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// blocks is memory that is divided among the processes, on each of their leaders. What follows is made of messages between
// leaders, of which each sends and gets about as many as the number of processes has bits.
type blocks struct {
	base unsafe.Pointer
	off  []int // in elements: block p lies from off[p] to off[p+1]
}

// part is the blocks from one to before another: where they lie, nil where they are empty, and their elements.
func (b *blocks) part(call *coll.Call, from, to int) (p unsafe.Pointer, n int) {
	n = b.off[to] - b.off[from]
	return elem.At(b.base, b.off[from], n, call.Type), n
}

// own is the block of this process.
func (c *Comm) own(call *coll.Call, b *blocks) (p unsafe.Pointer, n int) {
	return b.part(call, c.mine, c.mine+1)
}

// run is blocks one after the other, behind the last the first.
type run struct{ first, n int }

// each yields the one or two parts of a run that lie together.
func (c *Comm) each(call *coll.Call, b *blocks, r run, yield func(p unsafe.Pointer, n int) error) error {
	for r.n > 0 {
		k := min(r.n, len(c.process)-r.first)
		if err := yield(b.part(call, r.first, r.first+k)); err != nil {
			return err
		}
		r = run{(r.first + k) % len(c.process), r.n - k}
	}
	return nil
}

func (c *Comm) giveRun(call *coll.Call, process int, b *blocks, r run) error {
	return c.each(call, b, r, func(p unsafe.Pointer, n int) error { return c.give(call, process, p, n*call.Type.Size()) })
}

func (c *Comm) fetchRun(call *coll.Call, process int, b *blocks, r run) error {
	return c.each(call, b, r, func(p unsafe.Pointer, n int) error { return c.fetch(call, process, p, n*call.Type.Size()) })
}

func (c *Comm) addRun(call *coll.Call, process int, b *blocks, r run) error {
	return c.each(call, b, r, func(p unsafe.Pointer, n int) error { return c.add(call, process, p, n) })
}

// around is the process so far behind another, and in front of the first behind the last.
func (c *Comm) around(process, gap int) int {
	n := len(c.process)
	return (process + gap + n) % n
}

// gatherAll has each leader, who has its own block, get all. In each round a leader has got twice as many blocks, from its
// own on, and gets those behind them from the process that has them first.
func (c *Comm) gatherAll(call *coll.Call, b *blocks) error {
	for gap := 1; gap < len(c.process); gap *= 2 {
		n := min(gap, len(c.process)-gap)
		if err := c.giveRun(call, c.around(c.mine, -gap), b, run{c.mine, n}); err != nil {
			return err
		}
		from := c.around(c.mine, gap)
		if err := c.fetchRun(call, from, b, run{from, n}); err != nil {
			return err
		}
	}
	return c.given(call)
}

// sumAll has each leader, who has terms of all blocks, get the sum of its own: gatherAll, backwards. The other blocks change.
func (c *Comm) sumAll(call *coll.Call, b *blocks) error {
	for gap := c.widest(); gap > 0; gap /= 2 {
		n, to := min(gap, len(c.process)-gap), c.around(c.mine, gap)
		if err := c.giveRun(call, to, b, run{to, n}); err != nil {
			return err
		}
		if err := c.addRun(call, c.around(c.mine, -gap), b, run{c.mine, n}); err != nil {
			return err
		}
	}
	return c.given(call)
}

// widest is the largest power of two that is less than the number of processes; 0 for one process.
func (c *Comm) widest() int { return 1 << bits.Len(uint(len(c.process)-1)) / 2 }

// up goes through a tree from all leaders to that of a process. take gets from the leader of a process what it and the n-1
// behind it have; after that, hand gives what this one and the n-1 behind it have to another.
func (c *Comm) up(call *coll.Call, root int, take, hand func(process, n int) error) error {
	place, processes := c.around(c.mine, -root), len(c.process)
	for gap := 1; gap < processes; gap *= 2 {
		if place&gap != 0 {
			if err := hand(c.around(c.mine, -gap), min(gap, processes-place)); err != nil {
				return err
			}
			break
		}
		if place+gap < processes {
			if err := take(c.around(c.mine, gap), min(gap, processes-place-gap)); err != nil {
				return err
			}
		}
	}
	return c.given(call)
}

// down is up, backwards: take gets from the leader of a process what is for this one and the n-1 behind it, hand gives another
// what is for it and the n-1 behind it.
func (c *Comm) down(call *coll.Call, root int, take, hand func(process, n int) error) error {
	place, processes := c.around(c.mine, -root), len(c.process)
	gap := c.widest()
	if place > 0 {
		gap = place & -place // what is for so many comes, or for those up to the last
		if err := take(c.around(c.mine, -gap), min(gap, processes-place)); err != nil {
			return err
		}
		gap /= 2
	}
	for ; gap > 0; gap /= 2 {
		if place+gap < processes {
			if err := hand(c.around(c.mine, gap), min(gap, processes-place-gap)); err != nil {
				return err
			}
		}
	}
	return c.given(call)
}

// collect has the leader of a process get all blocks, of which each leader has its own.
func (c *Comm) collect(call *coll.Call, b *blocks, root int) error {
	return c.up(call, root,
		func(from, n int) error { return c.fetchRun(call, from, b, run{from, n}) },
		func(to, n int) error { return c.giveRun(call, to, b, run{c.mine, n}) })
}

// spread has each leader get its own block of those that the leader of a process has.
func (c *Comm) spread(call *coll.Call, b *blocks, root int) error {
	return c.down(call, root,
		func(from, n int) error { return c.fetchRun(call, from, b, run{c.mine, n}) },
		func(to, n int) error { return c.giveRun(call, to, b, run{to, n}) })
}

// sumAt has the leader of a process get the sum of n elements at p on all leaders. On the others they change.
func (c *Comm) sumAt(call *coll.Call, p unsafe.Pointer, n, root int) error {
	return c.up(call, root,
		func(from, _ int) error { return c.add(call, from, p, n) },
		func(to, _ int) error { return c.give(call, to, p, n*call.Type.Size()) })
}

// passOn has all leaders get the n elements at p on that of a process.
func (c *Comm) passOn(call *coll.Call, p unsafe.Pointer, n, root int) error {
	bytes := n * call.Type.Size()
	return c.down(call, root,
		func(from, _ int) error { return c.fetch(call, from, p, bytes) },
		func(to, _ int) error { return c.give(call, to, p, bytes) })
}

// sumBefore has each leader but the first get at before the sum of the n elements at p on the leaders before it. What is at p
// changes.
func (c *Comm) sumBefore(call *coll.Call, before, p unsafe.Pointer, n int) error {
	size := call.Type.Size()
	for gap := 1; gap < len(c.process); gap *= 2 { // p has the sum of so many, up to this one
		if c.mine+gap < len(c.process) {
			if err := c.give(call, c.mine+gap, p, n*size); err != nil {
				return err
			}
		}
		if c.mine < gap {
			continue
		}
		m, data, err := c.get(call, c.mine-gap, nil, n*size)
		if err != nil {
			return err
		}
		if gap > 1 {
			c.both(call, before, data, before, n)
		} else if data != nil {
			copy(bytesAt(before, n*size), bytesAt(data, n*size))
		}
		if err := c.sent(call); err != nil { // p is read until then
			return err
		}
		c.both(call, p, data, p, n)
		c.open.post.release(m)
	}
	return c.given(call)
}

// meetAll has each leader hear that all others have come.
func (c *Comm) meetAll(call *coll.Call) error {
	for gap := 1; gap < len(c.process); gap *= 2 {
		if err := c.give(call, c.around(c.mine, gap), nil, 0); err != nil {
			return err
		}
		if err := c.fetch(call, c.around(c.mine, -gap), nil, 0); err != nil {
			return err
		}
	}
	return c.given(call)
}
