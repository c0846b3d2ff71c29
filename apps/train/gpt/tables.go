package gpt

import (
	"unsafe"

	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

// Few rows of a table's gradient are not 0: as many as a micro-batch has different tokens. So ranks
// with one micro-batch of the same size each give each other the gradients of the rows that they
// have looked up. Each adds all of them up in the order of the ranks, for the same bits on all.

// RowsFit reports whether rows move less than half of the bytes of sums of whole tables, for so
// many rows of each rank, and whether there is memory for them.
func (m *Model[A]) RowsFit(rows, ranks int) bool {
	var x A
	list := ops.SortedLen(rows, m.Cfg.Vocab)
	return ranks*list <= m.lists.Len() && ranks*rows*m.Cfg.Channels <= m.scratch.Len() &&
		ranks*rows*int(unsafe.Sizeof(x)) <= 4*m.Cfg.PaddedVocab()
}

// tablesGrad enqueues the gradients of the rows that were looked up: in tables, and in the first
// residual stream.
func (e *enqueue[A]) tablesGrad(sorted spmd.Buffer[int32]) {
	m, ranks, lists := e.m, 1, sorted
	if m.RowsOf != nil && e.Err == nil {
		ranks = m.RowsOf.Size()
		lists = m.lists.Slice(0, ranks*sorted.Len())
		e.Err = spmd.AllGather(m.RowsOf.On(e.S), lists, sorted)
	}
	e.rowsGrad(m.par.WTE.DW, m.dres, lists, ranks)
	for i, x := range m.par.tables {
		e.rowsGrad(x.DW, m.drows[i], lists, ranks)
	}
}

// rowsGrad enqueues dw (+)= the gradient drows(N,C) of the rows that so many ranks have looked up.
func (e *enqueue[A]) rowsGrad(dw spmd.Buffer[float32], drows spmd.Buffer[A], lists spmd.Buffer[int32], ranks int) {
	e.zero(dw)
	n, list := e.N*e.m.Cfg.Channels, lists.Len()/ranks
	if ranks > 1 && e.Err == nil { // nobody reads scratch any more
		all := e.m.scratch.Slice(0, ranks*n)
		e.Err = spmd.AllGather(e.m.RowsOf.On(e.S), all, drows.Slice(0, n))
		drows = all
	}
	for r := range ranks {
		e.EncoderBackward(dw, spmd.Buffer[float32]{}, drows.Slice(r*n, (r+1)*n), lists.Slice(r*list, (r+1)*list))
	}
}
