// Package commtest has what tests of collectives and messages share: memory with guards, input of
// ranks, references in Go's own arithmetic, runs of all calls of a communicator, and devices of
// ranks.
package commtest

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// Ranks is the part of a communicator that messages of tests need.
type Ranks interface {
	Rank() int
	Size() int
}

// Memory is n elements between two Guards, which a call must not touch.
type Memory[T elem.Elem] struct {
	All []T // with the guards
	N   int
}

// Guards is the number of elements before and behind a Memory.
const Guards = 3

// Alloc returns n elements. All of them, and the guards, are 99.
func Alloc[T elem.Elem](n int) Memory[T] {
	m := Memory[T]{make([]T, n+2*Guards), n}
	for i := range m.All {
		m.All[i] = T(99)
	}
	return m
}

// Data returns the elements between the guards.
func (m Memory[T]) Data() []T { return m.All[Guards : Guards+m.N] }

// Ptr returns the address of the first element, or nil, which callers may pass.
func (m Memory[T]) Ptr() unsafe.Pointer { return Ptr(m.Data()) }

// Ptr returns the address of the first element, or nil if there is none.
func Ptr[T any](s []T) unsafe.Pointer {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Pointer(&s[0])
}

// Intact reports whether nothing was written to the guards.
func (m Memory[T]) Intact() bool {
	for i := range Guards {
		if m.All[i] != T(99) || m.All[Guards+m.N+i] != T(99) {
			return false
		}
	}
	return true
}

func bits[T elem.Elem](x T) elem.Bits { return elem.BitsOf(x) }

// isNaN reports whether an element is a NaN.
func isNaN[T elem.Elem](x T) bool {
	switch x := any(x).(type) {
	case elem.F16:
		return x&0x7fff > 0x7c00
	case elem.BF16:
		return x&0x7fff > 0x7f80
	}
	return x != x
}

// Same fails the test unless the Memory holds want, bit by bit, between intact Guards. All NaNs are
// equal. So are zero parts of complex numbers, whose sign depends on the order of products.
func (m Memory[T]) Same(t *testing.T, c Ranks, want []T, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if !m.Intact() {
		t.Fatalf("rank %d of %d: %s of %v: wrote outside of dst", c.Rank(), c.Size(), what, elem.Of[T]())
	}
	if bytes.Equal(raw(m.Data()), raw(want)) {
		return
	}
	for i, got := range m.Data() {
		if bits(got) != bits(want[i]) && !(isNaN(got) && isNaN(want[i])) &&
			!(elem.Of[T]().Complex() && got == want[i]) {
			t.Fatalf("rank %d of %d: %s of %d %v: [%d] is %v, want %v (%#x, %#x)",
				c.Rank(), c.Size(), what, m.N, elem.Of[T](), i, got, want[i], bits(got), bits(want[i]))
		}
	}
}

// raw returns the memory of elements.
func raw[T elem.Elem](s []T) []byte {
	var one T
	return unsafe.Slice((*byte)(Ptr(s)), len(s)*int(unsafe.Sizeof(one)))
}

// Must is testkit.Must.
var Must = testkit.Must

// value returns element i of a rank's input. Sums and products of four floats are exact in float32,
// but sums of the 16-bit types are not representable in them: only one rounding, at the end, gives
// the reference.
func value[T elem.Elem](rank, i int) T {
	h := uint64(rank*7919+i+1) * 0x9e3779b97f4a7c15
	h ^= h >> 29
	var z T
	switch p := any(&z).(type) {
	case *elem.F16:
		*p = elem.ToF16(fewBits(h))
	case *elem.BF16:
		*p = elem.ToBF16(fewBits(h))
	case *float32:
		*p = float32(int(h%33) - 16)
	case *float64:
		*p = float64(int(h%33) - 16)
	case *complex64:
		*p = complex(float32(int(h%9)-4), float32(int(h>>8%9)-4))
	case *complex128:
		*p = complex(float64(int(h%9)-4), float64(int(h>>8%9)-4))
	default: // all bits, so that integers wrap round
		bits := h
		z = *(*T)(unsafe.Pointer(&bits))
	}
	return z
}

// fewBits returns a number of five significant bits. Sizes differ very much.
func fewBits(h uint64) float32 {
	f := float32(h>>8%31+1) / float32(uint(1)<<(h>>16%11))
	if h&1 == 1 {
		return -f
	}
	return f
}

// Input returns what a rank gives to a call: n values that depend on it.
func Input[T elem.Elem](rank, n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = value[T](rank, i)
	}
	return s
}

// Values returns the input of each rank: n elements. Input is the most common.
type Values[T elem.Elem] func(rank, n int) []T

// HasExtremes reports whether Extremes are input for an operation: for Min and Max of floats.
func HasExtremes[T elem.Elem](op elem.Op) bool {
	return (op == elem.Min || op == elem.Max) && elem.Of[T]() >= elem.Float16
}

