package main

import (
	"fmt"

	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// splits are the choices of --split. The first is the default.
var splits = []string{"columns", "rows", "grid"}

// split is how W lies on a mesh of ranks. Each rank has the block of its rows and columns.
//
// All ranks of a column of the mesh need the same part of x, and each begins with a share of it.
// All ranks of a row of the mesh have parts of the same sums.
type split struct {
	rows, cols spmd.Shard // of W, on this rank
	most       int        // rows of the largest block
	x          spmd.Shard // this rank's share of the x of its columns
	shares     []int      // of all ranks of its column
	down       spmd.Comm  // the ranks of its column
	across     spmd.Comm  // those of its row
	wide       int        // how many these are
	mesh       string
}

// axes returns the axes of the mesh: one column of ranks, one row of them, or as even as possible.
func (c *config) axes(ranks int) ([]parallel.Axis, error) {
	axes := []parallel.Axis{{Name: "rows", Size: parallel.Fit}, {Name: "columns", Size: parallel.Fit}}
	switch c.Split {
	case "columns":
		axes[0].Size = 1
	case "rows":
		axes[1].Size = 1
	}
	return parallel.FitAxes(ranks, axes...)
}

// checkSplit refuses a W without a row for each rank.
func (c *config) checkSplit(ranks int) error {
	axes, err := c.axes(ranks)
	if err == nil && c.Rows > 0 && c.Rows < axes[0].Size {
		err = fmt.Errorf("--rows %d: fewer than the %d ranks that share them out", c.Rows, axes[0].Size)
	}
	return err
}

// newSplit divides W. Collective.
func newSplit(w *spmd.World, c config) (s split, err error) {
	axes, err := c.axes(w.Size())
	if err != nil {
		return s, err
	}
	layout, err := parallel.NewLayout(w, axes...)
	if err != nil {
		return s, err
	}
	high, wide := axes[0].Size, axes[1].Size
	row, column := layout.Coord("rows"), layout.Coord("columns")
	s.rows, s.cols = spmd.ShardOf(c.Rows, row, high), spmd.ShardOf(c.Cols, column, wide)
	s.most = spmd.ShardOf(c.Rows, 0, high).Len
	s.x = spmd.ShardOf(s.cols.Len, row, high)
	for r := range high {
		s.shares = append(s.shares, spmd.ShardOf(s.cols.Len, r, high).Len)
	}
	s.wide, s.mesh = wide, fmt.Sprintf("%dx%d", high, wide)
	s.down, s.across = w.Comm(), w.Comm()
	if high > 1 && wide > 1 { // else all ranks are one row, or one column
		m, err := parallel.NewMesh(w, axes...)
		if err != nil {
			return s, err
		}
		s.down, s.across = m.Comm("rows"), m.Comm("columns")
	}
	return s, nil
}

// gather enqueues that every rank of the column gets its whole x from the shares.
func gather[T number](s *spmd.Stream, sp split, x spmd.Buffer[T]) error {
	if len(sp.shares) == 1 {
		return nil
	}
	mine := x.Slice(sp.x.Off, sp.x.Off+sp.x.Len)
	if x.Len()%len(sp.shares) == 0 {
		return spmd.AllGather(sp.down.On(s), x, mine)
	}
	return spmd.AllGatherV(sp.down.On(s), x, mine, sp.shares)
}
