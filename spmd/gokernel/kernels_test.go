package gokernel_test

import (
	"math"
	"math/bits"
	"math/cmplx"

	"lockstep/spmd"
)

// There is a kernel for each part of the Go that kernels may use. Tests run each as Go and as the
// CUDA source that was made of it.
//
//go:generate go run lockstep/spmd/spmdgen

const (
	first = iota + 1
	second
	scale = 1.5 * second
)

type float interface{ float32 | float64 }

// axpy is like most kernels.
//
//spmd:kernel
func axpy[T float](i int, y []T, a T, x []T) {
	y[i] += a * x[i]
}

// gated may have nothing to do, changes some elements of x, and may be given no h.
//
//spmd:kernel
func gated(i int, x []float32, h []spmd.BF16, gate *float32) {
	if math.IsNaN(float64(*gate)) {
		return
	}
	if x[i] < 0 {
		x[i] *= *gate
	}
	if len(h) > 0 {
		h[i] = spmd.ToBF16(x[i])
	}
}

// twice runs as another function on the host.
//
//spmd:kernel
//spmd:host twiceOnHost
func twice(i int, y, x []float64) (sum float64) {
	y[i] = 2 * x[i]
	return y[i]
}

func twiceOnHost(lo, hi int, y, x []float64) (sum float64) {
	for i, v := range x[lo:hi] {
		y[lo+i] = 2 * v
		sum += 2 * v
	}
	return sum
}

// line reads one buffer and writes another.
//
//spmd:kernel
func line[T float](i int, y, x []T, a, b T) {
	y[i] = a*x[i] + b
}

// update has pointers to one element, and returns numbers to be added up.
//
//spmd:kernel
func update(i int, x, r, p, q []float64, rr, pq *float64) (sum float64) {
	alpha := 0.0
	if *pq != 0 {
		alpha = *rr / *pq
	}
	x[i] += alpha * p[i]
	r[i] -= alpha * q[i]
	return r[i] * r[i]
}

// heat is a stencil of seven points.
//
//spmd:kernel
func heat(i, j, k int, next, u []float32, ni, nj, nk int, rate float32) {
	c := (i*nj+j)*nk + k
	if i == 0 || j == 0 || k == 0 || i == ni-1 || j == nj-1 || k == nk-1 {
		next[c] = u[c]
		return
	}
	next[c] = u[c] + rate*(u[c-nj*nk]+u[c+nj*nk]+u[c-nk]+u[c+nk]+u[c-1]+u[c+1]-6*u[c])
}

// rowMax has two indices and a maximum.
//
//spmd:kernel max
func rowMax(i, j int, x []float32, columns int) float32 {
	return x[i*columns+j]
}

// product and least are the other operations.
//
//spmd:kernel prod
func product(i int, x []int64) int64 { return x[i] }

//spmd:kernel min
func least(i, j, k int, x []uint32, nj, nk int) uint32 { return x[(i*nj+j)*nk+k] }

// integers wraps, shifts beyond the width, and divides.
//
//spmd:kernel
func integers(i int, out []int64, small []int8, x []int64, shift uint) {
	v := x[i]
	n := small[i]
	n *= 3
	n += 100
	n <<= shift % 9
	w := uint8(v) * 7
	s := v << shift >> (shift / 2)
	s ^= int64(w&^5) | int64(n)
	if v != 0 {
		s += 1_000_003/v + 77%v
	}
	s += -v * math.MaxInt32 * 65537
	h := uint32(s>>3)*2654435761 ^ uint32(first)
	small[i] = n - int8(h)
	out[i] = s + int64(bits.RotateLeft32(h, int(v%40))) + int64(bits.Len64(uint64(v))) + int64(bits.OnesCount8(w)) +
		int64(bits.TrailingZeros32(h)) + int64(bits.LeadingZeros16(uint16(h))) +
		int64(bits.ReverseBytes32(h)) + int64(bits.Reverse8(w))
}

// floats has the part of package math whose bits are the same everywhere.
//
//spmd:kernel
func floats(i int, out, x []float64, single []float32) {
	v := x[i]
	r := math.Sqrt(math.Abs(v)) + math.Floor(v) - math.Ceil(v/3) + math.Trunc(v*scale) + math.Round(v) +
		math.RoundToEven(v/2)
	r += math.FMA(v, 2, 1) + math.Copysign(1, v) + min(v, 0.5, r) + max(v, -0.5)
	if math.IsNaN(v) || math.IsInf(v, 1) || math.Signbit(v) {
		r = math.Float64frombits(math.Float64bits(v) ^ 1<<63)
	}
	out[i] = r
	single[i] = float32(math.Sqrt(float64(single[i]))) + math.Float32frombits(0x3f800000|uint32(i)&0xff)
}

