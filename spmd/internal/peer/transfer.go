package peer

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/elem"
)

// Pattern says what a transfer does, by the names of cudampi.Comm's methods.
type Pattern uint8

// The kinds.
const (
	AllReduce Pattern = iota
	Reduce
	Broadcast
	AllGather
	Gather
	ReduceScatter
	AllToAll
	Scatter
)

// Transfer is a collective. Each rank puts out pieces of its Src: one for all ranks, or one for
// each. It takes pieces of others in, into its Dst, as they are or reduced. This goes on in steps.
// A step moves at most window elements of every part.
type Transfer struct {
	What       Pattern
	Dst, Src   unsafe.Pointer
	Send, Recv cudampi.Parts // what each rank gets of Src, or puts into Dst
	N          int           // elements of the longest part of any rank
	Type       elem.Type
	Op         elem.Op
	Root       int

	rank, size int
	window     int        // elements of a part that a step moves; see cut
	pieces     [2][]piece // memory for out and in
}

// piece is a run of elements on the device.
type piece struct {
	At   unsafe.Pointer
	N    int
	Peer int // whom it goes to or comes from
	Slot int // its number among the pieces that the sender puts out
}

// isReduction reports whether what comes in is reduced.
func (x *Transfer) isReduction() bool {
	return x.What == AllReduce || x.What == Reduce || x.What == ReduceScatter
}

// isSplit reports whether every rank gets a piece of its own from a sender.
func (x *Transfer) isSplit() bool {
	return x.What == ReduceScatter || x.What == AllToAll || x.What == Scatter
}

// isRooted reports whether the root does something else than the others.
func (x *Transfer) isRooted() bool {
	return x.What == Reduce || x.What == Broadcast || x.What == Gather || x.What == Scatter
}

// sends and receives say whether a rank puts out anything, and takes anything in.
func (x *Transfer) sends(rank int) bool {
	return rank == x.Root || x.What != Broadcast && x.What != Scatter
}
func (x *Transfer) receives(rank int) bool {
	return rank == x.Root && x.What != Broadcast || rank != x.Root && x.What != Reduce && x.What != Gather ||
		!x.isRooted()
}

// cut sets the window so that the pieces that a rank puts out in a step fit bytes.
func (x *Transfer) cut(bytes int) {
	each := bytes / x.Type.Size()
	if x.isSplit() {
		each /= x.size
	}
	if line := 256 / x.Type.Size(); each > line {
		each -= each % line // so that pieces begin where accesses are fast
	}
	x.window = max(each, 1)
}

// steps returns how many steps there are.
func (x *Transfer) steps() int { return (x.N + x.window - 1) / x.window }

// span returns the elements of a part of n elements that belong to step k.
func (x *Transfer) span(k, n int) (lo, m int) {
	lo = min(k*x.window, n)
	return lo, min(n-lo, x.window)
}

// out returns what this rank puts out in step k, empty pieces included.
func (x *Transfer) out(k int) []piece {
	list := x.pieces[0][:0]
	switch {
	case !x.sends(x.rank):
	case x.isSplit():
		off := 0
		for r := range x.size {
			lo, m := x.span(k, x.Send.Len(r))
			list = append(list, piece{elem.At(x.Src, off+lo, m, x.Type), m, r, r})
			off += x.Send.Len(r)
		}
	case x.What == AllGather || x.What == Gather:
		lo, m := x.span(k, x.Recv.Len(x.rank))
		list = append(list, piece{elem.At(x.Src, lo, m, x.Type), m, x.rank, 0})
	default:
		lo, m := x.span(k, x.N)
		list = append(list, piece{elem.At(x.Src, lo, m, x.Type), m, x.rank, 0})
	}
	x.pieces[0] = list
	return list
}

// in returns what this rank takes in in step k, empty pieces and its own included. For a reduction
// it is one piece, which comes from all ranks.
func (x *Transfer) in(k int) []piece {
	list := x.pieces[1][:0]
	switch {
	case !x.receives(x.rank):
	case x.isReduction():
		n, slot := x.N, 0
		if x.isSplit() {
			n, slot = x.Send.Len(x.rank), x.rank
		}
		lo, m := x.span(k, n)
		list = append(list, piece{elem.At(x.Dst, lo, m, x.Type), m, x.rank, slot})
	case x.What == Broadcast:
		lo, m := x.span(k, x.N)
		list = append(list, piece{elem.At(x.Dst, lo, m, x.Type), m, x.Root, 0})
	case x.What == Scatter:
		lo, m := x.span(k, x.Send.Len(x.rank))
		list = append(list, piece{elem.At(x.Dst, lo, m, x.Type), m, x.Root, x.rank})
	default:
		off, slot := 0, 0
		if x.What == AllToAll {
			slot = x.rank
		}
		for r := range x.size {
			lo, m := x.span(k, x.Recv.Len(r))
			list = append(list, piece{elem.At(x.Dst, off+lo, m, x.Type), m, r, slot})
			off += x.Recv.Len(r)
		}
	}
	x.pieces[1] = list
	return list
}

// own returns where the part lies that this rank sends to itself, and where it goes; n is 0 if
// there is none.
func (x *Transfer) own() (dst, src unsafe.Pointer, n int) {
	me := x.rank
	switch {
	case x.isReduction() || x.What == Broadcast || !x.sends(me) || !x.receives(me):
		return nil, nil, 0
	case x.What == Scatter:
		return x.Dst, elem.At(x.Src, x.Send.Offset(me), x.Send.Len(me), x.Type), x.Send.Len(me)
	case x.What == AllToAll:
		return elem.At(x.Dst, x.Recv.Offset(me), x.Recv.Len(me), x.Type),
			elem.At(x.Src, x.Send.Offset(me), x.Recv.Len(me), x.Type), x.Recv.Len(me)
	default:
		return elem.At(x.Dst, x.Recv.Offset(me), x.Recv.Len(me), x.Type), x.Src, x.Recv.Len(me)
	}
}

// keep copies this rank's part for itself; with one rank that is all.
func (x *Transfer) keep(s *cuda.Stream) error {
	dst, src, n := x.own()
	if x.size == 1 && x.isReduction() {
		dst, src, n = x.Dst, x.Src, x.N
	}
	if n == 0 || dst == src {
		return nil
	}
	return s.Copy(dst, src, n*x.Type.Size())
}
