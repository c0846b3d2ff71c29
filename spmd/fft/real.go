package fft

import (
	"fmt"

	"lockstep/cuda/cufft"
	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Real is transforms of real numbers, all of one shape: float32 with complex64, float64 with
// complex128. Otherwise as Plan.
type Real[F float32 | float64, C Complex] struct {
	shape
	half          int // complex elements of all arrays
	run, back     *library.Function
	gpu, inverted *cufft.Plan // nil on the host
}

// NewReal plans transforms of batch arrays of real numbers. Their sizes are dims; the last
// dimension has neighbours in memory. A transform has dims[last]/2+1 complex elements there: the
// others follow from these. Otherwise as New.
func NewReal[F float32 | float64, C Complex](w *spmd.World, dims []int, batch int) (*Real[F, C], error) {
	s, err := newShape("fft.NewReal", dims, batch)
	if err != nil {
		return nil, err
	}
	_, wide := any(F(0)).(float64)
	if wide != double[C]() {
		return nil, fmt.Errorf("%s: fft.NewReal: a transform of %T has no elements of %T", ccall.At(), F(0), C(0))
	}
	n := dims[len(dims)-1]
	p := &Real[F, C]{shape: s, half: s.size / n * (n/2 + 1)}
	forward, inverse := cufft.R2C, cufft.C2R
	if wide {
		forward, inverse = cufft.D2Z, cufft.Z2D
	}
	if p.gpu, err = open(w, "fft.NewReal", forward, dims, batch); err != nil {
		return nil, err
	}
	if p.inverted, err = open(w, "fft.NewReal", inverse, dims, batch); err != nil {
		_ = p.gpu.Close()
		return nil, err
	}
	p.prepare(half)
	p.run = library.New("fft of real numbers", func(c library.Call) error {
		return p.gpu.Run(c.Stream, c.Pointer(0), c.Pointer(1), c.Workspace, cufft.Forward)
	}, func(a spmd.Args) error {
		p.realOnHost(slice[C](a, 0), reals[F](a, 1))
		return nil
	}).Writes(0b1)
	p.back = library.New("fft to real numbers", func(c library.Call) error {
		return p.inverted.Run(c.Stream, c.Pointer(0), c.Pointer(1), c.Workspace, cufft.Inverse)
	}, func(a spmd.Args) error {
		p.backOnHost(reals[F](a, 0), slice[C](a, 1))
		return nil
	}).Writes(0b11)
	library.AtClose(w, p.Close)
	return p, nil
}

func reals[F float32 | float64](a spmd.Args, i int) realView {
	if _, ok := any(F(0)).(float64); ok {
		return realView{double: spmd.ArgSlice[float64](a, i)}
	}
	return realView{single: spmd.ArgSlice[float32](a, i)}
}

// Half returns how many complex elements the transforms of all arrays have.
func (p *Real[F, C]) Half() int { return p.half }

// Forward enqueues dst = the first half of the transform of src on s, for each array. dst and src
// do not overlap.
func (p *Real[F, C]) Forward(s *spmd.Stream, dst spmd.Buffer[C], src spmd.Buffer[F]) error {
	if err := fits("Forward", dst, p.half, src, p.size); err != nil {
		return err
	}
	return p.run.Call(s, workspace(p.gpu), dst.Arg(), src.Arg())
}

// Inverse enqueues dst on s, for each array: src is the first half of its transform. It overwrites
// src. dst and src do not overlap.
func (p *Real[F, C]) Inverse(s *spmd.Stream, dst spmd.Buffer[F], src spmd.Buffer[C]) error {
	if err := fits("Inverse", dst, p.size, src, p.half); err != nil {
		return err
	}
	if err := p.back.Call(s, workspace(p.inverted), dst.Arg(), src.Arg()); err != nil {
		return err
	}
	return p.divide(s, any(dst))
}

// Close ends the use of the plan, as Plan.Close.
func (p *Real[F, C]) Close() error {
	_ = p.back.Close()
	return closed(p.run, p.gpu, p.inverted)
}
