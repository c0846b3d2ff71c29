package coll

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Call is one call of a communicator. It goes from hand to hand by value: a pointer that passes an
// interface would have it allocated.
type Call struct {
	Kind     Kind
	Type     elem.Type
	Op       elem.Op
	Root     int32 // or the other rank of a Send or Recv, or whom a SendRecv sends to
	From     int32 // whom a SendRecv receives from
	Dst, Src unsafe.Pointer
	N        int   // elements of a part
	RecvN    int   // elements that a SendRecv receives
	Counts   []int // of a V form, else empty: elements of each rank's part; of an AllToAllV those sent to each rank
	// RecvCounts are the elements that an AllToAllV receives from each rank.
	RecvCounts []int
}

// Hidden is c, unknown to the compiler. So a call that passes an interface stays on its caller's
// stack. The receiver must not keep it. The giver calls runtime.KeepAlive of c afterwards: the
// collector does not see c while it is hidden. Memory that the call points to is on the heap: other
// ranks and C read it, while this rank's stack may move.
func (c *Call) Hidden() *Call {
	ccall.Escape4(c.Dst, c.Src, unsafe.Pointer(unsafe.SliceData(c.Counts)),
		unsafe.Pointer(unsafe.SliceData(c.RecvCounts)))
	address := uintptr(unsafe.Pointer(c))
	return *(**Call)(unsafe.Pointer(&address))
}

// Share returns the number of rank r's elements.
func (c *Call) Share(r int) int {
	if c.Kind.Traits().Lengths == Equal {
		return c.N
	}
	return c.Counts[r]
}

// Offset returns the number of elements before rank r's.
func (c *Call) Offset(r int) int {
	if c.Kind.Traits().Lengths == Equal {
		return r * c.N
	}
	return Sum(c.Counts[:r])
}

// Sum adds up counts.
func Sum(counts []int) int {
	s := 0
	for _, n := range counts {
		s += n
	}
	return s
}

// Extents returns how many elements a rank writes at Dst and reads at Src. The root of a Broadcast
// reads what the others write.
func (c *Call) Extents(rank, size int) (dst, src int) {
	t := c.Kind.Traits()
	return c.extent(t.Dst, rank, size), c.extent(t.Src, rank, size)
}

func (c *Call) extent(s Side, rank, size int) int {
	switch {
	case s.AtRoot && rank != int(c.Root), s.Later && rank == 0:
		return 0
	case s.Extent == Part:
		return c.Share(rank)
	case s.Extent == Whole:
		return c.Offset(size)
	case s.Extent == Received && len(c.RecvCounts) > 0:
		return Sum(c.RecvCounts)
	case s.Extent == Received:
		return c.RecvN
	}
	return 0
}

// Bytes returns the size of a call as bandwidths count it: the larger of the two sides, on the rank
// with the largest.
func (c *Call) Bytes(size int) int64 {
	t := c.Kind.Traits()
	n := 0
	for _, s := range [...]Side{t.Dst, t.Src} {
		switch {
		case s.Extent == Whole:
			n = max(n, c.Offset(size))
		case s.Extent == Part && t.Lengths == Equal:
			n = max(n, c.N)
		case s.Extent == Received:
			n = max(n, c.RecvN, Sum(c.RecvCounts))
		}
	}
	return int64(n) * int64(c.Type.Size())
}

// InPlace reports whether Dst and Src lie as in the in-place form of the call.
func (c *Call) InPlace(rank int) bool {
	whole, part := c.Dst, c.Src
	switch c.Kind.Traits().InPlace {
	case Apart:
		return false
	case Same:
		return c.Dst == c.Src
	case PartOfSrc:
		whole, part = c.Src, c.Dst
	}
	return elem.IsAt(part, whole, c.Offset(rank), c.Type)
}

// at returns the address of n elements at p, from the i-th on; nil for no elements.
func (c *Call) at(p unsafe.Pointer, i, n int) unsafe.Pointer { return elem.At(p, i, n, c.Type) }

// Peers returns the ranks that a message goes to, and comes from; -1 if there is none.
func (c *Call) Peers() (to, from int) {
	switch c.Kind {
	case Send:
		return int(c.Root), -1
	case Recv:
		return -1, int(c.Root)
	case SendRecv:
		return int(c.Root), int(c.From)
	}
	return -1, -1
}

// Common returns the number of elements that all ranks bring alike. It is the sum of all for a V
// form, and 0 if each rank has its own number.
func (c *Call) Common() int {
	switch c.Kind.Traits().Lengths {
	case Shared:
		return Sum(c.Counts)
	case Own:
		return 0
	}
	return c.N
}

// String describes a call, without the places of its data.
func (c *Call) String() string {
	t := c.Kind.Traits()
	s := t.Name
	if !t.Moves() {
		return s
	}
	if t.Lengths == Equal {
		s += fmt.Sprintf(" of %d", c.N)
	} else {
		s += " of"
	}
	s += " " + c.Type.String()
	switch {
	case t.Reduces && t.Rooted:
		s += fmt.Sprintf(" (%v, root %d)", c.Op, c.Root)
	case t.Reduces:
		s += fmt.Sprintf(" (%v)", c.Op)
	case t.Rooted:
		s += fmt.Sprintf(" (root %d)", c.Root)
	case c.Kind == SendRecv:
		s += fmt.Sprintf(" to rank %d, and from rank %d", c.Root, c.From)
	case c.Kind == Send:
		s += fmt.Sprintf(" to rank %d", c.Root)
	case c.Kind == Recv:
		s += fmt.Sprintf(" from rank %d", c.Root)
	}
	return s
}

// What packs the kind, type, operation and root of a call, which all ranks have to call alike.
func (c *Call) What() uint64 {
	return uint64(c.Kind) | uint64(c.Type)<<8 | uint64(c.Op)<<16 | uint64(uint32(c.Root))<<32
}

// Alike returns a number that ranks have to bring alike: the elements of a part, or a hash of all
// counts; 0 if each rank has its own.
func (c *Call) Alike() int {
	if len(c.Counts) == 0 {
		return c.N
	}
	h := uint64(0)
	if c.Kind.Traits().Lengths == Shared {
		for _, k := range c.Counts {
			h = elem.MixBits(h + uint64(k) + 1) // counts that differ give another number, but for accidents
		}
	}
	return int(h)
}

// Differs returns the error of a call of this rank, where another has brought what and n: its What
// and Alike.
func (c *Call) Differs(rank, other int, what uint64, n int) error {
	its := Call{Kind: Kind(what), Type: elem.Type(what >> 8), Op: elem.Op(what >> 16), Root: int32(what >> 32), N: n}
	counts := ""
	if its.Kind.Traits().Lengths == Shared {
		counts = ", or other counts, which --check names"
	}
	return c.Failed(rank, fmt.Errorf("%w: rank %d brought %v%s", ccall.ErrMismatch, other, &its, counts))
}

// Failed returns the error of a call on this rank.
func (c *Call) Failed(rank int, err error) error {
	return &ccall.Error{Op: c.String(), Rank: rank, At: ccall.At(), Err: err}
}
