package spmd

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"lockstep/internal/ccall"
)

// Axis is one direction of a Mesh: its name, and how many ranks follow each other along it. Fit is any size that fits.
// Along a Periodic axis the first rank comes after the last (see Mesh.Shift).
type Axis struct {
	Name     string
	Size     int
	Periodic bool
}

// Fit is the size of an axis that takes what the others leave (see FitAxes).
const Fit = -1

func (a Axis) String() string { return fmt.Sprintf("%s %d", a.Name, a.Size) }

// Mesh is the ranks of a world arranged in a grid, with one communicator along
// each axis.
type Mesh struct {
	rank  int
	axes  []Axis
	comms []Comm
	coord []int
}

// Mesh arranges the ranks in a grid, the last axis varying fastest: of
//
//	w.Mesh(spmd.Axis{Name: "data", Size: spmd.Fit}, spmd.Axis{Name: "model", Size: 2})
//
// ranks 0 and 1 are one row of "model". The product of the sizes must be the number
// of ranks; those that are Fit share what the others leave.
//
// Collective, blocking.
func (w *World) Mesh(axes ...Axis) (*Mesh, error) {
	axes, err := FitAxes(w.Size(), axes...)
	if err != nil {
		return nil, fmt.Errorf("%s: Mesh: %w", ccall.At(), err)
	}
	m := &Mesh{rank: w.Rank(), axes: axes, coord: make([]int, len(axes))}
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

// Comm returns the communicator along the named axis: the ranks that differ from
// this one in that coordinate alone. It panics where there is no such axis.
func (m *Mesh) Comm(axis string) Comm { return m.comms[m.mustIndex(axis)] }

// Coord returns this rank's coordinate on the named axis. It panics where there
// is no such axis.
func (m *Mesh) Coord(axis string) int { return m.coord[m.mustIndex(axis)] }

// Shift returns the ranks of w.Comm that are by steps away from this one along the named axis: to is that many steps
// ahead, from as many behind, so that a SendRecv with them moves data by steps along the axis. On an axis that is Periodic
// the last rank is followed by the first; else None stands for what is beyond the ends. by may be negative. It panics
// where there is no such axis. Not collective.
// Source: mpi.h, MPI_Cart_shift.
func (m *Mesh) Shift(axis string, by int) (from, to int) {
	i := m.mustIndex(axis)
	return m.along(i, -by), m.along(i, by)
}

// along is the rank some steps ahead of this one along axis i.
func (m *Mesh) along(i, steps int) int {
	size, here := m.axes[i].Size, m.coord[i]
	there := here + steps%size // steps may be any number: no sum of it is beyond an int
	switch {
	case m.axes[i].Periodic:
		there = (there + size) % size
	case steps <= -size || steps >= size || there < 0 || there >= size:
		return None
	}
	stride := 1
	for _, a := range m.axes[i+1:] {
		stride *= a.Size
	}
	return m.rank + (there-here)*stride
}

// Axes returns the axes of the mesh with their sizes.
func (m *Mesh) Axes() []Axis { return slices.Clone(m.axes) }

// indexOf returns the first axis of a name, -1 where there is none.
func indexOf(axes []Axis, name string) int {
	return slices.IndexFunc(axes, func(a Axis) bool { return a.Name == name })
}

func (m *Mesh) mustIndex(name string) int {
	i := indexOf(m.axes, name)
	if i < 0 {
		var names []string
		for _, a := range m.axes {
			names = append(names, a.Name)
		}
		panic(fmt.Sprintf("spmd: Mesh has no axis %q, only %s", name, strings.Join(names, ", ")))
	}
	return i
}

// FitAxes returns axes with sizes that multiply to the number of ranks. Several axes whose size is Fit share what the
// others leave as evenly as can be, earlier ones more: of 12 ranks two axes are 4 and 3. Mesh does the same; a program that
// wants to know before the job starts asks here. It is an error where no sizes fit. Not collective.
// Source: mpi.h, MPI_Dims_create.
func FitAxes(ranks int, axes ...Axis) ([]Axis, error) {
	fitted := slices.Clone(axes)
	rest, open := ranks, []*Axis(nil) // what is left of the ranks for the axes to come, and those that share it in the end
	for i := range fitted {
		a := &fitted[i]
		switch {
		case indexOf(axes, a.Name) != i:
			return nil, fmt.Errorf("two axes are named %q", a.Name)
		case a.Size == Fit:
			open = append(open, a)
		case a.Size < 1:
			return nil, fmt.Errorf("axis %q of %d ranks", a.Name, a.Size)
		case rest%a.Size != 0:
			return nil, misfit(ranks, axes)
		default:
			rest /= a.Size
		}
	}
	if len(axes) == 0 || len(open) == 0 && rest != 1 {
		return nil, misfit(ranks, axes)
	}
	share(rest, open)
	return fitted, nil
}

func misfit(ranks int, axes []Axis) error {
	return fmt.Errorf("the sizes of the axes %v do not multiply to the %d ranks of the world", axes, ranks)
}

// share gives axes sizes that multiply to n: of all such the ones with the least sum, the greatest first.
func share(n int, axes []*Axis) {
	best := math.MaxInt
	sizes := make([]int, len(axes))
	var place func(i, n, most, sum int)
	place = func(i, n, most, sum int) {
		if i == len(axes)-1 {
			if sizes[i] = n; n <= most && sum+n < best {
				best = sum + n
				for k, a := range axes {
					a.Size = sizes[k]
				}
			}
			return
		}
		for d := 1; d <= n && d <= most; d++ {
			if n%d == 0 {
				sizes[i] = d
				place(i+1, n/d, d, sum+d)
			}
		}
	}
	if len(axes) > 0 {
		place(0, n, n, 0)
	}
}
