package hybrid

import (
	"cmp"
	"fmt"
	"unsafe"

	"lockstep/spmd/internal/coll"
)

// crossing is what a rank brings to an all-to-all. The others of its process read its memory and write it.
type crossing struct {
	dst, src unsafe.Pointer
	in, out  []int // bytes before what comes from each rank, and goes to each; behind the last those of all
	mates    []*Comm
	pairs    []pair // with each process; nothing with this one
}

// pair is what this process exchanges with another.
type pair struct{ in, out flow }

// flow is one direction of it.
type flow struct {
	bytes int
	n     int // a number of all counts
}

// add takes a part into account.
func (f *flow) add(bytes int) {
	f.bytes += bytes
	f.n = f.n*31 + bytes // counts that differ give another number, but for accidents
}

// mostPacked is the most bytes that go from one process to another in one message. What is longer the ranks send themselves.
// Tests change it.
var mostPacked = 128 << 10

func (f *flow) packed() bool { return f.bytes <= mostPacked }

// allToAll has each process send another one message with what all of its ranks have for all of the other's. The ranks of a
// process share the other processes out. Each packs and unpacks for all.
func (c *Comm) allToAll(call *coll.Call) error {
	x := &c.crossing
	x.dst, x.src = call.Dst, call.Src
	x.out = offsets(x.out[:0], call, call.Counts, c.Size())
	x.in = offsets(x.in[:0], call, call.RecvCounts, c.Size())
	if err := c.local.Meet(call, unsafe.Pointer(c)); err != nil {
		return err
	}
	x.mates = x.mates[:0]
	for i := range c.local.Size() {
		x.mates = append(x.mates, (*Comm)(c.local.Brought(i)))
	}
	var failure *error
	if err := c.cross(call); err != nil {
		failure = new(error)
		*failure = err
	}
	clear(x.mates)
	if err := c.local.Meet(call, unsafe.Pointer(failure)); err != nil {
		return err
	}
	if failure != nil {
		return *failure
	}
	for i := range c.local.Size() {
		if its := (*error)(c.local.Brought(i)); its != nil {
			return *its
		}
	}
	err := c.getAlone(call)
	x.dst, x.src = nil, nil
	return err
}

// offsets appends the bytes before each part of a call, and of all. counts are of a V form.
func offsets(to []int, call *coll.Call, counts []int, ranks int) []int {
	at := 0
	for r := range ranks {
		to = append(to, at)
		n := call.N
		if len(counts) > 0 {
			n = counts[r]
		}
		at += n * call.Type.Size()
	}
	return append(to, at)
}

// gives is what a rank here has for another, and gets is where it wants what that has.
func (c *Comm) gives(rank int) []byte { return part(c.crossing.src, c.crossing.out, rank) }
func (c *Comm) gets(rank int) []byte  { return part(c.crossing.dst, c.crossing.in, rank) }

// part is the memory of a rank's part.
func part(memory unsafe.Pointer, offsets []int, rank int) []byte {
	if at, n := offsets[rank], offsets[rank+1]-offsets[rank]; n > 0 {
		return bytesAt(unsafe.Add(memory, at), n)
	}
	return nil
}

// cross is what of allToAll concerns the memory of several ranks of the process, and the sending of what does not.
func (c *Comm) cross(call *coll.Call) error {
	c.tally()
	if err := c.givePacked(call); err != nil {
		return err
	}
	here := c.crossHere(call)
	if err := c.getPacked(call); err != nil {
		return err
	}
	if err := c.sent(call); err != nil {
		return err
	}
	if err := c.giveAlone(call); err != nil { // also where ranks differ, so that nobody waits for this one
		return err
	}
	return cmp.Or(here, c.takeDiffers(call))
}

// tally counts what this process exchanges with each of the others.
func (c *Comm) tally() {
	x := &c.crossing
	x.pairs = x.pairs[:0]
	for p := range c.process {
		var one pair
		if p != c.mine {
			for i := range len(x.mates) * len(c.members[p]) {
				mate, peer := c.segment(p, i)
				one.in.add(len(mate.gets(peer)))
				one.out.add(len(mate.gives(peer)))
			}
		}
		x.pairs = append(x.pairs, one)
	}
}

// segment is the i-th of what two processes exchange: between which rank here and which there. It is the same on both sides.
func (c *Comm) segment(process, i int) (mate *Comm, peer int) {
	mates, peers := c.crossing.mates, c.members[process]
	if c.mine < process {
		return mates[i/len(peers)], peers[i%len(peers)]
	}
	return mates[i%len(mates)], peers[i/len(mates)]
}