// Extremes are the hard cases for the order of floats: a NaN on one rank, zeros of both signs, and
// anything with anything.
func Extremes[T elem.Elem](size int) Values[T] {
	nan := float32(math.NaN())
	all := []float32{nan, 0, float32(math.Copysign(0, -1)), 1, -2, float32(math.Inf(1)), float32(math.Inf(-1)),
		math.Float32frombits(math.Float32bits(nan) | 1<<31 | 1<<17)}
	return func(rank, n int) []T {
		s := make([]T, n)
		for i := range s {
			h := uint64(rank*7919+i+1) * 0x9e3779b97f4a7c15 >> 32
			x := all[h%8]
			switch i % 3 {
			case 0:
				if x = float32(rank + i); (i/3+n)%size == rank {
					x = nan
				}
			case 1:
				x = all[1+h%2]
			}
			switch p := any(&s[i]).(type) {
			case *elem.F16:
				*p = elem.ToF16(x)
			case *elem.BF16:
				*p = elem.ToBF16(x)
			case *float32:
				*p = x
			case *float64:
				*p = float64(x)
			}
		}
		return s
	}
}

// Hold returns a Memory with some values.
func Hold[T elem.Elem](values []T) Memory[T] {
	m := Alloc[T](len(values))
	copy(m.Data(), values)
	return m
}

// Filled returns a Memory with the Input of a rank.
func Filled[T elem.Elem](rank, n int) Memory[T] { return Hold(Input[T](rank, n)) }

// Reduced returns op over all ranks of n elements, from Go's own arithmetic: integers wrap,
// floats are float64.
func (v Values[T]) Reduced(size, n int, op elem.Op) []T {
	in := make([][]T, size)
	for r := range in {
		in[r] = v(r, n)
	}
	out, each := make([]T, n), make([]T, size)
	for i := range out {
		for r := range each {
			each[r] = in[r][i]
		}
		out[i] = fold(each, op)
	}
	return out
}

// Reduced returns op over all ranks of the Input.
func Reduced[T elem.Elem](size, n int, op elem.Op) []T {
	return Values[T](Input[T]).Reduced(size, n, op)
}

func fold[T elem.Elem](in []T, op elem.Op) T {
	var out T
	switch in := any(in).(type) {
	case []int8:
		*any(&out).(*int8) = foldInt(in, op)
	case []uint8:
		*any(&out).(*uint8) = foldInt(in, op)
	case []int32:
		*any(&out).(*int32) = foldInt(in, op)
	case []uint32:
		*any(&out).(*uint32) = foldInt(in, op)
	case []int64:
		*any(&out).(*int64) = foldInt(in, op)
	case []uint64:
		*any(&out).(*uint64) = foldInt(in, op)
	case []elem.F16:
		*any(&out).(*elem.F16) = elem.ToF16(fold32(in, elem.F16.Float32, op))
	case []elem.BF16:
		*any(&out).(*elem.BF16) = elem.ToBF16(fold32(in, elem.BF16.Float32, op))
	case []float32:
		*any(&out).(*float32) = fold32(in, func(x float32) float32 { return x }, op)
	case []float64:
		f := foldFloat(in, func(x float64) float64 { return x }, op)
		if op == elem.Avg {
			f /= float64(len(in))
		}
		*any(&out).(*float64) = f
	case []complex64:
		z := foldComplex(in, func(x complex64) complex128 { return complex128(x) }, op)
		*any(&out).(*complex64) = complex(float32(real(z)), float32(imag(z)))
	case []complex128:
		*any(&out).(*complex128) = foldComplex(in, func(x complex128) complex128 { return x }, op)
	}
	return out
}

func foldComplex[T any](in []T, wide func(T) complex128, op elem.Op) complex128 {
	out := wide(in[0])
	for _, x := range in[1:] {
		if op == elem.Prod {
			out *= wide(x)
		} else {
			out += wide(x)
		}
	}
	if op == elem.Avg {
		out = complex(real(out)/float64(len(in)), imag(out)/float64(len(in)))
	}
	return out
}

func foldInt[I int8 | uint8 | int32 | uint32 | int64 | uint64](in []I, op elem.Op) I {
	out := in[0]
	for _, x := range in[1:] {
		switch op {
		case elem.Sum, elem.Avg:
			out += x
		case elem.Prod:
			out *= x
		case elem.Min:
			out = min(out, x)
		case elem.Max:
			out = max(out, x)
		}
	}
	if op == elem.Avg {
		out /= I(len(in))
	}
	return out
}

func fold32[T any](in []T, f func(T) float32, op elem.Op) float32 {
	out := foldFloat(in, func(x T) float64 { return float64(f(x)) }, op)
	if out != float64(float32(out)) && out == out {
		panic(fmt.Sprintf("the test's input is not exact in float32: %v", out))
	}
	if op == elem.Avg {
		return float32(out) / float32(len(in))
	}
	return float32(out)
}

func foldFloat[T any](in []T, f func(T) float64, op elem.Op) float64 {
	out := f(in[0])
	for _, x := range in[1:] {
		switch op {
		case elem.Sum, elem.Avg:
			out += f(x)
		case elem.Prod:
			out *= f(x)
		case elem.Min:
			out = min(out, f(x))
		case elem.Max:
			out = max(out, f(x))
		}
	}
	return out
}
