package main

import (
	"errors"
	"fmt"
	"math"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// The command writes kernels_spmd.go: the kernels in CUDA C++ for GPUs, and the functions that
// launch them. The results of a kernel are added up over all i.
//
//go:generate go run lockstep/spmd/spmdgen

// apply computes element i of q = A p, and of the product of p and q. p has the neighbours' rows
// above and below; beyond the sides of the grid all is 0.
//
//spmd:kernel
func apply(i int, q, p []float64, side int) (pq float64) {
	at, column := i+side, i%side
	sum := p[at-side] + p[at+side]
	if column > 0 {
		sum += p[at-1]
	}
	if column < side-1 {
		sum += p[at+1]
	}
	q[i] = 4*p[at] - sum
	return p[at] * q[i]
}

// advance goes along p as far as the residual r falls, and returns its square there.
//
//spmd:kernel
func advance(i int, x, r, p, q []float64, side int, rr, pq *float64) (next float64) {
	step := 0.0
	if *pq > 0 { // else the answer is exact already
		step = *rr / *pq
	}
	x[i] += step * p[i+side]
	r[i] -= step * q[i]
	return r[i] * r[i]
}

// turn sets the next direction.
//
//spmd:kernel
func turn(i int, p, r []float64, side int, next, rr *float64) {
	part := 0.0
	if *rr > 0 {
		part = *next / *rr
	}
	p[i+side] = r[i] + p[i+side]*part
}

// solver holds some rows of the vectors of conjugate gradients.
type solver struct {
	w            *spmd.World
	s            *spmd.Stream
	side, n      int // points in a row, and of this rank
	x, r, q      spmd.Buffer[float64]
	p            spmd.Buffer[float64] // with a row more above and below
	rr, pq, next spmd.Buffer[float64] // numbers: the residual's square, p·q, and the next square
}

func newSolver(w *spmd.World, side, rows int) (*solver, error) {
	v := &solver{w: w, side: side, n: side * rows}
	var err error
	if v.s, err = w.NewStream("anapp"); err != nil {
		return nil, err
	}
	mem, err := spmd.Alloc[float64](w, 4*v.n+2*side+3)
	if err != nil {
		return nil, err
	}
	take := func(n int) (b spmd.Buffer[float64]) {
		b, mem = mem.Slice(0, n), mem.Slice(n, mem.Len())
		return b
	}
	v.x, v.r, v.q, v.p = take(v.n), take(v.n), take(v.n), take(v.n+2*side)
	v.rr, v.pq, v.next = take(1), take(1), take(1)
	return v, nil
}

// progress is a line of --json, and a point on the page of --dashboard.
type progress struct {
	Step     int     `json:"step"`
	Residual float64 `json:"residual"`
}

// checkEach is how many steps are enqueued before the host looks at the residual.
const checkEach = 25

// solve leaves the solution for right in v.x. It returns the steps, and the residual as a part of
// the first.
//
// Collective, blocking.
func (v *solver) solve(right []float64, tolerance float64, most int) (steps int, residual float64, err error) {
	square := []float64{0}
	for _, b := range right {
		square[0] += b * b
	}
	c := v.w.Comm()
	err = errors.Join(v.x.SetAll(0), v.p.SetAll(0), v.r.CopyFrom(right), v.p.Slice(v.side, v.side+v.n).CopyFrom(right),
		hostdata.AllReduceSlice(c, square, square, spmd.Sum), v.rr.SetAll(square[0]))
	for err == nil && steps < most {
		for range min(checkEach, most-steps) { // nothing waits in here
			if err := v.step(c.On(v.s)); err != nil {
				return steps, residual, err
			}
			steps++
		}
		residual = math.Sqrt(v.rr.At(0) / square[0]) // waits for the steps
		if err := v.w.Emit(progress{steps, residual}); err != nil {
			return steps, residual, err
		}
		above, err := hostdata.Any(c, residual > tolerance) // on every rank the same
		if err != nil || !above {
			return steps, residual, err
		}
	}
	if err == nil {
		err = fmt.Errorf("after %d steps the residual is %.3g of the first, more than --tolerance %g",
			steps, residual, tolerance)
	}
	return steps, residual, err
}

// step enqueues a step on the stream of c.
//
// Collective over c.
func (v *solver) step(c spmd.Comm) error {
	return errors.Join(v.exchange(c),
		launchApply(v.s, v.pq, v.n, v.q, v.p, v.side),
		spmd.AllReduce(c, v.pq, v.pq, spmd.Sum),
		launchAdvance(v.s, v.next, v.n, v.x, v.r, v.p, v.q, v.side, v.rr, v.pq),
		spmd.AllReduce(c, v.next, v.next, spmd.Sum),
		launchTurn(v.s, v.n, v.p, v.r, v.side, v.next, v.rr), spmd.Copy(v.s, v.rr, v.next))
}

// exchange fills the first and the last row of p with the nearest rows of the ranks above and
// below.
//
// Collective over c.
func (v *solver) exchange(c spmd.Comm) error {
	above, below := c.Rank()-1, c.Rank()+1
	if above < 0 {
		above = spmd.None // nothing is sent there, and the row stays 0
	}
	if below == c.Size() {
		below = spmd.None
	}
	row := func(at int) spmd.Buffer[float64] { return v.p.Slice(at, at+v.side) }
	// The calls of a group start together. One after the other, two ranks could wait for each
	// other.
	return c.Group(func() error {
		return errors.Join(spmd.SendRecv(c, row(0), above, row(v.n), below),
			spmd.SendRecv(c, row(v.n+v.side), below, row(v.side), above))
	})
}
