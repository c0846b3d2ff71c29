package nccl

import (
	"bytes"
	"fmt"
	"math"
	"unsafe"

	"lockstep/internal/elem"
)

// value is element i of a rank's input. Sums of them are exact in every type, and products powers
// of two.
func value(t elem.Type, op elem.Op, rank, i int) float64 {
	i %= period
	if op == elem.Prod {
		return float64(1 + (i+i/7+rank)%2)
	}
	v := (i*5 + i/9 + rank*3) % 11
	if t == elem.Uint8 || t == elem.Uint32 || t == elem.Uint64 {
		return float64(v)
	}
	return float64(v - 5)
}

// reduced is element i of the reduction over ranks, in float64.
func reduced(t elem.Type, op elem.Op, ranks, i int) float64 {
	acc := value(t, op, 0, i)
	for r := 1; r < ranks; r++ {
		v := value(t, op, r, i)
		switch op {
		case elem.Prod:
			acc *= v
		case elem.Min:
			acc = math.Min(acc, v)
		case elem.Max:
			acc = math.Max(acc, v)
		default:
			acc += v
		}
	}
	if op == elem.Avg {
		acc /= float64(ranks)
	}
	return acc
}

// encode stores v as one element of t; integers are cut to their width, as they wrap round on the
// GPU.
func encode(t elem.Type, out []byte, v float64) {
	p := unsafe.Pointer(&out[0])
	switch t {
	case elem.Int8, elem.Uint8:
		*(*int8)(p) = int8(int64(v))
	case elem.Int32, elem.Uint32:
		*(*int32)(p) = int32(int64(v))
	case elem.Int64, elem.Uint64:
		*(*int64)(p) = int64(v)
	case elem.Float16:
		*(*elem.F16)(p) = elem.ToF16(float32(v))
	case elem.BFloat16:
		*(*elem.BF16)(p) = elem.ToBF16(float32(v))
	case elem.Float32:
		*(*float32)(p) = float32(v)
	case elem.Float64:
		*(*float64)(p) = v
	}
}

func decode(t elem.Type, in []byte) float64 {
	p := unsafe.Pointer(&in[0])
	switch t {
	case elem.Float16:
		return float64((*(*elem.F16)(p)).Float32())
	case elem.BFloat16:
		return float64((*(*elem.BF16)(p)).Float32())
	case elem.Float32:
		return float64(*(*float32)(p))
	default:
		return *(*float64)(p)
	}
}

// series writes n elements f(from), f(from+1), ... to out; f has the period.
func series(t elem.Type, out []byte, from, n int, f func(i int) float64) {
	size := t.Size()
	for i := range min(n, period) {
		encode(t, out[i*size:], f(from+i))
	}
	for done := period * size; done < n*size; done *= 2 {
		copy(out[done:n*size], out[:done])
	}
}

// load puts n elements into src.
func (r *rig) load(t elem.Type, n int, f func(i int) float64) error {
	series(t, r.host, 0, n, f)
	return r.s.Copy(r.src, r.pinned, n*t.Size())
}

// result runs the collective into dst, where n elements may change, and compares them with want.
// Their rounding may differ by tolerance times the element.
func (r *rig) result(t elem.Type, n int, tolerance float64, want []byte, run func(dst unsafe.Pointer) error) error {
	bytesOf := n * t.Size()
	if err := r.s.Fill(r.dst, 1, unset, bytesOf+guard); err != nil {
		return err
	}
	return r.compare(r.dst, t, n, tolerance, want, run)
}

func (r *rig) compare(
	dst unsafe.Pointer, t elem.Type, n int, tolerance float64, want []byte, run func(dst unsafe.Pointer) error,
) error {
	bytesOf := n * t.Size()
	if err := run(dst); err != nil {
		return err
	}
	if err := r.s.Copy(r.pinned, dst, bytesOf+guard); err != nil {
		return err
	}
	if err := r.s.Synchronize(); err != nil {
		return err
	}
	got := r.host[:bytesOf]
	if dst == r.dst {
		for i, b := range r.host[bytesOf : bytesOf+guard] {
			if b != unset {
				return fmt.Errorf("byte %d behind the result was written", i)
			}
		}
	}
	if bytes.Equal(got, want) {
		return nil
	}
	for i := 0; i < n; i++ {
		a, b := got[i*t.Size():(i+1)*t.Size()], want[i*t.Size():(i+1)*t.Size()]
		if bytes.Equal(a, b) {
			continue
		}
		if tolerance == 0 || math.Abs(decode(t, a)-decode(t, b)) > tolerance*math.Max(math.Abs(decode(t, b)), 1) {
			return fmt.Errorf("element %d of %d is % x, want % x", i, n, a, b)
		}
	}
	return nil
}

// averageError bounds the rounding of an average: NCCL multiplies by 1/ranks before it sums. So
// each of the inputs and each sum is rounded once in a type of 8 (bfloat16), 11 (float16), 24 or 53
// bits.
func averageError(t elem.Type, op elem.Op, ranks int) float64 {
	bits := map[elem.Type]int{elem.BFloat16: 8, elem.Float16: 11, elem.Float32: 24, elem.Float64: 53}[t]
	if op != elem.Avg || bits == 0 {
		return 0
	}
	return 5 * float64(2*ranks) * math.Ldexp(1, -bits) // inputs are at most 5 in size
}
