// Package fft has Fourier transforms of buffers, of complex and of real numbers, in one to three
// dimensions, many at once. On GPUs they are cuFFT's, which is loaded when a plan is made. On the
// host they are gonum's, in double precision.
//
// As in NumPy, Forward has the exponent -2πi and no factor, and Inverse divides by the number of
// elements. So Inverse undoes Forward.
package fft

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"lockstep/cuda/cufft"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Complex is the set of complex types.
type Complex interface{ complex64 | complex128 }

// Plan is transforms of complex numbers, all of one shape. One goroutine at a time uses it, on one
// stream or on streams that wait for each other.
type Plan[C Complex] struct {
	shape
	run *library.Function
	gpu *cufft.Plan // nil on the host
}

// shape is the common part of all plans.
type shape struct {
	dims  []int // of an array; the last dimension has neighbours in memory
	batch int
	size  int // elements of all arrays
	lines []*lines
}

func newShape(op string, dims []int, batch int) (shape, error) {
	s := shape{dims: slices.Clone(dims), batch: batch}
	if len(dims) < 1 || len(dims) > 3 || batch < 1 {
		return s, fmt.Errorf("%s: %s: %d dimensions, %d arrays: want one to three, and at least one",
			ccall.At(), op, len(dims), batch)
	}
	const bytes = 16 // of the widest element
	_, ok := elem.Product(append(s.dims, batch, bytes)...)
	if !ok || slices.Min(dims) < 1 {
		return s, fmt.Errorf("%s: %s: %d arrays of %v elements", ccall.At(), op, batch, dims)
	}
	s.size, _ = elem.Product(append(s.dims, batch)...)
	return s, nil
}

// New plans transforms of batch arrays of complex numbers. Their sizes are dims; the last dimension
// has neighbours in memory. The arrays lie one behind the other. The caller closes the plan. New is
// not called in a capture.
func New[C Complex](w *spmd.World, dims []int, batch int) (*Plan[C], error) {
	s, err := newShape("fft.New", dims, batch)
	if err != nil {
		return nil, err
	}
	p := &Plan[C]{shape: s}
	kind := cufft.C2C
	if double[C]() {
		kind = cufft.Z2Z
	}
	if p.gpu, err = open(w, "fft.New", kind, dims, batch); err != nil {
		return nil, err
	}
	p.prepare(whole)
	p.run = library.New("fft", func(c library.Call) error {
		return p.gpu.Run(c.Stream, c.Pointer(0), c.Pointer(1), c.Workspace, c.Bool(2))
	}, func(a spmd.Args) error {
		p.complexOnHost(slice[C](a, 0), slice[C](a, 1), a.Bool(2))
		return nil
	}).Writes(0b1)
	library.AtClose(w, p.Close)
	return p, nil
}

// slice returns an argument as the host's functions take it.
func slice[C Complex](a spmd.Args, i int) view {
	if double[C]() {
		return view{double: spmd.ArgSlice[complex128](a, i)}
	}
	return view{single: spmd.ArgSlice[complex64](a, i)}
}

func double[C Complex]() bool {
	_, ok := any(C(0)).(complex128)
	return ok
}

// opening is held while cuFFT plans.
var opening sync.Mutex

// open makes a plan on a GPU; it returns nil on the host.
func open(w *spmd.World, op string, kind cufft.Kind, dims []int, batch int) (*cufft.Plan, error) {
	if w.OnHost() {
		return nil, nil
	}
	if err := library.Quiet(w); err != nil {
		return nil, err
	}
	opening.Lock()
	defer opening.Unlock()
	p, err := cufft.Open(library.GPU(w), kind, dims, batch)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %d arrays of %v: %w", ccall.At(), op, batch, dims, err)
	}
	return p, nil
}

func workspace(p *cufft.Plan) int {
	if p == nil {
		return 0
	}
	return p.Workspace()
}

// fits refuses buffers of other lengths, and a dst that is neither src nor apart from it.
func fits[D, S spmd.Stored](op string, dst spmd.Buffer[D], n int, src spmd.Buffer[S], m int) error {
	if dst.Len() != n || src.Len() != m {
		return fmt.Errorf("%s: %s: dst has %d elements and src %d, the plan %d and %d", ccall.At(), op,
			dst.Len(), src.Len(), n, m)
	}
	return library.Apart(op, library.Writes("dst", dst), library.Reads("src", src).MayBe(0))
}

// Forward enqueues dst = the transform of src on s, for each array. dst may be src.
func (p *Plan[C]) Forward(s *spmd.Stream, dst, src spmd.Buffer[C]) error {
	if err := fits("Forward", dst, p.size, src, p.size); err != nil {
		return err
	}
	return p.run.Call(s, workspace(p.gpu), dst.Arg(), src.Arg(), spmd.Bool(cufft.Forward))
}

// Inverse enqueues dst = the inverse transform of src on s, for each array. dst may be src.
func (p *Plan[C]) Inverse(s *spmd.Stream, dst, src spmd.Buffer[C]) error {
	if err := fits("Inverse", dst, p.size, src, p.size); err != nil {
		return err
	}
	if err := p.run.Call(s, workspace(p.gpu), dst.Arg(), src.Arg(), spmd.Bool(cufft.Inverse)); err != nil {
		return err
	}
	return p.divide(s, any(dst))
}

// divide enqueues the factor of an inverse.
func (p *shape) divide(s *spmd.Stream, dst any) error {
	by := float64(p.batch) / float64(p.size)
	switch x := dst.(type) {
	case spmd.Buffer[complex64]:
		return launchScaleComplex64(s, x.Len(), x, float32(by))
	case spmd.Buffer[complex128]:
		return launchScaleComplex128(s, x.Len(), x, by)
	case spmd.Buffer[float32]:
		return launchScaleReal(s, x.Len(), x, float32(by))
	case spmd.Buffer[float64]:
		return launchScaleReal(s, x.Len(), x, by)
	}
	return nil
}

// Close ends the use of the plan, whose transforms have run. A second call does nothing.
func (p *Plan[C]) Close() error { return closed(p.run, p.gpu) }

func closed(run *library.Function, gpus ...*cufft.Plan) error {
	err := run.Close()
	for _, p := range gpus {
		if p != nil {
			err = errors.Join(err, p.Close())
		}
	}
	return err
}