// quotients has complex numbers, of both sizes.
//
//spmd:kernel
func quotients(i int, out, x, y []complex128, single []complex64, a complex128, b complex64) (sum complex128) {
	z, w := x[i], y[i]
	out[i] = z / w
	single[i] = complex64(z)/complex64(w) + b*(1-2i)
	if z != w && real(z) > imag(w) {
		z -= complex(imag(z), -real(w))
		z *= a
	}
	return cmplx.Conj(z)*w + -w
}

// turn is multiplied up.
//
//spmd:kernel prod
func turn[T complex64 | complex128](i int, x []T, a T) T {
	x[i] += a
	return x[i]
}

// point is passed by value, and has methods.
type point struct {
	at     [3]int32
	weight float32
	on     bool
}

func (p point) dot(q *point) (n int32) {
	for i, v := range p.at {
		n += v * q.at[i]
	}
	return
}

func (p *point) move(by int32) {
	for i := range p.at {
		p.at[i] += by
	}
}

// drift has a slice of structs.
//
//spmd:kernel
func drift(i int, points []point, by int32) (on int64) {
	p := points[i]
	p.move(by)
	points[i] = p
	points[i].weight *= 2
	if points[i].on {
		on = int64(p.at[0])
	}
	return on
}

// divide has two results.
func divide(a, b int32) (quotient, remainder int32) {
	if b == 0 {
		return 0, a
	}
	return a / b, a % b
}

// control has every statement.
//
//spmd:kernel
func control(i int, out []int32, x []int32, p point, flip bool) {
	q := point{at: [3]int32{1, x[i], 3}, on: !flip}
	q.move(2)
	n := p.dot(&q)
	quotient, rest := divide(n, x[i])
	quotient, rest = rest, quotient
	var table [4]int32
	for k := range table {
		table[k] = int32(k) * rest
	}
outer:
	for a := 0; a < 10; a++ {
		for b := range 5 {
			switch {
			case b == 3 && a > 4:
				break outer
			case b == 2:
				continue outer
			case a == 1:
				//lint:ignore SA4011 a break that leaves the switch alone is in the language
				break
			default:
				n += int32(a * b)
			}
			n++
		}
		n += 1000
	}
	switch k := x[i] % 5; k {
	case 0, 1:
		n += table[k+1]
	case 2:
		if p.on && q.on {
			break
		}
		n--
	default:
		n = -n
	}
	if m := n % 7; m > 3 {
		n += m
	} else if m < -3 {
		n -= m
	} else {
		n ^= quotient
	}
	out[i] = n
}

// furthest returns the number that is furthest from 0, with its sign; of two the first.
//
//spmd:kernel reduce=further
func furthest[T float](i int, x []T) (most T) { return x[i] }

func further[T float](a, b T) T {
	if max(b, -b) > max(a, -a) {
		return b
	}
	return a
}

// mixture is no sum: the order of indices matters.
//
//spmd:kernel reduce=mixed
func mixture(i int, seed uint32) uint32 { return uint32(i)*2654435761 ^ seed }

func mixed(a, b uint32) uint32 { return a*31 + b }

// rows works on a part of a slice, which it writes through.
//
//spmd:kernel
func rows(i int, out, x []float32, columns int) {
	in, to := x[i*columns:(i+1)*columns], out[i*columns:i*columns+columns]
	sum := total(in)
	for k, v := range in {
		to[k] = v / sum
	}
}

func total[T float](x []T) (sum T) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// small has the floats for storage.
//
//spmd:kernel
func small(i int, h []spmd.BF16, f []spmd.F16, x []float32) {
	v := h[i].Float32()*2 + f[i].Float32()
	h[i], f[i] = spmd.ToBF16(v), spmd.ToF16(v/3)
	x[i] = v
}

// hits counts random points in a quarter circle, and has a histogram of them.
//
//spmd:kernel
func hits(i int, bins []uint64, seed uint64) (inside int64) {
	x, y := uint64(spmd.UniformBits(seed, 2*uint64(i))), uint64(spmd.UniformBits(seed, 2*uint64(i)+1))
	spmd.AtomicAdd(&bins[int(x>>20)%len(bins)], 1)
	if x*x+y*y < 1<<48 {
		inside = 1
	}
	return inside
}

// shrink mostly does nothing, and then takes no time.
//
//spmd:kernel loop
func shrink(i int, z []complex128, by *float64) {
	if *by == 1 {
		return
	}
	z[i] *= complex(*by, 0)
}
