package main

import (
	"fmt"
	"math"

	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// product is y = W x of a rank's block, with its memory and its streams.
type product[T number] struct {
	w   *spmd.World
	sp  split
	s   *spmd.Stream
	sum *spmd.Stream // of all-reduces that overlap the multiplication
	m   matrix[T]
	x   spmd.Buffer[T]
	y   spmd.Buffer[float32] // of as many elements as the largest block has rows
	own *own[T]
}

// newProduct allocates the memory, and fills nothing. Collective.
func newProduct[T number](w *spmd.World, sp split, byColumns bool) (*product[T], error) {
	p := &product[T]{w: w, sp: sp}
	var err error
	if p.s, err = w.NewStream("matvec"); err != nil {
		return nil, err
	}
	if p.sum, err = w.NewStream("all-reduce", spmd.High); err != nil {
		return nil, err
	}
	if p.m, err = newMatrix[T](w, sp.rows.Len, sp.cols.Len, byColumns); err != nil {
		return nil, err
	}
	if p.x, err = spmd.Alloc[T](w, sp.cols.Len); err != nil {
		return nil, err
	}
	if p.y, err = spmd.AllocSymmetric[float32](w, sp.most); err != nil {
		return nil, err
	}
	p.own, err = newOwn(w, kernelsOf[T](), p.m)
	return p, err
}

// method is a way to compute y: the kernel, own or cublas, and the number of parts of the rows.
type method struct {
	kernel  string
	overlap int
}

func (m method) String() string { return fmt.Sprintf("%s, rows in %d", m.kernel, m.overlap) }

// enqueue enqueues two steps: x is gathered from the ranks with shares of it, and y = the sum of W
// x over the ranks with parts of it.
func (p *product[T]) enqueue(m method) error {
	if err := gather(p.s, p.sp, p.x); err != nil {
		return err
	}
	each := p.partRows(p.m.rows, m.overlap)
	if each >= p.m.rows {
		if err := p.multiply(m.kernel, 0, p.m.rows); err != nil {
			return err
		}
		return p.add(p.s, 0, p.m.rows)
	}
	part := func(k int) (lo, hi int) { return k * each, min((k+1)*each, p.m.rows) }
	return spmd.Pipeline(p.s, (p.m.rows+each-1)/each,
		spmd.Stage{Stream: p.s, Do: func(k int) error {
			lo, hi := part(k)
			return p.multiply(m.kernel, lo, hi)
		}},
		spmd.Stage{Stream: p.sum, Do: func(k int) error {
			lo, hi := part(k)
			return p.add(p.sum, lo, hi)
		}})
}

// add enqueues the sums of rows [lo, hi) of y over the ranks with parts of them.
func (p *product[T]) add(s *spmd.Stream, lo, hi int) error {
	if p.sp.wide == 1 {
		return nil
	}
	y := p.y.Slice(lo, hi)
	return spmd.AllReduce(p.sp.across.On(s), y, y, spmd.Sum)
}

// partRows returns how many rows each of n parts but the last has: whole tiles.
func (p *product[T]) partRows(rows, n int) int {
	rows, tile := (rows+n-1)/n, p.own.tile
	return (rows + tile - 1) / tile * tile
}

func (p *product[T]) multiply(kernel string, lo, hi int) error {
	if kernel == "own" {
		return p.own.multiply(p.s, p.y, p.m, p.x, lo, hi)
	}
	return library(p.s, p.y, p.m, p.x, lo, hi)
}

// These constants control the comparison of methods.
const (
	trialWarmup, trialIters = 2, 7
	// worthwhile is the time that another number of parts must not exceed: a smaller gain
	// may be chance.
	worthwhile = 0.99
)

// choose returns the method that c asks for. A few trials decide what c leaves open, with the same
// result on every rank. Collective.
func (p *product[T]) choose(c config) (method, error) {
	best := method{c.Kernel, max(1, c.Overlap)}
	kernels, parts := []string{c.Kernel}, []int{best.overlap}
	if c.Kernel == "auto" {
		var err error
		if kernels, err = p.available(); err != nil {
			return best, err
		}
		best.kernel = kernels[0]
	}
	if c.Overlap == 0 && p.sp.wide > 1 {
		for _, n := range []int{2, 4} { // of the largest block: all ranks try the same
			if p.partRows(p.sp.most, n) < p.partRows(p.sp.most, n/2) {
				parts = append(parts, n)
			}
		}
	}
	if len(kernels) == 1 && len(parts) == 1 {
		return best, nil
	}
	log := p.w.Log().Info()
	took := math.Inf(1)
	try := func(m method, worth float64) error {
		t, err := telemetry.MeasureStream(p.w.Comm(), p.s, c.Graph, trialWarmup, trialIters,
			func() error { return p.enqueue(m) })
		if err != nil {
			return err
		}
		log = log.Float64(m.String()+", us", t.MinUS)
		if t.MinUS < worth*took { // not the median, which other programs disturb
			best, took = m, t.MinUS
		}
		return nil
	}
	for _, k := range kernels {
		if err := try(method{k, parts[0]}, 1); err != nil {
			return best, err
		}
	}
	for _, n := range parts[1:] {
		if err := try(method{best.kernel, n}, worthwhile); err != nil {
			return best, err
		}
	}
	log.Stringer("fastest", best).Msg("trials")
	return best, nil
}

// available returns the kernels that every rank has, own first. On the host own is the library for
// float32; for bfloat16 the library would make a copy of W. Collective.
func (p *product[T]) available() ([]string, error) {
	kernels := []string{"own"}
	if p.w.OnHost() {
		return kernels, nil
	}
	can, err := spmd.AllocPinned[int32](p.w, 1)
	if err != nil {
		return nil, err
	}
	defer can.Free()
	can.Set(0, 1)
	if err := p.multiply("cublas", 0, p.m.rows); err != nil {
		p.w.Log().Warn().Err(err).Msg("cuBLAS cannot be used")
		can.Set(0, 0)
	}
	if err := p.s.Synchronize(); err != nil {
		return nil, err
	}
	if err := spmd.AllReduce(p.w.Comm(), can, can, spmd.Min); err != nil {
		return nil, err
	}
	if can.At(0) == 1 {
		kernels = append(kernels, "cublas")
	}
	return kernels, nil
}