// moves says whether this rank moves what is packed to and from a process.
func (c *Comm) moves(process int) bool {
	return process != c.mine && process%c.local.Size() == c.local.Rank()
}

// checked is what the messages of a call say of it: a number of the counts in place of those.
func checked(call *coll.Call, f *flow) coll.Call {
	its := coll.Call{Kind: call.Kind, Type: call.Type, N: call.N}
	if len(call.Counts) > 0 {
		its.N = f.n
	}
	return its
}

// givePacked sends the messages between processes. Where they are too long they are empty, and let the other side compare the
// call.
func (c *Comm) givePacked(call *coll.Call) error {
	room := 0
	for p := range c.process {
		if f := &c.crossing.pairs[p].out; c.moves(p) && f.packed() {
			room += f.bytes
		}
	}
	buf := bytesAt(c.room(1, room), room)
	for p := range c.process {
		if !c.moves(p) {
			continue
		}
		f, bytes := &c.crossing.pairs[p].out, 0
		if f.packed() {
			for i := range len(c.crossing.mates) * len(c.members[p]) {
				mate, peer := c.segment(p, i)
				bytes += copy(buf[bytes:], mate.gives(peer))
			}
		}
		its := checked(call, f)
		if err := c.give(&its, p, unsafe.Pointer(unsafe.SliceData(buf)), bytes); err != nil {
			return err
		}
		buf = buf[bytes:]
	}
	return nil
}

// getPacked receives them.
func (c *Comm) getPacked(call *coll.Call) error {
	for p := range c.process {
		if !c.moves(p) {
			continue
		}
		f, bytes := &c.crossing.pairs[p].in, 0
		if f.packed() {
			bytes = f.bytes
		}
		its := checked(call, f)
		m, data, err := c.get(&its, p, nil, bytes)
		if err != nil {
			return err
		}
		if data != nil && bytes > 0 {
			at := 0
			for i := range len(c.crossing.mates) * len(c.members[p]) {
				mate, peer := c.segment(p, i)
				at += copy(mate.gets(peer), m.data[at:])
			}
		}
		c.open.post.release(m)
	}
	return nil
}

// alone is the address of a long part, from one rank to another.
func (c *Comm) alone(from, to int) address {
	return address{comm: c.id, turn: c.turn, from: int32(-1 - from), to: int32(-1 - to)} // below zero: those of processes are not
}

// giveAlone begins to send this rank's long parts.
func (c *Comm) giveAlone(call *coll.Call) error {
	x := &c.crossing
	for p, members := range c.members {
		if x.pairs[p].out.packed() {
			continue
		}
		for _, r := range members {
			part := c.gives(r)
			if part == nil {
				continue
			}
			if err := c.send(call, c.process[p], c.alone(c.rank, r), 0, 0, unsafe.Pointer(&part[0]), len(part)); err != nil {
				return err
			}
		}
	}
	return nil
}

// getAlone receives this rank's long parts. In place all has been sent before.
func (c *Comm) getAlone(call *coll.Call) error {
	x := &c.crossing
	if call.Dst == call.Src {
		if err := c.sent(call); err != nil {
			return err
		}
	}
	for p, members := range c.members {
		if x.pairs[p].in.packed() {
			continue
		}
		for _, r := range members {
			part := c.gets(r)
			if part == nil {
				continue
			}
			m := coll.Call{Kind: coll.Recv, Type: call.Type, N: len(part) / call.Type.Size(), Dst: unsafe.Pointer(&part[0]), Root: int32(r)}
			if err := c.receiveAt(&m, c.alone(r, c.rank)); err != nil {
				return err
			}
		}
	}
	return c.sent(call)
}

// crossHere moves what the ranks of this process have for this one. In place it exchanges it with those behind this one.
func (c *Comm) crossHere(call *coll.Call) error {
	for i, mate := range c.crossing.mates {
		rank := c.members[c.mine][i]
		mine, its := c.gets(rank), mate.gives(c.rank)
		switch {
		case len(mine) != len(its):
			return c.failed(call, fmt.Errorf("rank %d gives %d bytes, %d (%d %v elements) expected", rank, len(its), len(mine), len(mine)/call.Type.Size(), call.Type))
		case call.Dst != call.Src:
			copy(mine, its)
		case i > c.local.Rank():
			swap(mine, its)
		}
	}
	return nil
}

// swap exchanges as many bytes.
func swap(a, b []byte) {
	var buf [4096]byte
	for len(a) > 0 {
		n := copy(buf[:], a)
		copy(a, b[:n])
		copy(b, buf[:n])
		a, b = a[n:], b[n:]
	}
}
