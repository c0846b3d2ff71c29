package spmd

import (
	"fmt"
	"slices"
	"strings"

	"lockstep/internal/ccall"
)

// Axis is one direction of a Mesh: its name, and how many ranks follow each other along it. Fit is any size that fits.
type Axis struct {
	Name string
	Size int
}

// Fit is the size of an axis that takes what the others leave.
const Fit = -1

func (a Axis) String() string { return fmt.Sprintf("%s %d", a.Name, a.Size) }

// Mesh is the ranks of a world arranged in a grid, with one communicator along
// each axis.
type Mesh struct {
	axes  []Axis
	comms []Comm
	coord []int
}

// Mesh arranges the ranks in a grid, the last axis varying fastest: of
//
//	w.Mesh(spmd.Axis{Name: "data", Size: spmd.Fit}, spmd.Axis{Name: "model", Size: 2})
//
// ranks 0 and 1 are one row of "model". The product of the sizes must be the number
// of ranks; one of them may be Fit.
//
// Collective, blocking.
func (w *World) Mesh(axes ...Axis) (*Mesh, error) {
	m := &Mesh{axes: slices.Clone(axes)}
	if err := m.fit(w.Size()); err != nil {
		return nil, fmt.Errorf("%s: Mesh: %w", ccall.At(), err)
	}
	m.coord = make([]int, len(m.axes))
	for i, rest := len(m.axes)-1, w.Rank(); i >= 0; i-- {
		m.coord[i], rest = rest%m.axes[i].Size, rest/m.axes[i].Size
	}
	stride := w.Size()
	for i, a := range m.axes {
		stride /= a.Size
		c, err := w.Comm.Split(w.Rank()-m.coord[i]*stride, m.coord[i])
		if err != nil {
			return nil, err
		}
		m.comms = append(m.comms, c)
	}
	return m, nil
}

// fit checks the axes, and settles the one that is to fit.
func (m *Mesh) fit(ranks int) error {
	open, rest := -1, ranks // what is left of the ranks for the axes to come
	for i, a := range m.axes {
		switch {
		case m.index(a.Name) != i:
			return fmt.Errorf("two axes are named %q", a.Name)
		case a.Size == Fit && open >= 0:
			return fmt.Errorf("both %q and %q are to fit", m.axes[open].Name, a.Name)
		case a.Size == Fit:
			open = i
		case a.Size < 1:
			return fmt.Errorf("axis %q of %d ranks", a.Name, a.Size)
		case rest%a.Size != 0:
			return m.misfit(ranks)
		default:
			rest /= a.Size
		}
	}
	switch {
	case open >= 0:
		m.axes[open].Size = rest
	case rest != 1 || len(m.axes) == 0:
		return m.misfit(ranks)
	}
	return nil
}

func (m *Mesh) misfit(ranks int) error {
	return fmt.Errorf("the sizes of the axes %v do not multiply to the %d ranks of the world", m.axes, ranks)
}

// Comm returns the communicator along the named axis: the ranks that differ from
// this one in that coordinate alone. It panics where there is no such axis.
func (m *Mesh) Comm(axis string) Comm { return m.comms[m.mustIndex(axis)] }

// Coord returns this rank's coordinate on the named axis. It panics where there
// is no such axis.
func (m *Mesh) Coord(axis string) int { return m.coord[m.mustIndex(axis)] }

// index returns the first axis of a name, -1 where there is none.
func (m *Mesh) index(name string) int {
	return slices.IndexFunc(m.axes, func(a Axis) bool { return a.Name == name })
}

func (m *Mesh) mustIndex(name string) int {
	i := m.index(name)
	if i < 0 {
		var names []string
		for _, a := range m.axes {
			names = append(names, a.Name)
		}
		panic(fmt.Sprintf("spmd: Mesh has no axis %q, only %s", name, strings.Join(names, ", ")))
	}
	return i
}
