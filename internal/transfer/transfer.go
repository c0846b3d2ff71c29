// Package transfer is a collective on device memory as pieces and steps: what all ways of carrying one out have in common,
// in packages cudampi, shm and peer.
package transfer

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// Sizes are where the ways of carrying change, in bytes. All ranks have the same. Only tests change them.
var Sizes = struct {
	Chunk      int // of a step through memory that ranks share
	Relay      int // of a step through MPI on the host
	Message    int // of a chunk of a message through MPI on the host
	Small      int // of an all-reduce that every rank does for itself
	Direct     int // the least that an MPI that takes device addresses is given: below, copies are faster
	DirectRoom int // of scratch memory for that
	Rings      int // the most memory of a rank for rings of messages
}{2 << 20, 4 << 20, 1 << 20, 16 << 10, 128 << 10, 32 << 20, 64 << 20}

// Kind is what a transfer does, as the methods of cudampi.Comm do it.
type Kind uint8

// The kinds.
const (
	AllReduce Kind = iota
	Reduce
	Broadcast
	AllGather
	Gather
	ReduceScatter
	AllToAll
	Scatter
)

var names = [...]string{"AllReduce", "Reduce", "Broadcast", "AllGather", "Gather", "ReduceScatter", "AllToAll", "Scatter"}

// String returns the name, such as "AllReduce".
func (k Kind) String() string { return names[k] }

// Transfer is a collective as all ways of carrying it out see it. Each rank puts out pieces of its Src: one for all ranks, or
// one for each. It takes pieces of others in, into its Dst, as they are or reduced. This goes on in steps. A step moves at most
// Window elements of every part.
type Transfer struct {
	What       Kind
	Dst, Src   unsafe.Pointer
	Send, Recv Parts // what each rank gets of Src, or puts into Dst
	N          int   // elements of the longest part of any rank
	Type       elem.Type
	Op         elem.Op
	Root       int
	Rank, Size int
	Window     int        // elements of a part that a step moves; see Cut
	pieces     [2][]Piece // memory for Out and In
}

// Piece is a run of elements on the device.
type Piece struct {
	At   unsafe.Pointer
	N    int
	Peer int // whom it goes to or comes from
	Slot int // its number among the pieces that the sender puts out
}

// IsReduction says whether what comes in is reduced.
func (x *Transfer) IsReduction() bool {
	return x.What == AllReduce || x.What == Reduce || x.What == ReduceScatter
}

// IsSplit says whether every rank gets a piece of its own from a sender.
func (x *Transfer) IsSplit() bool {
	return x.What == ReduceScatter || x.What == AllToAll || x.What == Scatter
}

// IsRooted says whether the root does something else than the others.
func (x *Transfer) IsRooted() bool {
	return x.What == Reduce || x.What == Broadcast || x.What == Gather || x.What == Scatter
}

// Sends and Receives say whether a rank puts out anything, and takes anything in.
func (x *Transfer) Sends(rank int) bool {
	return rank == x.Root || x.What != Broadcast && x.What != Scatter
}
func (x *Transfer) Receives(rank int) bool {
	return rank == x.Root && x.What != Broadcast || rank != x.Root && x.What != Reduce && x.What != Gather || !x.IsRooted()
}

// Cut sets the window so that the pieces that a rank puts out in a step, and what it gathers where wide, fit bytes.
func (x *Transfer) Cut(bytes int, wide bool) {
	each := bytes / x.Type.Size()
	if x.IsSplit() || wide && (x.What == AllGather || x.What == Gather) {
		each /= x.Size
	}
	if line := 256 / x.Type.Size(); each > line {
		each -= each % line // so that pieces begin where accesses are fast
	}
	x.Window = max(each, 1)
}

// Steps is how many steps there are.
func (x *Transfer) Steps() int { return (x.N + x.Window - 1) / x.Window }

// Span is the elements of a part of n elements that belong to step k.
func (x *Transfer) Span(k, n int) (lo, m int) {
	lo = min(k*x.Window, n)
	return lo, min(n-lo, x.Window)
}

