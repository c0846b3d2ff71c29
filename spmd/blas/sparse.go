package blas

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/library"
)

// CSR is a sparse matrix by rows, or some rows of one, in host memory, as SciPy's csr_matrix. Row r
// has the elements Value[k] in the columns Column[k], for k from Start[r] to Start[r+1]-1.
type CSR[T float32 | float64] struct {
	Start  []int // one more than rows, the first is 0
	Column []int // of the whole matrix, on every rank
	Value  []T
}

// check says why this is no matrix of so many columns.
func (a *CSR[T]) check(columns int) error {
	switch n := len(a.Start); {
	case n == 0 || a.Start[0] != 0:
		return errors.New("the first of Start is not 0")
	case a.Start[n-1] != len(a.Value) || len(a.Column) != len(a.Value):
		return fmt.Errorf("%d values and %d columns, but Start ends with %d", len(a.Value), len(a.Column), a.Start[n-1])
	case max(n, len(a.Value)) > math.MaxInt32:
		return fmt.Errorf("%d elements in %d rows, but a rank can have %d", len(a.Value), n-1, math.MaxInt32)
	}
	for r := range len(a.Start) - 1 {
		if a.Start[r+1] < a.Start[r] {
			return fmt.Errorf("row %d begins at element %d and ends at %d", r, a.Start[r], a.Start[r+1])
		}
	}
	for k, c := range a.Column {
		if c < 0 || c >= columns {
			return fmt.Errorf("element %d is in column %d of %d", k, c, columns)
		}
	}
	return nil
}

// Sparse is this rank's rows of a sparse matrix, on the device. NewSparse works out once which
// elements of other ranks' vectors a rank needs. Each product then exchanges only these.
//
// The order of additions depends on the matrix alone: equal inputs give equal bits, on a GPU the
// same as on the host.
type Sparse[T float32 | float64] struct {
	c          spmd.Comm
	rows, own  int
	grid       spmd.Grid
	kernel     *spmd.Kernel
	start      spmd.Buffer[int32]
	column     spmd.Buffer[int32] // from own on elements of halo
	value      spmd.Buffer[T]
	halo       spmd.Buffer[T]     // elements of other ranks' vectors, by rank
	given      spmd.Buffer[T]     // this rank's elements that others need, by rank
	index      spmd.Buffer[int32] // if these are in the vector
	neighbours []neighbour
	on         spmd.Comm // of the product that is being enqueued
	exchange   func() error
}

// neighbour is a rank that elements are exchanged with: parts of halo and given.
type neighbour struct{ rank, needLo, needHi, giveLo, giveHi int }

// NewSparse returns a matrix; this rank has the rows of a. The vectors that it multiplies
// are divided over the ranks of c, in rank order: this rank has own elements. For a square
// matrix own is its number of rows.
//
// Collective, blocking. A bad matrix on one rank is an error on all.
func NewSparse[T float32 | float64](w *spmd.World, c spmd.Comm, a CSR[T], own int) (m *Sparse[T], err error) {
	owns, err := hostdata.AllGather(c, own)
	if err != nil {
		return nil, err
	}
	offset := make([]int, c.Size()+1)
	for r, n := range owns {
		offset[r+1] = offset[r] + max(n, 0)
	}
	wrong := a.check(offset[c.Size()])
	if own < 0 || own > math.MaxInt32-len(a.Value) { // and those of other ranks
		wrong = fmt.Errorf("%d elements of a vector, and %d of a matrix", own, len(a.Value))
	}
	if any, err := hostdata.Any(c, wrong != nil); err != nil || any {
		return nil, errors.Join(err, fmt.Errorf("%s: blas.NewSparse: rank %d: %w", ccall.At(), c.Rank(), cause(wrong)))
	}
	rows := len(a.Start) - 1
	m = &Sparse[T]{c: c.On(nil), rows: rows, own: own}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Free())
		}
	}()
	var lanes int
	m.kernel, lanes = csrKernelFor[T](rows, len(a.Value))
	m.grid = spmd.Cover1D(rows*lanes, csrThreads)
	column := make([]int32, len(a.Column))
	need, counts := needed(&a, offset, c.Rank(), column)
	m.start, err = filled(w, int32s(a.Start))
	if err == nil {
		m.column, err = filled(w, column)
	}
	if err == nil {
		m.value, err = filled(w, a.Value)
	}
	if err == nil {
		err = m.plan(w, need, counts)
	}
	return m, err
}

func cause(err error) error {
	if err == nil {
		return errors.New("the rows of another rank are wrong")
	}
	return err
}

