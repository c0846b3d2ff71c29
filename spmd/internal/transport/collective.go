package transport

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/shm"
)

// messagesOnly has an AllToAllV made of messages: only two ranks know the length of each part.
var messagesOnly = coll.Library{Kinds: coll.SetOf(coll.Send, coll.Recv)}

// Make implements Host. The ranks meet, each with its operands, and each makes its
// own result. Long operands stay where they are, and the ranks meet again before one may use
// their memory for something else.
func (r *Member) Make(c *coll.Call) error {
	switch c.Kind {
	case coll.Send:
		return r.send(c)
	case coll.Recv:
		return r.receive(c)
	case coll.SendRecv:
		return r.exchange(c)
	case coll.AllToAllV:
		return r.byMessages(c)
	}
	if r.size == 1 {
		return r.alone(c)
	}
	switch c.Kind {
	case coll.AllReduce, coll.Reduce:
		return r.reduceAll(c)
	case coll.Broadcast:
		return r.broadcast(c)
	case coll.AllGather, coll.Gather, coll.AllGatherV, coll.GatherV:
		return r.gather(c)
	case coll.Scatter, coll.ScatterV:
		return r.scatter(c)
	case coll.ReduceScatter, coll.ReduceScatterV:
		return r.reduceParts(c)
	case coll.AllToAll:
		return r.transpose(c)
	case coll.Scan, coll.ExScan:
		return r.scan(c)
	default:
		return r.meet(c, 0, nil, 0)
	}
}

// alone makes a collective of one rank: a copy, or nothing.
func (r *Member) alone(c *coll.Call) error {
	if c.Src != nil && c.Kind != coll.ExScan && c.Kind != coll.Barrier {
		n, _ := c.Extents(0, 1)
		move(c.Dst, c.Src, n*c.Type.Size())
	}
	return nil
}

func (r *Member) exchange(c *coll.Call) (err error) {
	c.Messages(func(m coll.Call) bool {
		if m.Kind == coll.Send {
			err = r.send(&m)
		} else {
			err = r.receive(&m)
		}
		return err == nil
	})
	return err
}

func (r *Member) byMessages(c *coll.Call) error {
	list := r.messages[:0]
	c.Steps(r.rank, r.size, &messagesOnly, nil, func(m coll.Call) bool {
		list = append(list, m)
		return true
	})
	r.messages = list
	return r.start(list)
}

// meet brings a call, and waits until all ranks have brought theirs. n must be the same on all
// ranks. The others read the bytes at src from the desk. If the desk has none, they may read them
// where they are, until the next meeting.
func (r *Member) meet(c *coll.Call, n int, src unsafe.Pointer, bytes int) error {
	r.meetings++
	now := r.meetings
	mine := &r.g.desks[r.rank][now%posts]
	call := c.What()
	mine.call, mine.n, mine.src = call, n, src
	copy(mine.data[:bytes], bytesAt(src, bytes))
	mine.meeting.Store(now)
	// the line comes from the caches of the others while this rank waits for them
	r.g.desks[r.rank][(now+1)%posts].call = 0
	r.team.wake()
	r.patience.pause()
	differs := -1
	for i := range r.g.desks {
		o := &r.g.desks[i][now%posts]
		if i == r.rank {
			continue
		}
		if o.meeting.Load() < now {
			if err := r.await(&o.meeting, now, r.g.members[i]); err != nil {
				return r.failed(c, err)
			}
		}
		if o.call != call || o.n != n {
			differs = i
		}
	}
	if differs >= 0 {
		o := &r.g.desks[differs][now%posts]
		return c.Differs(r.rank, differs, o.call, o.n)
	}
	return nil
}

// brought returns the operand that a rank has brought to the present meeting: short ones lie on
// its desk.
func (r *Member) brought(rank int, short bool) unsafe.Pointer {
	if short {
		return unsafe.Pointer(&r.g.desks[rank][r.meetings%posts].data)
	}
	return r.lent(rank)
}

// lent returns the memory that a rank has brought to the present meeting.
func (r *Member) lent(rank int) unsafe.Pointer { return r.g.desks[rank][r.meetings%posts].src }

// onDesk returns the bytes of operands that go on the desk.
func onDesk(bytes int, short bool) int {
	if short {
		return bytes
	}
	return 0
}

// reduceAll makes an AllReduce or a Reduce. Each rank computes a part of a long result for all.
func (r *Member) reduceAll(c *coll.Call) error {
	bytes := c.N * c.Type.Size()
	short := bytes <= inline
	gets := c.Kind == coll.AllReduce || int(c.Root) == r.rank
	if err := r.meet(c, c.N, c.Src, onDesk(bytes, short)); err != nil {
		return err
	}
	if short {
		if gets {
			r.reduce(c.Dst, c, r.size, 0, c.N, short)
		}
		return nil
	}
	lo, n := r.slice(c, r.rank)
	to := r.room(n * c.Type.Size())
	r.reduce(to, c, r.size, lo, n, short)
	if err := r.meet(c, c.N, to, 0); err != nil || !gets {
		return err
	}
	for i := range r.size {
		lo, n := r.slice(c, i)
		move(elem.At(c.Dst, lo, n, c.Type), r.lent(i), n*c.Type.Size())
	}
	return nil
}

// slice returns the part of a long result that a rank computes.
func (r *Member) slice(c *coll.Call, rank int) (lo, n int) {
	each := ((c.N+r.size-1)/r.size + 63) / 64 * 64
	lo = min(rank*each, c.N)
	return lo, min(each, c.N-lo)
}

