package main

import (
	"math"

	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// form is the solution of the discrete equation in closed form. Its eigenvectors are products of
// sines along the axes, or of cosines with periodic edges. Each step multiplies an eigenvector
// by its factor.
type form struct{ modes []mode }

// mode is one eigenvector.
type mode struct {
	along  [3][]float64 // its value along each axis
	factor float64      // of a step
	last   float64      // of all steps together
}

// newForm returns the sum of a smooth mode and of two that lose about two thirds of their height in
// the given number of steps. A late or missing halo would show in these. With periodic edges it
// adds a constant, which must not change.
func newForm(size [3]int, dims int, periodic bool, steps int) *form {
	// A mode of angle a along each axis loses beside * dims * a^2 of its height in a step.
	steep := math.Sqrt(1 / (beside * float64(dims) * float64(steps)))
	angles := [][3]float64{{}, {steep, 0.7 * steep, 1.3 * steep}, {1.4 * steep, steep, 0.3 * steep}}
	f := &form{}
	for i, angle := range angles {
		m := mode{factor: 1}
		for axis, n := range size {
			if axis == rows && dims == 2 {
				m.along[axis] = []float64{1}
				continue
			}
			waves, step, phase := 1, math.Pi/float64(n+1), 0.0 // half waves between cells that are 0
			if periodic {
				step, phase = 2*math.Pi/float64(n), 0.4+float64(axis+i) // whole waves
			}
			if i > 0 {
				waves = max(1, min(int(math.Round(angle[axis]/step)), n/2))
			}
			a := float64(waves) * step
			s := math.Sin(a / 2)
			m.factor -= 4 * beside * s * s
			m.along[axis] = make([]float64, n)
			for k := range n {
				if periodic {
					m.along[axis][k] = math.Cos(a*float64(k) + phase)
				} else {
					m.along[axis][k] = math.Sin(a * float64(k+1))
				}
			}
		}
		f.add(m, steps)
	}
	if periodic {
		m := mode{factor: 1}
		for axis, n := range size {
			m.along[axis] = make([]float64, n)
			for k := range n {
				m.along[axis][k] = 1
			}
		}
		f.add(m, steps)
	}
	return f
}

func (f *form) add(m mode, steps int) {
	m.last = math.Pow(m.factor, float64(steps))
	f.modes = append(f.modes, m)
}

// moment is when the values of cells are asked for.
type moment bool

const (
	atStart moment = false
	atEnd   moment = true // of all steps
)

// row calls fn with the values of the cells of a row of the part.
func (f *form) row(when moment, part [3]spmd.Shard, z, y int, fn func(x int, value float64)) {
	var heights [4]float64
	for i, m := range f.modes {
		heights[i] = m.along[planes][z] * m.along[rows][y]
		if when == atEnd {
			heights[i] *= m.last
		}
	}
	for x := range part[columns].Len {
		v := 0.0
		for i := range f.modes {
			v += heights[i] * f.modes[i].along[columns][part[columns].Off+x]
		}
		fn(x, v)
	}
}

// start sets the values of some planes to those before the first step.
func start[T number](f *form, part [3]spmd.Shard, z, count int, values []T, at func(k, y int) int) {
	n := part[rows].Len
	host.Parallel(count*n, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			k, y := i/n, i%n
			line := values[at(k, y):]
			f.row(atStart, part, part[planes].Off+z+k, part[rows].Off+y, func(x int, v float64) { line[x] = T(v) })
		}
	})
}

// bound returns the bound of the relative error after some steps. A step enlarges no error. It adds
// roundings of at most 3 units in the last place to its averages in three dimensions, and 2 in two.
// A unit may be twice as large as at the end.
func bound[T number](steps int) float64 {
	unit := math.Ldexp(1, -24)
	if sizeOf[T]() == 8 {
		unit = math.Ldexp(1, -53)
	}
	return 6 * float64(steps+1) * unit
}

// tiny is the least value that errors are compared with: others have almost vanished.
const tiny = 1e-30

// maxRelErr returns the largest difference between the first field and the closed form, over the
// largest value of that. It is the same on all ranks. NaN is the largest of all.
func maxRelErr[T number](h *heat[T], f *form) (float64, error) {
	n := h.part[rows].Len
	worst := [2]float64{} // difference, value
	err := h.visit(func(z, count int, values []T, at func(k, y int) int) error {
		of := make([][2]float64, count*n) // of each row
		host.Parallel(count*n, 1, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				k, y := i/n, i%n
				line := values[at(k, y):]
				f.row(atEnd, h.part, h.part[planes].Off+z+k, h.part[rows].Off+y, func(x int, want float64) {
					of[i][0] = larger(of[i][0], math.Abs(float64(line[x])-want))
					of[i][1] = larger(of[i][1], math.Abs(want))
				})
			}
		})
		for _, w := range of {
			worst[0], worst[1] = larger(worst[0], w[0]), larger(worst[1], w[1])
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if math.IsNaN(worst[0]) {
		worst[0] = math.Inf(1) // which every order of a maximum keeps
	}
	if err := hostdata.AllReduceSlice(h.w.Comm(), worst[:], worst[:], spmd.Max); err != nil {
		return 0, err
	}
	return worst[0] / max(worst[1], tiny), nil
}

// larger returns the larger of two numbers, or NaN if one is NaN.
func larger(a, b float64) float64 {
	if a >= b || math.IsNaN(a) {
		return a
	}
	return b
}
