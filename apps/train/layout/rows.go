package layout

import (
	"fmt"

	"lockstep/internal/elem"
	"lockstep/spmd"
)

// Rows says how ranks that divide the products of a layer share the rows between the products, as
// in a normalisation and the residual stream: each rank computes only its rows there. GatherRows
// collects all rows for a product whose outputs the ranks divide. ScatterRows sums the ranks'
// results of a product whose inputs they divide, and leaves each rank its rows of the sum.
//
// Both take a piece of the rows at a time, so that one may be under way beside the product of
// another. Source: Korthikanti and others: Reducing Activation Recomputation in Large Transformer
// Models, sequence parallelism.
//
// The ranks have equally many rows of each piece, rank 0's rows first. Any number of rows will do.
// Rows beyond the last one are padding: they are in memory and go between the ranks, and nobody
// computes or reads them.
type Rows struct {
	n, pieces, part int
	rank, ranks     int
}

// NewRows returns how rank of ranks sees n rows in a number of pieces. It panics if one of the
// numbers is not above 0, or rank is none of the ranks.
func NewRows(n, pieces, rank, ranks int) Rows {
	parts, ok := elem.Product(pieces, ranks)
	if _, fits := elem.Total(n, parts); n <= 0 || pieces <= 0 || rank < 0 || rank >= ranks || !ok || !fits {
		panic(fmt.Sprintf("layout: %d rows in %d pieces for rank %d of %d", n, pieces, rank, ranks))
	}
	return Rows{n, pieces, (n + parts - 1) / parts, rank, ranks}
}

// All returns the number of rows in memory for the rows of all ranks, with padding.
func (r Rows) All() int { return r.ranks * r.Held() }

// Held returns the number of rows in memory for this rank's rows, with padding.
func (r Rows) Held() int { return r.pieces * r.part }

// Own returns the number of this rank's rows: the first ones of the memory for them.
func (r Rows) Own() int {
	n := 0
	for i := range r.pieces {
		n += min(max(0, r.n-(i*r.ranks+r.rank)*r.part), r.part)
	}
	return n
}

// Pieces returns how many pieces have rows.
func (r Rows) Pieces() int { return (r.n + r.ranks*r.part - 1) / (r.ranks * r.part) }

// Piece returns the rows [lo, hi) of a piece, of all rows.
func (r Rows) Piece(i int) (lo, hi int) {
	lo, hi = r.all(i, 1)
	return lo, min(hi, r.n)
}

// all returns the place of a piece in memory for all rows of width elements, own its place in
// memory for this rank's.
func (r Rows) all(i, width int) (lo, hi int) { return r.piece(i, r.ranks*r.part, width) }

func (r Rows) own(i, width int) (lo, hi int) { return r.piece(i, r.part, width) }

// piece returns the elements of piece i, of so many rows.
func (r Rows) piece(i, rows, width int) (lo, hi int) {
	n, ok := elem.Product(rows, width)
	if _, fits := elem.Product(r.pieces, n); i < 0 || i >= r.pieces || !ok || !fits {
		panic(fmt.Sprintf("layout: piece %d of %d, of rows of %d elements", i, r.pieces, width))
	}
	return i * n, (i + 1) * n
}

// GatherRows sets piece i of all(All,width) to the ranks' rows of it in own(Held,width). Collective
// over the ranks of c, which share the rows. As AllGather it blocks, or is in stream order, and own
// may be the rank's part of all.
func GatherRows[T spmd.Elem](c spmd.Comm, r Rows, i, width int, all, own spmd.Buffer[T]) error {
	return spmd.AllGather(c, all.Slice(r.all(i, width)), own.Slice(r.own(i, width)))
}

// ScatterRows sets piece i of own(Held,width) to this rank's rows of the sum over the ranks of
// piece i of all(All,width). Collective over the ranks of c, which share the rows. As ReduceScatter
// it blocks, or is in stream order, and own may be the rank's part of all.
func ScatterRows[T spmd.Elem](c spmd.Comm, r Rows, i, width int, own, all spmd.Buffer[T]) error {
	return spmd.ReduceScatter(c, own.Slice(r.own(i, width)), all.Slice(r.all(i, width)), spmd.Sum)
}
