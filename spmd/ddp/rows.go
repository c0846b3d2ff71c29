package ddp

import (
	"fmt"

	"lockstep/spmd"
)

// Rows says how ranks that divide the products of a layer share the rows of what lies between the
// products, such as a normalisation and the residual stream: each computes that of its rows only.
// GatherRows then has all rows for a product whose outputs the ranks divide, and ScatterRows sums what
// one whose inputs they divide has left on each, which is to every rank its rows of the sum. Both take
// a piece of the rows at a time, so that one may be under way beside the product of another. (Korthikanti
// and others: Reducing Activation Recomputation in Large Transformer Models, sequence parallelism.)
//
// Of each piece the ranks have equally many rows, those of rank 0 first. Any number of rows will do: what
// lies beyond the last one is padding, which is in memory and goes between the ranks, and which nobody
// computes or reads.
type Rows struct {
	n, pieces, part int
	rank, ranks     int
}

// NewRows returns how rank of ranks sees n rows in a number of pieces. It panics where one of the numbers
// is not above 0, or rank is none of the ranks.
func NewRows(n, pieces, rank, ranks int) Rows {
	if n <= 0 || pieces <= 0 || rank < 0 || rank >= ranks {
		panic(fmt.Sprintf("ddp: %d rows in %d pieces for rank %d of %d", n, pieces, rank, ranks))
	}
	return Rows{n, pieces, (n + pieces*ranks - 1) / (pieces * ranks), rank, ranks}
}

// All returns how many rows memory for those of all ranks has, with padding.
func (r Rows) All() int { return r.ranks * r.Held() }

// Held returns how many rows memory for this rank's has, with padding.
func (r Rows) Held() int { return r.pieces * r.part }

// Own returns how many rows this rank has: the first ones of the memory for them.
func (r Rows) Own() int {
	n := 0
	for i := range r.pieces {
		n += min(max(0, r.n-(i*r.ranks+r.rank)*r.part), r.part)
	}
	return n
}

// Pieces returns how many pieces have rows.
func (r Rows) Pieces() int { return (r.n + r.ranks*r.part - 1) / (r.ranks * r.part) }

// Piece returns which of all rows are those of a piece: [lo, hi).
func (r Rows) Piece(i int) (lo, hi int) {
	lo = i * r.ranks * r.part
	return lo, min(lo+r.ranks*r.part, r.n)
}

// all is where a piece is in memory for all rows of width elements, own where in that for this rank's.
func (r Rows) all(i, width int) (lo, hi int) {
	n := r.ranks * r.part * width
	return i * n, (i + 1) * n
}

func (r Rows) own(i, width int) (lo, hi int) {
	n := r.part * width
	return i * n, (i + 1) * n
}

// GatherRows gives all(All,width) piece i of what the ranks have in own(Held,width). Collective over the
// ranks of c, which share the rows, and as AllGather blocking or in stream order.
func GatherRows[T spmd.Elem](c spmd.Comm, r Rows, i, width int, all, own spmd.Buffer[T]) error {
	return spmd.AllGather(c, all.Slice(r.all(i, width)), own.Slice(r.own(i, width)))
}

// ScatterRows gives own(Held,width) this rank's rows of the sum over the ranks of piece i of all(All,width).
// Collective over the ranks of c, which share the rows, and as ReduceScatter blocking or in stream order.
func ScatterRows[T spmd.Elem](c spmd.Comm, r Rows, i, width int, own, all spmd.Buffer[T]) error {
	return spmd.ReduceScatter(c, own.Slice(r.own(i, width)), all.Slice(r.all(i, width)), spmd.Sum)
}
