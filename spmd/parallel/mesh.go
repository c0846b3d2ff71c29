package parallel

import (
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"strings"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// Axis is one direction of a Mesh: its name, and how many ranks follow each other along it. A size
// of Fit is any size that fits. Along a Periodic axis the first rank comes after the last (see
// Layout.Shift).
type Axis struct {
	Name     string
	Size     int
	Periodic bool
}

// Fit is the size of an axis that takes the ranks that other axes leave (see FitAxes).
const Fit = -1

func (a Axis) String() string {
	if a.Periodic {
		return fmt.Sprintf("%s %d periodic", a.Name, a.Size)
	}
	return fmt.Sprintf("%s %d", a.Name, a.Size)
}

// Layout is the ranks of a world arranged in a grid, the last axis varying fastest, as this rank
// sees it.
type Layout struct {
	rank  int
	axes  []Axis
	coord []int
}

// NewLayout arranges the ranks as NewMesh does, without communicators. It is for programs that
// exchange messages with their neighbours on w.Comm(), and need no collectives along an axis. Not
// collective.
// Source: mpi.h, MPI_Cart_create.
func NewLayout(w *spmd.World, axes ...Axis) (*Layout, error) {
	g, err := layout(w, axes)
	if err != nil {
		return nil, fmt.Errorf("%s: parallel.NewLayout: %w", ccall.At(), err)
	}
	return &g, nil
}

func layout(w *spmd.World, axes []Axis) (Layout, error) {
	axes, err := FitAxes(w.Size(), axes...)
	if err != nil {
		return Layout{}, err
	}
	g := Layout{rank: w.Rank(), axes: axes, coord: make([]int, len(axes))}
	for i, rest := len(axes)-1, g.rank; i >= 0; i-- {
		g.coord[i], rest = rest%axes[i].Size, rest/axes[i].Size
	}
	return g, nil
}

// Mesh is a Layout with one communicator along each axis.
type Mesh struct {
	Layout
	comms []spmd.Comm
}

// NewMesh arranges the ranks in a grid, the last axis varying fastest: of
//
//	parallel.NewMesh(w, parallel.Axis{Name: "data", Size: parallel.Fit},
//		parallel.Axis{Name: "model", Size: 2})
//
// ranks 0 and 1 are one row of "model". The product of the sizes must be the number of ranks. Axes
// of size Fit share the ranks that the others leave. All ranks give the same axes.
//
// Collective, blocking.
func NewMesh(w *spmd.World, axes ...Axis) (*Mesh, error) {
	g, err := layout(w, axes)
	if err != nil {
		return nil, fmt.Errorf("%s: parallel.NewMesh: %w", ccall.At(), err)
	}
	if err := sameAxes(w, g.axes); err != nil {
		return nil, err
	}
	m := &Mesh{Layout: g}
	stride := w.Size()
	for i, a := range m.axes {
		stride /= a.Size
		c, err := w.Comm().Split(w.Rank()-m.coord[i]*stride, m.coord[i])
		if err != nil {
			return nil, err
		}
		m.comms = append(m.comms, c)
	}
	return m, nil
}

// sameAxes refuses axes that differ between ranks. Collective.
func sameAxes(w *spmd.World, axes []Axis) error {
	mine := fmt.Sprint(axes)
	h := fnv.New64a()
	io.WriteString(h, mine)
	hashes, err := hostdata.AllGather(w.Comm(), h.Sum64())
	if err != nil || !slices.ContainsFunc(hashes, func(x uint64) bool { return x != hashes[0] }) {
		return err
	}
	said, err := hostdata.AllGather(w.Comm(), mine)
	if err != nil {
		return err
	}
	r := slices.IndexFunc(said, func(s string) bool { return s != said[0] })
	return fmt.Errorf("%s: parallel.NewMesh: %w: rank 0 has the axes %s, rank %d %s",
		ccall.At(), spmd.ErrContract, said[0], r, said[r])
}

// Comm returns the communicator along the named axis: the ranks that differ from this one only in
// that coordinate. It panics if there is no such axis.
func (m *Mesh) Comm(axis string) spmd.Comm { return m.comms[m.mustIndex(axis)] }

// Coord returns this rank's coordinate on the named axis. It panics if there is no such axis.
func (g *Layout) Coord(axis string) int { return g.coord[g.mustIndex(axis)] }

// Axes returns the axes with their sizes.
func (g *Layout) Axes() []Axis { return slices.Clone(g.axes) }

// Shift returns the ranks of w.Comm() that are by steps away from this one along the named axis: to
// is ahead, and from is behind. A SendRecv with them moves data by steps along the axis. On a
// Periodic axis the first follows the last rank; else a rank beyond the ends is spmd.None. by may
// be negative. It panics if there is no such axis. Not collective. Source: mpi.h, MPI_Cart_shift.
func (g *Layout) Shift(axis string, by int) (from, to int) {
	i := g.mustIndex(axis)
	return g.along(i, -by), g.along(i, by)
}

// along returns the rank some steps ahead of this one along axis i.
func (g *Layout) along(i, steps int) int {
	size, here := g.axes[i].Size, g.coord[i]
	there := here + steps%size // steps may be any number: no sum of it is beyond an int
	switch {
	case g.axes[i].Periodic:
		there = (there + size) % size
	case steps <= -size || steps >= size || there < 0 || there >= size:
		return spmd.None
	}
	stride := 1
	for _, a := range g.axes[i+1:] {
		stride *= a.Size
	}
	return g.rank + (there-here)*stride
}

// indexOf returns the first axis of a name, -1 if there is none.
func indexOf(axes []Axis, name string) int {
	return slices.IndexFunc(axes, func(a Axis) bool { return a.Name == name })
}

func (g *Layout) mustIndex(name string) int {
	i := indexOf(g.axes, name)
	if i < 0 {
		var names []string
		for _, a := range g.axes {
			names = append(names, a.Name)
		}
		panic(fmt.Sprintf("parallel: the layout has no axis %q, only %s", name, strings.Join(names, ", ")))
	}
	return i
}

// FitAxes returns axes with sizes that multiply to the number of ranks. Several axes of size Fit
// share the ranks that the others leave as evenly as can be, earlier axes more: two axes of 12
// ranks are 4 and 3. NewMesh does the same; a program that wants to know before the job starts asks
// here. It is an error if no sizes fit. Not collective. Source: mpi.h, MPI_Dims_create.
func FitAxes(ranks int, axes ...Axis) ([]Axis, error) {
	fitted := slices.Clone(axes)
	// The ranks that are left for the axes to come, and the axes that share them in the end.
	rest, open := ranks, []*Axis(nil)
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

// share gives axes the sizes with the least sum that multiply to n, the greatest first.
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
