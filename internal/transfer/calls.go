package transfer

import (
	"unsafe"

	"lockstep/internal/elem"
)

// Comm is what knows the ranks and refuses what cannot go on. *cudampi.Comm is one.
type Comm interface {
	Rank() int
	Size() int
	Ready(op string, n int, t elem.Type, dst, src unsafe.Pointer) error
	CheckOp(name string, op elem.Op, t elem.Type) error
	CheckRoot(op string, root int) error
	CheckCounts(op string, counts []int) error
}

// Whole makes x a collective whose parts are not those of ranks.
func (x *Transfer) Whole(c Comm, what Kind, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	*x = Transfer{What: what, Dst: dst, Src: src, N: n, Type: t, Op: op, Root: root, Rank: c.Rank(), Size: c.Size(), pieces: x.pieces}
	if what != AllReduce && c.Rank() != root {
		dst = src
	}
	return x.check(c, dst, src, n)
}

func (x *Transfer) check(c Comm, dst, src unsafe.Pointer, n int) error {
	name := x.What.String()
	err := c.Ready(name, n, x.Type, dst, src)
	if err == nil && x.IsReduction() {
		err = c.CheckOp(name, x.Op, x.Type)
	}
	if err == nil && x.IsRooted() {
		err = c.CheckRoot(name, x.Root)
	}
	return err
}

// InParts makes x a collective of parts. A rank that sends, or receives, has memory for all of send or its part, and
// the reverse.
func (x *Transfer) InParts(c Comm, what Kind, dst, src unsafe.Pointer, send, recv Parts, t elem.Type, op elem.Op, root int) error {
	name := what.String()
	*x = Transfer{What: what, Dst: dst, Src: src, Send: send, Recv: recv, Type: t, Op: op, Root: root, Rank: c.Rank(), Size: c.Size(), pieces: x.pieces}
	for _, p := range [...]Parts{send, recv} {
		if p.Counts != nil {
			if err := c.CheckCounts(name, p.Counts); err != nil {
				return err
			}
		}
	}
	if err := x.check(c, src, src, 0); err != nil {
		return err
	}
	sent, received := recv.Len(c.Rank()), send.Len(c.Rank())
	if x.IsSplit() {
		sent = send.Offset(c.Size())
	}
	if !x.IsSplit() || what == AllToAll {
		received = recv.Offset(c.Size())
	}
	if !x.Sends(c.Rank()) {
		sent = 0
	}
	if !x.Receives(c.Rank()) {
		received = 0
	}
	x.N = max(send.Longest(), recv.Longest())
	if err := c.Ready(name, received, t, dst, dst); err != nil {
		return err
	}
	return c.Ready(name, sent, t, src, src)
}
