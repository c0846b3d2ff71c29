package fft

import (
	"sync"

	"gonum.org/v1/gonum/dsp/fourier"

	"lockstep/cuda/cufft"
	"lockstep/host"
)

// The command writes kernels_spmd.go: the kernels in CUDA C++, and the functions that launch them.
//
//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func scaleComplex64(i int, x []complex64, by float32) { x[i] = complex(real(x[i])*by, imag(x[i])*by) }

//spmd:kernel
func scaleComplex128(i int, x []complex128, by float64) { x[i] = complex(real(x[i])*by, imag(x[i])*by) }

//spmd:kernel
func scaleReal[T float32 | float64](i int, x []T, by T) { x[i] *= by }

// view is complex numbers of either size, realView real ones.
type view struct {
	single []complex64
	double []complex128
}

type realView struct {
	single []float32
	double []float64
}

func (v view) at(i int) complex128 {
	if v.double != nil {
		return v.double[i]
	}
	return complex128(v.single[i])
}

func (v view) set(i int, z complex128) {
	if v.double != nil {
		v.double[i] = z
	} else {
		v.single[i] = complex64(z)
	}
}

// lines transforms lines along one dimension, with the number of their elements and the distance
// between two.
type lines struct {
	n, stride, count int
	free             sync.Pool // of *worker: gonum's transforms have memory of their own
}

type worker struct {
	complex *fourier.CmplxFFT
	real    *fourier.FFT
	line    []complex128
	values  []float64
}

// The lines of real numbers have half as many frequencies.
const whole, half = false, true

// prepare makes the lines of each dimension. With half the last dimension has lines of real
// numbers, and the others half as many lines.
func (p *shape) prepare(ofReal bool) {
	last := len(p.dims) - 1
	total, stride := p.size, 1
	if ofReal {
		n := p.dims[last]
		total = p.size / n * (n/2 + 1)
	}
	p.lines = make([]*lines, last+1)
	for d := last; d >= 0; d-- {
		n := p.dims[d]
		l := &lines{n: n, stride: stride}
		isReal := ofReal && d == last
		l.free.New = func() any {
			if isReal {
				return &worker{real: fourier.NewFFT(n), line: make([]complex128, n/2+1), values: make([]float64, n)}
			}
			return &worker{complex: fourier.NewCmplxFFT(n), line: make([]complex128, n)}
		}
		if isReal {
			l.count = p.size / n
			stride *= n/2 + 1
		} else {
			l.count = total / n
			stride *= n
		}
		p.lines[d] = l
	}
}

// each calls fn for all lines, with the first element of each. step leads from one line to its
// neighbour.
func (l *lines) each(step int, fn func(w *worker, line, first int)) {
	host.Parallel(l.count, max(1, 4096/l.n), func(lo, hi int) {
		w := l.free.Get().(*worker)
		for k := lo; k < hi; k++ {
			fn(w, k, k/l.stride*step*l.stride+k%l.stride)
		}
		l.free.Put(w)
	})
}

// along transforms all lines of a dimension.
func (l *lines) along(dst, src view, inverse bool) {
	l.each(l.n, func(w *worker, _, first int) {
		for i := range w.line {
			w.line[i] = src.at(first + i*l.stride)
		}
		if inverse {
			w.complex.Sequence(w.line, w.line)
		} else {
			w.complex.Coefficients(w.line, w.line)
		}
		for i, z := range w.line {
			dst.set(first+i*l.stride, z)
		}
	})
}

func (p *shape) complexOnHost(dst, src view, inverse bool) {
	for d := len(p.dims) - 1; d >= 0; d-- {
		p.lines[d].along(dst, src, inverse)
		src = dst
	}
}

func (p *shape) realOnHost(dst view, src realView) {
	last := len(p.dims) - 1
	l := p.lines[last]
	l.each(l.n, func(w *worker, line, _ int) {
		for i := range w.values {
			if src.double != nil {
				w.values[i] = src.double[line*l.n+i]
			} else {
				w.values[i] = float64(src.single[line*l.n+i])
			}
		}
		w.real.Coefficients(w.line, w.values)
		for i, z := range w.line {
			dst.set(line*len(w.line)+i, z)
		}
	})
	for d := last - 1; d >= 0; d-- {
		p.lines[d].along(dst, dst, cufft.Forward)
	}
}

func (p *shape) backOnHost(dst realView, src view) {
	last := len(p.dims) - 1
	for d := range last {
		p.lines[d].along(src, src, cufft.Inverse)
	}
	l := p.lines[last]
	l.each(l.n, func(w *worker, line, _ int) {
		for i := range w.line {
			w.line[i] = src.at(line*len(w.line) + i)
		}
		w.real.Sequence(w.values, w.line)
		for i, v := range w.values {
			if dst.double != nil {
				dst.double[line*l.n+i] = v
			} else {
				dst.single[line*l.n+i] = float32(v)
			}
		}
	})
}
