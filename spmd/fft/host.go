package fft

import (
	"math"
	"math/cmplx"
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

func (v realView) at(i int) float64 {
	if v.double != nil {
		return v.double[i]
	}
	return float64(v.single[i])
}

func (v realView) set(i int, x float64) {
	if v.double != nil {
		v.double[i] = x
	} else {
		v.single[i] = float32(x)
	}
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
// between two. A line of real numbers is one of half as many complex ones, if its number is even.
type lines struct {
	n, stride, count int
	size             int // of the complex transforms
	tables           func() tables
	free             sync.Pool // of *worker: gonum's transforms have memory of their own
}

// worker has the memory of a goroutine: the numbers of a line, and of a longer one behind them.
type worker struct {
	fft        *fourier.CmplxFFT
	line, long []complex128
}

// tables are numbers that the lines of a dimension share.
type tables struct {
	turns         []complex128 // exp(-2 pi i k/n), for lines of real numbers
	chirp, filter []complex128 // of Bluestein's algorithm; nil if gonum's is fast
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
		l := &lines{n: n, stride: stride, count: total / n, size: n}
		isReal := ofReal && d == last
		if isReal {
			l.count = p.size / n
			stride *= n/2 + 1
			if n%2 == 0 {
				l.size = n / 2
			}
		} else {
			stride *= n
		}
		l.tables = sync.OnceValue(func() tables { return tablesOf(n, l.size, isReal) })
		l.free.New = func() any {
			w := &worker{line: make([]complex128, l.size)}
			if t := l.tables(); t.chirp != nil {
				w.long = make([]complex128, len(t.filter))
			}
			w.fft = fourier.NewCmplxFFT(max(len(w.line), len(w.long)))
			return w
		}
		p.lines[d] = l
	}
}

// gonum's time grows with the sum of the prime factors, of which smallFactor is the largest.
const smallFactor = 50

// tablesOf makes the tables of transforms of size numbers, for lines of n.
func tablesOf(n, size int, ofReal bool) (t tables) {
	turn := func(k, of int) complex128 { return cmplx.Rect(1, -2*math.Pi*float64(k)/float64(of)) }
	if ofReal && n%2 == 0 {
		t.turns = make([]complex128, size/2+1)
		for k := range t.turns {
			t.turns[k] = turn(k, n)
		}
	}
	if without(size, smallFactor) == 1 {
		return t
	}
	m := 2*size - 1 // a convolution of two lines, without their wrapping
	for without(m, 5) > 1 {
		m++
	}
	t.chirp, t.filter = make([]complex128, size), make([]complex128, m)
	square := 0 // of k, modulo twice the size
	for k := range t.chirp {
		t.chirp[k] = turn(square, 2*size)
		t.filter[k] = cmplx.Conj(t.chirp[k]) / complex(float64(m), 0)
		t.filter[(m-k)%m] = t.filter[k]
		square = (square + 2*k + 1) % (2 * size)
	}
	fourier.NewCmplxFFT(m).Coefficients(t.filter, t.filter)
	return t
}

// without returns n without its prime factors up to most.
func without(n, most int) int {
	for p := 2; p <= most; p++ {
		for n%p == 0 {
			n /= p
		}
	}
	return n
}

// transform transforms the line of w, if it has a large prime factor as a convolution with a chirp.
//
// Source: Bluestein: A linear filtering approach to the computation of discrete Fourier transform
// (1970).
func (w *worker) transform(t tables, inverse bool) {
	switch {
	case t.chirp == nil && inverse:
		w.fft.Sequence(w.line, w.line)
		return
	case t.chirp == nil:
		w.fft.Coefficients(w.line, w.line)
		return
	case inverse:
		conjugate(w.line)
	}
	clear(w.long[len(w.line):])
	for k, c := range t.chirp {
		w.long[k] = w.line[k] * c
	}
	w.fft.Coefficients(w.long, w.long)
	for k, f := range t.filter {
		w.long[k] *= f
	}
	w.fft.Sequence(w.long, w.long)
	for k, c := range t.chirp {
		w.line[k] = w.long[k] * c
	}
	if inverse {
		conjugate(w.line)
	}
}

func conjugate(v []complex128) {
	for k, z := range v {
		v[k] = cmplx.Conj(z)
	}
}

// each calls fn for each line on the cores of the rank, with the line's number and the place of its
// first element. step is the distance of lines that are neighbours in a block of them.
func (l *lines) each(step int, fn func(w *worker, line, first int)) {
	host.Parallel(l.count, max(1, 4096/l.n), func(lo, hi int) {
		w := l.free.Get().(*worker)
		for k := lo; k < hi; k++ {
			fn(w, k, k/l.stride*step*l.stride+k%l.stride)
		}
		l.free.Put(w)
	})
}

func (l *lines) along(dst, src view, inverse bool) {
	l.each(l.n, func(w *worker, _, first int) {
		for i := range w.line {
			w.line[i] = src.at(first + i*l.stride)
		}
		w.transform(l.tables(), inverse)
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
		t, from, to, h := l.tables(), line*l.n, line*(l.n/2+1), l.size
		if l.n%2 > 0 {
			for i := range w.line {
				w.line[i] = complex(src.at(from+i), 0)
			}
			w.transform(t, cufft.Forward)
			for k, z := range w.line[:l.n/2+1] {
				dst.set(to+k, z)
			}
			return
		}
		for i := range w.line { // even places and odd ones
			w.line[i] = complex(src.at(from+2*i), src.at(from+2*i+1))
		}
		w.transform(t, cufft.Forward)
		for k, turn := range t.turns {
			a, b := w.line[k], cmplx.Conj(w.line[(h-k)%h])
			even, odd := (a+b)/2, turn*((a-b)*-0.5i)
			dst.set(to+k, even+odd)
			dst.set(to+h-k, cmplx.Conj(even-odd))
		}
	})
	for d := last - 1; d >= 0; d-- {
		p.lines[d].along(dst, dst, cufft.Forward)
	}
}

// backOnHost overwrites src where there are several dimensions.
func (p *shape) backOnHost(dst realView, src view) {
	last := len(p.dims) - 1
	for d := range last {
		p.lines[d].along(src, src, cufft.Inverse)
	}
	l := p.lines[last]
	l.each(l.n, func(w *worker, line, _ int) {
		t, from, to, h := l.tables(), line*(l.n/2+1), line*l.n, l.size
		first, last := real(src.at(from)), real(src.at(from+l.n/2)) // whose imaginary parts do not count
		if l.n%2 > 0 {
			w.line[0] = complex(first, 0)
			for k := 1; k <= l.n/2; k++ {
				w.line[k] = src.at(from + k)
				w.line[l.n-k] = cmplx.Conj(w.line[k])
			}
			w.transform(t, cufft.Inverse)
			for i, z := range w.line {
				dst.set(to+i, real(z))
			}
			return
		}
		w.line[0] = complex(first+last, first-last)
		for k := 1; k < len(t.turns); k++ {
			a, b := src.at(from+k), cmplx.Conj(src.at(from+h-k))
			even, odd := a+b, cmplx.Conj(t.turns[k])*(a-b)*1i
			w.line[k] = even + odd
			w.line[(h-k)%h] = cmplx.Conj(even - odd)
		}
		w.transform(t, cufft.Inverse)
		for i, z := range w.line {
			dst.set(to+2*i, real(z))
			dst.set(to+2*i+1, imag(z))
		}
	})
}
