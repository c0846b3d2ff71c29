package cudampi

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// collective is what a transfer does, as the methods of Comm do it.
type collective uint8

const (
	allReduce collective = iota
	reduce
	broadcast
	allGather
	gather
	reduceScatter
	allToAll
	scatter
)

var collectiveNames = [...]string{"AllReduce", "Reduce", "Broadcast", "AllGather", "Gather", "ReduceScatter", "AllToAll", "Scatter"}

// transfer is a collective as all ways of carrying it out see it: each rank puts out pieces of its src, one for all or
// one for each rank, and takes in pieces of others into its dst, as they are or reduced. It goes on in steps, each of
// which moves at most window elements of every part.
type transfer struct {
	what       collective
	dst, src   unsafe.Pointer
	send, recv parts // what each rank gets of src, or puts into dst
	n          int   // elements of the longest part of any rank
	t          elem.Type
	op         elem.Op
	root       int
	rank, size int
	window     int
	pieces     [2][]piece // memory for out and in
}

// piece is a run of elements on the device.
type piece struct {
	at   unsafe.Pointer
	n    int
	peer int // whom it goes to or comes from
	slot int // its number among the pieces that the sender puts out
}

func (x *transfer) isReduction() bool {
	return x.what == allReduce || x.what == reduce || x.what == reduceScatter
}

// isSplit says whether every rank gets a piece of its own from a sender.
func (x *transfer) isSplit() bool {
	return x.what == reduceScatter || x.what == allToAll || x.what == scatter
}

// isRooted says whether the root does something else than the others.
func (x *transfer) isRooted() bool {
	return x.what == reduce || x.what == broadcast || x.what == gather || x.what == scatter
}

// sends and receives say whether a rank puts out anything, and takes anything in.
func (x *transfer) sends(rank int) bool {
	return rank == x.root || x.what != broadcast && x.what != scatter
}
func (x *transfer) receives(rank int) bool {
	return rank == x.root && x.what != broadcast || rank != x.root && x.what != reduce && x.what != gather || !x.isRooted()
}

// cut sets the window so that the pieces that a rank puts out in a step, and what it gathers where wide, fit bytes.
func (x *transfer) cut(bytes int, wide bool) {
	each := bytes / x.t.Size()
	if x.isSplit() || wide && (x.what == allGather || x.what == gather) {
		each /= x.size
	}
	if line := 256 / x.t.Size(); each > line {
		each -= each % line // so that pieces begin where accesses are fast
	}
	x.window = max(each, 1)
}

func (x *transfer) steps() int { return (x.n + x.window - 1) / x.window }

// span is the elements of a part of n elements that belong to step k.
func (x *transfer) span(k, n int) (lo, m int) {
	lo = min(k*x.window, n)
	return lo, min(n-lo, x.window)
}

// out returns what this rank puts out in step k, empty pieces included.
func (x *transfer) out(k int) []piece {
	list := x.pieces[0][:0]
	switch {
	case !x.sends(x.rank):
	case x.isSplit():
		off := 0
		for r := range x.size {
			lo, m := x.span(k, x.send.len(r))
			list = append(list, piece{at(x.src, off+lo, x.t), m, r, r})
			off += x.send.len(r)
		}
	case x.what == allGather || x.what == gather:
		lo, m := x.span(k, x.recv.len(x.rank))
		list = append(list, piece{at(x.src, lo, x.t), m, x.rank, 0})
	default:
		lo, m := x.span(k, x.n)
		list = append(list, piece{at(x.src, lo, x.t), m, x.rank, 0})
	}
	x.pieces[0] = list
	return list
}

// in returns what this rank takes in in step k, empty pieces and its own included. For a reduction it is one piece, which
// comes from all ranks.
func (x *transfer) in(k int) []piece {
	list := x.pieces[1][:0]
	switch {
	case !x.receives(x.rank):
	case x.isReduction():
		n, slot := x.n, 0
		if x.isSplit() {
			n, slot = x.send.len(x.rank), x.rank
		}
		lo, m := x.span(k, n)
		list = append(list, piece{at(x.dst, lo, x.t), m, x.rank, slot})
	case x.what == broadcast:
		lo, m := x.span(k, x.n)
		list = append(list, piece{at(x.dst, lo, x.t), m, x.root, 0})
	case x.what == scatter:
		lo, m := x.span(k, x.send.len(x.rank))
		list = append(list, piece{at(x.dst, lo, x.t), m, x.root, x.rank})
	default:
		off, slot := 0, 0
		if x.what == allToAll {
			slot = x.rank
		}
		for r := range x.size {
			lo, m := x.span(k, x.recv.len(r))
			list = append(list, piece{at(x.dst, off+lo, x.t), m, r, slot})
			off += x.recv.len(r)
		}
	}
	x.pieces[1] = list
	return list
}

// stays says whether a piece that this rank puts out is for itself alone.
func (x *transfer) stays(p piece) bool {
	return p.slot == x.rank && (x.what == allToAll || x.what == scatter)
}

// own returns where the part lies that this rank sends to itself, and where it goes; n is 0 where there is none.
func (x *transfer) own() (dst, src unsafe.Pointer, n int) {
	me := x.rank
	switch {
	case x.isReduction() || x.what == broadcast || !x.sends(me) || !x.receives(me):
		return nil, nil, 0
	case x.what == scatter:
		return x.dst, at(x.src, x.send.offset(me), x.t), x.send.len(me)
	case x.what == allToAll:
		return at(x.dst, x.recv.offset(me), x.t), at(x.src, x.send.offset(me), x.t), x.recv.len(me)
	default:
		return at(x.dst, x.recv.offset(me), x.t), x.src, x.recv.len(me)
	}
}

// keep copies what this rank sends to itself; of one rank that is all.
func (x *transfer) keep(s *cuda.Stream) error {
	dst, src, n := x.own()
	if x.size == 1 && x.isReduction() {
		dst, src, n = x.dst, x.src, x.n
	}
	if n == 0 || dst == src {
		return nil
	}
	return s.Copy(dst, src, n*x.t.Size())
}

// smallCall is a collective as the kernels of small ones see it (peers.cu).
type smallCall struct {
	dst, src                unsafe.Pointer
	dstStep, srcStep, bytes int
	t                       elem.Type
	op                      elem.Op
	reduces                 bool
	to, from                uint64
}

// small says what the ranks send each other; not ok where parts are of different lengths.
func (x *transfer) small() (m smallCall, ok bool) {
	size := x.t.Size()
	m = smallCall{dst: x.dst, src: x.src, bytes: x.n * size, t: x.t, op: x.op, reduces: x.isReduction(), to: allRanks, from: allRanks}
	if x.isSplit() {
		m.srcStep = m.bytes
	}
	switch x.what {
	case allGather, gather, allToAll:
		m.dstStep = m.bytes
	case broadcast, scatter:
		m.from = uint64(x.root)
	}
	if x.what == reduce || x.what == gather {
		m.to = uint64(x.root)
	}
	return m, x.send.counts == nil && x.recv.counts == nil
}

// longest is the elements of the longest part of p.
func (p parts) longest() int {
	n := p.each
	for _, c := range p.counts {
		n = max(n, c)
	}
	return n
}
