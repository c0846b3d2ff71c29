package main

import (
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// heat is the heat equation on this rank's part of the grid.
type heat[T number] struct {
	w       *spmd.World
	dims    int
	size    [3]int        // of the whole grid
	part    [3]spmd.Shard // this rank's
	mesh    *parallel.Layout
	axes    []parallel.Axis // of the mesh
	overlap bool

	*launcher[T]
	fields         [2]spmd.Buffer[T] // the last step's values, and the next one's, in turn
	sent, received spmd.Buffer[T]    // the faces of axes 1 and 2
	main, comm     *spmd.Stream
}

// axisNames are the names of the axes of a grid of 2 or 3 dimensions.
var axisNames = [3]string{"z", "y", "x"}

// axesOf returns the axes of the mesh in the order of the grid's. In two dimensions there is no
// axis of planes.
func axesOf(dims int) []int {
	if dims == 2 {
		return []int{planes, columns}
	}
	return []int{planes, rows, columns}
}

// newHeat allocates the memory, which holds zeros. Collective.
func newHeat[T number](w *spmd.World, c config) (*heat[T], error) {
	h := &heat[T]{w: w, dims: len(c.Size), size: [3]int{1, 1, 1}, overlap: c.Overlap}
	axes, err := c.axes(w.Size())
	if err != nil {
		return nil, err
	}
	if h.mesh, err = parallel.NewLayout(w, axes...); err != nil {
		return nil, err
	}
	h.axes = axes
	h.part[rows] = spmd.Shard{Len: 1}
	var n [3]int
	var behind [6]bool
	for i, axis := range axesOf(h.dims) {
		h.size[axis] = c.Size[i]
		h.part[axis] = spmd.ShardOf(c.Size[i], h.mesh.Coord(axes[i].Name), axes[i].Size)
		before, after := h.mesh.Shift(axes[i].Name, 1)
		behind[2*axis], behind[2*axis+1] = before != spmd.None, after != spmd.None
	}
	for axis := range n {
		n[axis] = h.part[axis].Len
	}
	h.launcher = newLauncher[T](w, newBox(h.dims, n, sizeOf[T](), behind))
	for i := range h.fields {
		if h.fields[i], err = spmd.Alloc[T](w, h.box.elements()); err != nil {
			return nil, err
		}
	}
	for _, b := range []*spmd.Buffer[T]{&h.sent, &h.received} {
		if *b, err = spmd.Alloc[T](w, h.box.packed(sizeOf[T]())); err != nil {
			return nil, err
		}
	}
	for _, b := range []spmd.Buffer[T]{h.fields[0], h.fields[1], h.sent, h.received} {
		if err := b.SetAll(0); err != nil {
			return nil, err
		}
	}
	if h.main, err = w.NewStream("stencil"); err != nil {
		return nil, err
	}
	// its kernels go first, and the inside takes the rest of the GPU
	h.comm, err = w.NewStream("halos", spmd.High)
	return h, err
}

// side returns what goes to the neighbour behind a side, and where that neighbour's message goes.
func (h *heat[T]) side(f spmd.Buffer[T], side int) (edge, halo spmd.Buffer[T]) {
	b := &h.box
	switch {
	case b.Face[side] < 0:
		return edge, halo
	case side == 0:
		return planeOf(b, f, 0), planeOf(b, f, -1)
	case side == 1:
		return planeOf(b, f, int(b.N[planes])-1), planeOf(b, f, int(b.N[planes]))
	}
	at := int(b.Face[side])
	return h.sent.Slice(at, at+b.cells(side)), h.received.Slice(at, at+b.cells(side))
}

// exchange enqueues, in one group, the exchange of the faces of f with the neighbours.
//
// Two ranks may be each other's neighbours on both sides, and a rank its own. Messages between two
// ranks arrive in the order sent, so the message that goes down is received from above first.
func (h *heat[T]) exchange(s *spmd.Stream, f spmd.Buffer[T]) error {
	c := h.w.Comm().On(s)
	return c.Group(func() error {
		for i, axis := range axesOf(h.dims) {
			before, after := h.mesh.Shift(h.axes[i].Name, 1)
			low, fromLow := h.side(f, 2*axis)
			high, fromHigh := h.side(f, 2*axis+1)
			if err := spmd.SendRecv(c, fromHigh, after, low, before); err != nil {
				return err
			}
			if err := spmd.SendRecv(c, fromLow, before, high, after); err != nil {
				return err
			}
		}
		return nil
	})
}

// begin sends the faces of the first field to the neighbours. Collective, blocking.
func (h *heat[T]) begin() error {
	if err := h.pack(h.main, h.fields[0], h.sent, h.received); err != nil {
		return err
	}
	if err := h.exchange(h.main, h.fields[0]); err != nil {
		return err
	}
	return h.main.Synchronize()
}

// advance enqueues an even number of steps: the values are in the first field before and after. The
// faces come first, and travel while the inside is computed.
func (h *heat[T]) advance(steps int) error {
	in, out := h.fields[0], h.fields[1]
	for range steps {
		if err := h.frame(h.main, out, in, h.sent, h.received); err != nil {
			return err
		}
		s := h.main
		if h.overlap {
			s = h.comm
			if err := s.After(h.main); err != nil {
				return err
			}
		}
		if err := h.exchange(s, out); err != nil {
			return err
		}
		if err := h.step(h.main, out, in); err != nil {
			return err
		}
		if err := h.main.After(s); err != nil {
			return err
		}
		in, out = out, in
	}
	return nil
}

// visit calls fn with the values of the rank's cells, some whole planes after another, from plane z
// on. They lie as in the field: at returns the place of a cell of plane z + k.
func (h *heat[T]) visit(fn func(z, count int, values []T, at func(k, y int) int) error) error {
	return h.chunks(func(z, count int, chunk spmd.Buffer[T], values []T, at func(k, y int) int) error {
		if err := chunk.CopyTo(values); err != nil {
			return err
		}
		return fn(z, count, values, at)
	})
}

// fill sets the rank's cells in the first field by fn, plane after plane.
func (h *heat[T]) fill(fn func(z, count int, values []T, at func(k, y int) int)) error {
	return h.chunks(func(z, count int, chunk spmd.Buffer[T], values []T, at func(k, y int) int) error {
		clear(values)
		fn(z, count, values, at)
		return chunk.CopyFrom(values)
	})
}

// chunks calls fn for runs of planes of the first field, with memory for them. A run has at most 64
// MiB, or one plane if that is longer.
func (h *heat[T]) chunks(fn func(z, count int, chunk spmd.Buffer[T], values []T, at func(k, y int) int) error) error {
	b := &h.box
	plane := int(b.Plane)
	most := max(1, 64<<20/(plane*sizeOf[T]()))
	values := make([]T, min(most, int(b.N[planes]))*plane)
	first := int(b.Origin - b.Plane) // of the first cell in its plane
	for z := 0; z < int(b.N[planes]); z += most {
		count := min(most, int(b.N[planes])-z)
		chunk := h.fields[0].Slice((z+1)*plane, (z+1+count)*plane)
		at := func(k, y int) int { return k*plane + y*int(b.Pitch) + first }
		if err := fn(z, count, chunk, values[:count*plane], at); err != nil {
			return err
		}
	}
	return nil
}