// needed returns the columns of other ranks in which a has elements, by the numbers of their ranks,
// and how many there are of each rank. It sets column to the columns that the kernel uses.
func needed[T float32 | float64](a *CSR[T], offset []int, rank int, column []int32) (need []int32, counts []int) {
	lo, hi := offset[rank], offset[rank+1]
	var outside []int
	for _, c := range a.Column {
		if c < lo || c >= hi {
			outside = append(outside, c)
		}
	}
	slices.Sort(outside)
	outside = slices.Compact(outside)
	for k, c := range a.Column {
		if c >= lo && c < hi {
			column[k] = int32(c - lo)
		} else {
			at, _ := slices.BinarySearch(outside, c)
			column[k] = int32(hi - lo + at)
		}
	}
	counts = make([]int, len(offset)-1)
	r := 0
	for _, c := range outside {
		for c >= offset[r+1] {
			r++
		}
		counts[r]++
		need = append(need, int32(c-offset[r]))
	}
	return need, counts
}

func int32s(v []int) []int32 {
	to := make([]int32, len(v))
	for i, x := range v {
		to[i] = int32(x)
	}
	return to
}

func filled[T spmd.Elem](w *spmd.World, v []T) (spmd.Buffer[T], error) {
	b, err := spmd.Alloc[T](w, len(v))
	if err == nil {
		err = b.CopyFrom(v)
	}
	return b, err
}

// plan tells the other ranks which elements this one needs, and prepares the exchange.
func (m *Sparse[T]) plan(w *spmd.World, need []int32, needs []int) error {
	asked, err := filled(w, int32s(needs))
	answer, err2 := spmd.Alloc[int32](w, len(needs))
	wanted, err3 := filled(w, need)
	if err = errors.Join(err, err2, err3); err != nil {
		return err
	}
	defer func() { _ = errors.Join(asked.Free(), answer.Free(), wanted.Free()) }()
	if err := spmd.AllToAll(m.c, answer, asked); err != nil {
		return err
	}
	counts := make([]int32, len(needs))
	if err := answer.CopyTo(counts); err != nil {
		return err
	}
	gives, give, at := make([]int, len(needs)), 0, 0
	for r, n := range counts {
		gives[r] = int(n)
		if n > 0 || needs[r] > 0 {
			m.neighbours = append(m.neighbours, neighbour{r, at, at + needs[r], give, give + int(n)})
		}
		give, at = give+int(n), at+needs[r]
	}
	if m.halo, err = spmd.Alloc[T](w, len(need)); err == nil {
		m.given, err = spmd.Alloc[T](w, give)
	}
	if err == nil {
		m.index, err = spmd.Alloc[int32](w, give)
	}
	if err != nil {
		return err
	}
	m.exchange = func() error {
		for _, n := range m.neighbours {
			var err error
			if n.giveHi > n.giveLo {
				err = spmd.Send(m.on, m.given.Slice(n.giveLo, n.giveHi), n.rank)
			}
			if n.needHi > n.needLo {
				err = errors.Join(err, spmd.Recv(m.on, m.halo.Slice(n.needLo, n.needHi), n.rank))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return spmd.AllToAllV(m.c, m.index, wanted, gives, needs)
}

// Halo returns how many elements of other ranks' vectors a product receives.
func (m *Sparse[T]) Halo() int { return m.halo.Len() }

// Multiply enqueues y = A x on s. x and y are this rank's parts, and do not overlap. Products of
// one matrix share the memory of the halo. So one goroutine enqueues them, on one stream or on
// streams that wait for each other.
//
// Collective over the ranks that need elements of each other.
func (m *Sparse[T]) Multiply(s *spmd.Stream, y, x spmd.Buffer[T]) error {
	if y.Len() != m.rows || x.Len() != m.own {
		return fmt.Errorf("%s: Multiply: y has %d elements and x %d, this rank's part of the "+
			"matrix %d rows and %d columns",
			ccall.At(), y.Len(), x.Len(), m.rows, m.own)
	}
	if err := library.Apart("Multiply", library.Writes("y", y), library.Reads("x", x)); err != nil {
		return err
	}
	if len(m.neighbours) > 0 {
		if err := launchCollect(s, m.given.Len(), m.given, x, m.index); err != nil {
			return err
		}
		m.on = m.c.On(s)
		if err := m.on.Group(m.exchange); err != nil {
			return err
		}
	}
	if m.rows == 0 {
		return nil
	}
	return m.kernel.Launch(s, m.grid, y.Arg(), m.start.Arg(), m.column.Arg(), m.value.Arg(), x.Arg(),
		m.halo.Arg(), spmd.I32(m.own), spmd.I32(m.rows))
}

// Free frees the memory of the matrix.
func (m *Sparse[T]) Free() error {
	return errors.Join(m.start.Free(), m.column.Free(), m.value.Free(), m.halo.Free(), m.given.Free(), m.index.Free())
}