// room is memory for a result that others read, between the first and the second meeting of a call.
func (r *Member) room(bytes int) unsafe.Pointer {
	if len(r.result) < bytes {
		r.result = make([]byte, bytes)
	}
	return unsafe.Pointer(unsafe.SliceData(r.result))
}

// reduce sets n elements at dst to the result of the first ranks' operands, from element lo on.
func (r *Member) reduce(dst unsafe.Pointer, c *coll.Call, ranks, lo, n int, short bool) {
	if n == 0 {
		return
	}
	if ranks == 1 {
		move(dst, elem.At(r.brought(0, short), lo, n, c.Type), n*c.Type.Size())
		return
	}
	src := r.sources[:ranks]
	for i := range src {
		src[i] = elem.At(r.brought(i, short), lo, n, c.Type)
	}
	if n <= fewElements && few(dst, src, n, c.Type, c.Op) {
		return
	}
	shm.Reduce(dst, unsafe.Slice((*uintptr)(unsafe.Pointer(&src[0])), ranks), n, c.Type, c.Op)
}

func (r *Member) broadcast(c *coll.Call) error {
	bytes, root := c.N*c.Type.Size(), int(c.Root)
	short, src := bytes <= inline, c.Src
	if src == nil {
		src = c.Dst
	}
	gives := 0
	if r.rank == root {
		gives = onDesk(bytes, short)
	}
	if err := r.meet(c, c.N, src, gives); err != nil {
		return err
	}
	if r.rank != root || c.Src != nil {
		move(c.Dst, r.brought(root, short), bytes)
	}
	return r.over(c, c.N, short)
}

// over lets ranks whose operands others have read go on.
func (r *Member) over(c *coll.Call, n int, short bool) error {
	if short {
		return nil
	}
	return r.meet(c, n, nil, 0)
}

func (r *Member) gather(c *coll.Call) error {
	n, size := c.Alike(), c.Type.Size()
	short, own := c.Longest()*size <= inline, c.Share(r.rank)
	if err := r.meet(c, n, c.Src, onDesk(own*size, short)); err != nil {
		return err
	}
	if !c.Kind.Traits().Rooted || int(c.Root) == r.rank {
		off := 0
		for i := range r.size {
			n := c.Share(i)
			if n == 0 {
				continue
			}
			if dst := elem.At(c.Dst, off, n, c.Type); i != r.rank || dst != c.Src {
				move(dst, r.brought(i, short), n*size)
			}
			off += n
		}
	}
	return r.over(c, n, short)
}

func (r *Member) scatter(c *coll.Call) error {
	n, size := c.Alike(), c.Type.Size()
	whole := c.Offset(r.size)
	short, gives := whole*size <= inline, 0
	if r.rank == int(c.Root) {
		gives = onDesk(whole*size, short)
	}
	if err := r.meet(c, n, c.Src, gives); err != nil {
		return err
	}
	off, own := c.Offset(r.rank), c.Share(r.rank)
	if r.rank != int(c.Root) || !elem.IsAt(c.Dst, c.Src, off, c.Type) {
		move(c.Dst, elem.At(r.brought(int(c.Root), short), off, own, c.Type), own*size)
	}
	return r.over(c, n, short)
}

// reduceParts makes a ReduceScatter or a ReduceScatterV.
func (r *Member) reduceParts(c *coll.Call) error {
	n, size := c.Alike(), c.Type.Size()
	whole := c.Offset(r.size)
	short := whole*size <= inline
	if err := r.meet(c, n, c.Src, onDesk(whole*size, short)); err != nil {
		return err
	}
	off, own := c.Offset(r.rank), c.Share(r.rank)
	if short || !elem.IsAt(c.Dst, c.Src, off, c.Type) {
		r.reduce(c.Dst, c, r.size, off, own, short)
	} else {
		to := r.room(own * size)
		r.reduce(to, c, r.size, off, own, short)
		move(c.Dst, to, own*size)
	}
	return r.over(c, n, short)
}

// transpose makes an AllToAll.
func (r *Member) transpose(c *coll.Call) error {
	part := c.N * c.Type.Size()
	whole, src := r.size*part, c.Src
	short := whole <= inline
	if !short && c.Dst == src {
		if len(r.staged) < whole {
			r.staged = make([]byte, whole)
		}
		src = unsafe.Pointer(&r.staged[0])
		move(src, c.Src, whole)
	}
	if err := r.meet(c, c.N, src, onDesk(whole, short)); err != nil {
		return err
	}
	for i := range r.size {
		move(unsafe.Add(c.Dst, i*part), unsafe.Add(r.brought(i, short), r.rank*part), part)
	}
	return r.over(c, c.N, short)
}

func (r *Member) scan(c *coll.Call) error {
	bytes := c.N * c.Type.Size()
	short := bytes <= inline
	if err := r.meet(c, c.N, c.Src, onDesk(bytes, short)); err != nil {
		return err
	}
	ranks := r.rank + 1
	if c.Kind == coll.ExScan {
		ranks--
	}
	if short {
		if ranks > 0 {
			r.reduce(c.Dst, c, ranks, 0, c.N, short)
		}
		return nil
	}
	to := r.room(bytes) // dst may be src, which others read
	if ranks > 0 {
		r.reduce(to, c, ranks, 0, c.N, short)
	}
	if err := r.over(c, c.N, short); err != nil || ranks == 0 {
		return err
	}
	move(c.Dst, to, bytes)
	return nil
}

func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// move copies bytes unless they are in their place already.
func move(dst, src unsafe.Pointer, bytes int) {
	if bytes > 0 && dst != src {
		copy(bytesAt(dst, bytes), bytesAt(src, bytes))
	}
}
