// Package transport_test has every transport make calls of every kind, and compares what they leave
// in memory with a serial reference. So a transport needs a few lines of its own: how it is opened,
// and where the memory of its calls is.
package transport_test

import (
	"slices"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// side is a transport on one of its ranks.
type side struct {
	t          *testing.T
	by         transport.Transport
	rank, size int
	q          transport.Issuer // nil where the transport carries host memory
	mem, work  unsafe.Pointer   // of the device: operands, and what calls need beside them
	pinned     unsafe.Pointer   // twice room: what goes to the device, and what fills it
}

// Rank and Size are for messages of package commtest.
func (s *side) Rank() int { return s.rank }
func (s *side) Size() int { return s.size }

// onHost is the side of a transport that carries host memory.
func onHost(t *testing.T, h transport.Host) *side {
	return &side{t: t, by: h, rank: h.Rank(), size: h.Size()}
}

// room is the bytes of each piece of memory that tests on devices use.
const room = 1 << 17

// onDevice calls fn with a side of a device, and closes what the side needs.
func onDevice(t *testing.T, h transport.Host, dev *cuda.Device, fn func(s *side, word unsafe.Pointer)) {
	t.Helper()
	s := &side{t: t, rank: h.Rank(), size: h.Size()}
	stream, err := dev.NewStream(0)
	commtest.Must(t, err)
	s.q = transport.Bare{S: stream}
	s.mem, err = dev.Malloc(room)
	commtest.Must(t, err)
	s.work, err = dev.Malloc(room)
	commtest.Must(t, err)
	word, err := dev.Malloc(64)
	commtest.Must(t, err)
	s.pinned, err = dev.MallocHost(2 * room)
	commtest.Must(t, err)
	fn(s, word)
	commtest.Must(t, stream.Close())
	for _, p := range []unsafe.Pointer{s.mem, s.work, word} {
		commtest.Must(t, dev.Free(p))
	}
	commtest.Must(t, dev.FreeHost(s.pinned))
}

// walk makes all calls in lengths from none to more than one step, each length of two types.
func walk(s *side) {
	s.t.Helper()
	each[int8](s, 0)
	each[float64](s, 0)
	each[elem.BF16](s, 1)
	each[uint32](s, 1)
	each[float32](s, 7)
	each[elem.F16](s, 7)
	each[int64](s, 301)
	each[uint8](s, 301)
}

// one is a call of parts of about so many elements; shift tells two divisions apart.
type one struct {
	coll.Call
	about, shift int
	inPlace      bool
}

// each makes all calls of parts of n elements, and of parts around that of which some are empty.
func each[T elem.Elem](s *side, n int) {
	s.t.Helper()
	for kind := coll.AllReduce; kind <= coll.Barrier; kind++ {
		traits := kind.Traits()
		if kind == coll.Send || kind == coll.Recv {
			continue
		}
		c := one{about: n}
		c.Call = coll.Call{Kind: kind, Type: elem.Of[T](), N: n, Root: int32((n + int(kind)) % s.size)}
		shifts := 1
		if traits.Lengths != coll.Equal {
			shifts = 2
		}
		for c.shift = range shifts {
			switch {
			case kind == coll.AllToAllV:
				c.N, c.Counts, c.RecvCounts = 0, nil, nil
				for r := range s.size {
					c.Counts = append(c.Counts, exchanged(s.rank, r, n, c.shift))
					c.RecvCounts = append(c.RecvCounts, exchanged(r, s.rank, n, c.shift))
				}
			case kind == coll.SendRecv: // round a ring, of each rank another length
				prev := (s.rank + s.size - 1) % s.size
				c.N, c.Root, c.RecvN, c.From = n+s.rank, int32((s.rank+1)%s.size), n+prev, int32(prev)
			case shifts > 1:
				c.N, c.Counts = 0, uneven(s.size, n, c.shift)
			}
			ops := []elem.Op{elem.Sum}
			if traits.Reduces {
				ops = append(ops, elem.Prod+elem.Op(n+int(kind))%(elem.Ops-1))
			}
			for _, c.Op = range ops {
				if c.Op == elem.Avg && (kind == coll.Scan || kind == coll.ExScan) {
					continue
				}
				c.inPlace = false
				check[T](s, c)
				if traits.InPlace != coll.Apart {
					c.inPlace = true
					check[T](s, c)
				}
			}
		}
	}
	messages[T](s, n)
}

// uneven are the parts of ranks, some of which are empty.
func uneven(size, n, shift int) (counts []int) {
	for r := range size {
		counts = append(counts, []int{n, 0, 2*n + 1, n / 2}[(r+shift)%4])
	}
	return counts
}

// exchanged is how many elements one rank sends another in an AllToAllV.
func exchanged(from, to, n, shift int) int {
	return []int{0, 1, n, 2}[(from*2+to+shift)%4]
}

// guard is the elements before, between and behind the operands, which no call may touch.
const guard = 3

// check makes a call on memory whose whole content is known before and after it.
func check[T elem.Elem](s *side, c one) {
	s.t.Helper()
	traits := c.Kind.Traits()
	writes, reads := c.Extents(s.rank, s.size)
	if c.Kind == coll.ExScan {
		writes = c.N // of which rank 0 gets nothing, but has them
	}
	lo := before(&c.Call, s.rank)
	dst, src := guard, guard+writes+guard
	switch place := traits.InPlace; {
	case !c.inPlace:
	case place == coll.Same:
		src = dst
	case place == coll.PartOfDst && writes > 0:
		src = dst + lo
	case place == coll.PartOfSrc && reads > 0:
		src, dst = guard, guard+lo
	}
	all := commtest.Alloc[T](max(dst+writes, src+reads) + guard)
	copy(all.Data()[src:], commtest.Input[T](s.rank, reads))
	if c.Kind == coll.Broadcast && s.rank == int(c.Root) {
		copy(all.Data()[dst:], commtest.Input[T](s.rank, writes))
	}
	after := slices.Clone(all.Data())
	copy(after[dst:dst+writes], reference[T](s, &c))

	run(s, all, func(at func(i, n int) unsafe.Pointer) error {
		c.Dst, c.Src = at(dst, writes), at(src, reads)
		if c.inPlace && traits.InPlace == coll.Same {
			c.Dst = c.Src // also where this rank gets nothing
		}
		if lib := &s.by.Caps().Library; lib.Kinds.Has(c.Kind) && !(lib.Apart.Has(c.Kind) && c.inPlace) {
			return s.by.Do(s.q, c.Call)
		}
		if need := c.Scratch(s.rank, s.size, &s.by.Caps().Library); need > room {
			s.t.Fatalf("%v needs %d bytes beside its operands", &c.Call, need)
		}
		return transport.Make(s.by, s.q, &c.Call, s.rank, s.size, s.work, s.local)
	})
	all.Same(s.t, s, after, "%s: %v, counts %v, in place %v: memory", s.by.Name(), &c.Call, c.Counts, c.inPlace)
}

// before is how many elements lie before a rank's part.
func before(c *coll.Call, rank int) int {
	if len(c.Counts) > 0 {
		return coll.Sum(c.Counts[:rank])
	}
	return rank * c.N
}

// reference is what a call has a rank get.
func reference[T elem.Elem](s *side, c *one) (want []T) {
	n, lo, total := c.N, before(&c.Call, s.rank), s.size*c.N
	if len(c.Counts) > 0 {
		n, total = c.Counts[s.rank], coll.Sum(c.Counts)
	}
	switch c.Kind {
	case coll.AllReduce:
		return commtest.Reduced[T](s.size, n, c.Op)
	case coll.Reduce:
		if s.rank == int(c.Root) {
			return commtest.Reduced[T](s.size, n, c.Op)
		}
	case coll.Scan:
		return commtest.Reduced[T](s.rank+1, n, c.Op)
	case coll.ExScan:
		if s.rank > 0 {
			return commtest.Reduced[T](s.rank, n, c.Op)
		}
	case coll.ReduceScatter, coll.ReduceScatterV:
		return commtest.Reduced[T](s.size, total, c.Op)[lo : lo+n]
	case coll.Broadcast:
		return commtest.Input[T](int(c.Root), n)
	case coll.Scatter, coll.ScatterV:
		return commtest.Input[T](int(c.Root), total)[lo : lo+n]
	case coll.AllGather, coll.AllGatherV, coll.Gather, coll.GatherV:
		if c.Kind.Traits().Rooted && s.rank != int(c.Root) {
			return nil
		}
		for r := range s.size {
			if n = c.N; len(c.Counts) > 0 {
				n = c.Counts[r]
			}
			want = append(want, commtest.Input[T](r, n)...)
		}
	case coll.AllToAll:
		for r := range s.size {
			want = append(want, commtest.Input[T](r, total)[lo:lo+n]...)
		}
	case coll.AllToAllV:
		for r, n := range c.RecvCounts {
			lo := 0 // of what that rank sends, before what it sends this one
			for to := range s.rank {
				lo += exchanged(r, to, c.about, c.shift)
			}
			want = append(want, commtest.Input[T](r, lo+n)[lo:]...)
		}
	case coll.SendRecv:
		return commtest.Input[T](int(c.From), c.RecvN)
	}
	return want
}

// run makes calls on elements: where they are, or on the device, to which they go
// and from which they come back.
func run[T elem.Elem](s *side, m commtest.Memory[T], call func(at func(i, n int) unsafe.Pointer) error) {
	s.t.Helper()
	all := m.All
	base, size := unsafe.Pointer(&all[0]), elem.Of[T]().Size()
	bytes := len(all) * size
	if s.q != nil {
		if bytes > room {
			s.t.Fatalf("%d bytes of operands", bytes)
		}
		base = s.mem
		copy(unsafe.Slice((*T)(s.pinned), len(all)), all)
		commtest.Must(s.t, s.q.Stream().Copy(base, s.pinned, bytes))
	}
	commtest.Must(s.t, call(func(i, n int) unsafe.Pointer { return elem.At(base, commtest.Guards+i, n, elem.Of[T]()) }))
	if s.q != nil {
		commtest.Must(s.t, s.q.Stream().Copy(s.pinned, base, bytes))
		commtest.Must(s.t, s.q.Stream().Synchronize())
		copy(all, unsafe.Slice((*T)(s.pinned), len(all)))
	}
}

// local makes the steps of a call that concern this rank alone.
func (s *side) local(q transport.Issuer, c coll.Call) error {
	if c.Kind == coll.Copy {
		return q.Stream().Copy(c.Dst, c.Src, c.N*c.Type.Size())
	}
	size := c.Type.Size()
	if value := coll.Identity(c.Op, c.Type)[0]; size <= 4 {
		return q.Stream().Fill(c.Dst, size, value, c.N)
	} else {
		words := unsafe.Slice((*uint64)(unsafe.Add(s.pinned, room)), c.N)
		for i := range words {
			words[i] = value
		}
	}
	return q.Stream().Copy(c.Dst, unsafe.Add(s.pinned, room), c.N*size)
}

// messages sends from everyone to everyone, itself included, two messages to each in an order that
// would deadlock one by one, and where the transport merges, a collective among them. Then the
// first rank sends to the last, in order.
func messages[T elem.Elem](s *side, n int) {
	s.t.Helper()
	ty, lengths := elem.Of[T](), [2]int{n, n / 2}
	out := [2]int{0, n}                 // where the two messages begin
	in := [2]int{2 * n, 2*n + n*s.size} // where those that come begin
	sum := in[1] + n*s.size
	all := commtest.Alloc[T](sum + n)
	before := all.Data()
	for k, at := range out {
		copy(before[at:], commtest.Input[T](s.rank+9*k, lengths[k]))
	}
	copy(before[sum:], commtest.Input[T](s.rank, n))
	after := slices.Clone(before)
	for k, at := range in {
		for r := range s.size {
			copy(after[at+r*n:], commtest.Input[T](r+9*k, lengths[k]))
		}
	}
	caps := s.by.Caps()
	if caps.Merges {
		copy(after[sum:], commtest.Reduced[T](s.size, n, elem.Sum))
	}
	run(s, all, func(at func(i, n int) unsafe.Pointer) error {
		var calls []coll.Call
		for k, n := range lengths {
			for r := range s.size {
				calls = append(calls, coll.Call{Kind: coll.Send, Type: ty, Src: at(out[k], n), N: n, Root: int32(r)},
					coll.Call{Kind: coll.Recv, Type: ty, Dst: at(in[k]+r*lengths[0], n), N: n, Root: int32(r)})
			}
		}
		if caps.Merges && n > 0 {
			p := at(sum, n)
			calls = append(calls, coll.Call{Kind: coll.AllReduce, Type: ty, Dst: p, Src: p, N: n, Op: elem.Sum})
		}
		if need := s.by.Scratch(len(calls)); need > room {
			s.t.Fatalf("a group of %d needs %d bytes", len(calls), need)
		}
		return s.by.Group(s.q, calls, s.work)
	})
	all.Same(s.t, s, after, "%s: messages of %v: memory", s.by.Name(), lengths)

	if s.size == 1 || !caps.Kinds.Has(coll.Send) {
		return
	}
	pair := commtest.Filled[T](s.rank, n)
	want := pair.Data()
	if s.rank == s.size-1 {
		want = commtest.Input[T](0, n)
	}
	want = slices.Clone(want)
	run(s, pair, func(at func(i, n int) unsafe.Pointer) (err error) {
		p := at(0, n)
		switch s.rank {
		case 0:
			err = s.by.Do(s.q, coll.Call{Kind: coll.Send, Type: ty, Src: p, N: n, Root: int32(s.size - 1)})
		case s.size - 1:
			err = s.by.Do(s.q, coll.Call{Kind: coll.Recv, Type: ty, Dst: p, N: n})
		}
		return err
	})
	pair.Same(s.t, s, want, "%s: a message: memory", s.by.Name())
}