// Out returns what this rank puts out in step k, empty pieces included.
func (x *Transfer) Out(k int) []Piece {
	list := x.pieces[0][:0]
	switch {
	case !x.Sends(x.Rank):
	case x.IsSplit():
		off := 0
		for r := range x.Size {
			lo, m := x.Span(k, x.Send.Len(r))
			list = append(list, Piece{elem.At(x.Src, off+lo, m, x.Type), m, r, r})
			off += x.Send.Len(r)
		}
	case x.What == AllGather || x.What == Gather:
		lo, m := x.Span(k, x.Recv.Len(x.Rank))
		list = append(list, Piece{elem.At(x.Src, lo, m, x.Type), m, x.Rank, 0})
	default:
		lo, m := x.Span(k, x.N)
		list = append(list, Piece{elem.At(x.Src, lo, m, x.Type), m, x.Rank, 0})
	}
	x.pieces[0] = list
	return list
}

// In returns what this rank takes in in step k, empty pieces and its own included. For a reduction it is one piece, which
// comes from all ranks.
func (x *Transfer) In(k int) []Piece {
	list := x.pieces[1][:0]
	switch {
	case !x.Receives(x.Rank):
	case x.IsReduction():
		n, slot := x.N, 0
		if x.IsSplit() {
			n, slot = x.Send.Len(x.Rank), x.Rank
		}
		lo, m := x.Span(k, n)
		list = append(list, Piece{elem.At(x.Dst, lo, m, x.Type), m, x.Rank, slot})
	case x.What == Broadcast:
		lo, m := x.Span(k, x.N)
		list = append(list, Piece{elem.At(x.Dst, lo, m, x.Type), m, x.Root, 0})
	case x.What == Scatter:
		lo, m := x.Span(k, x.Send.Len(x.Rank))
		list = append(list, Piece{elem.At(x.Dst, lo, m, x.Type), m, x.Root, x.Rank})
	default:
		off, slot := 0, 0
		if x.What == AllToAll {
			slot = x.Rank
		}
		for r := range x.Size {
			lo, m := x.Span(k, x.Recv.Len(r))
			list = append(list, Piece{elem.At(x.Dst, off+lo, m, x.Type), m, r, slot})
			off += x.Recv.Len(r)
		}
	}
	x.pieces[1] = list
	return list
}

// Stays says whether a piece that this rank puts out is for itself alone.
func (x *Transfer) Stays(p Piece) bool {
	return p.Slot == x.Rank && (x.What == AllToAll || x.What == Scatter)
}

// Own returns where the part lies that this rank sends to itself, and where it goes; n is 0 where there is none.
func (x *Transfer) Own() (dst, src unsafe.Pointer, n int) {
	me := x.Rank
	switch {
	case x.IsReduction() || x.What == Broadcast || !x.Sends(me) || !x.Receives(me):
		return nil, nil, 0
	case x.What == Scatter:
		return x.Dst, elem.At(x.Src, x.Send.Offset(me), x.Send.Len(me), x.Type), x.Send.Len(me)
	case x.What == AllToAll:
		return elem.At(x.Dst, x.Recv.Offset(me), x.Recv.Len(me), x.Type), elem.At(x.Src, x.Send.Offset(me), x.Recv.Len(me), x.Type), x.Recv.Len(me)
	default:
		return elem.At(x.Dst, x.Recv.Offset(me), x.Recv.Len(me), x.Type), x.Src, x.Recv.Len(me)
	}
}

// Keep copies what this rank sends to itself; of one rank that is all.
func (x *Transfer) Keep(s *cuda.Stream) error {
	dst, src, n := x.Own()
	if x.Size == 1 && x.IsReduction() {
		dst, src, n = x.Dst, x.Src, x.N
	}
	if n == 0 || dst == src {
		return nil
	}
	return s.Copy(dst, src, n*x.Type.Size())
}

// Parts are the pieces of a buffer that belong to the ranks, packed in rank order: Each elements, or Counts[r] of rank r.
type Parts struct {
	Each   int
	Counts []int // nil when all are equal
}

// Len is the elements of the part of rank r.
func (p Parts) Len(r int) int {
	if p.Counts == nil {
		return p.Each
	}
	return p.Counts[r]
}

// Offset is where the part of rank r begins; of Size() it is all elements.
func (p Parts) Offset(r int) int {
	if p.Counts == nil {
		return r * p.Each
	}
	sum := 0
	for _, n := range p.Counts[:r] {
		sum += n
	}
	return sum
}

// Longest is the elements of the longest part of p.
func (p Parts) Longest() int {
	n := p.Each
	for _, c := range p.Counts {
		n = max(n, c)
	}
	return n
}
