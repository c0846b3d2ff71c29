package transport

import (
	"math"
	"unsafe"

	"lockstep/internal/elem"
)

// fewElements are reduced here: a call into C takes longer.
const fewElements = 8

// few sets n elements at dst to op over src, in the order of src and with the bits of shm.Reduce.
// It reports whether it has the type and the operation.
func few(dst unsafe.Pointer, src []unsafe.Pointer, n int, t elem.Type, op elem.Op) bool {
	if op > elem.Max {
		return false
	}
	switch t {
	case elem.Float32:
		fold[float32](dst, src, n, op)
	case elem.Float64:
		fold[float64](dst, src, n, op)
	case elem.Int32:
		fold[int32](dst, src, n, op)
	case elem.Uint32:
		fold[uint32](dst, src, n, op)
	case elem.Int64:
		fold[int64](dst, src, n, op)
	case elem.Uint64:
		fold[uint64](dst, src, n, op)
	default:
		return false
	}
	return true
}

func fold[T float32 | float64 | int32 | uint32 | int64 | uint64](dst unsafe.Pointer, src []unsafe.Pointer, n int,
	op elem.Op) {
	for i := range unsafe.Slice((*T)(dst), n) {
		v := unsafe.Slice((*T)(src[0]), n)[i]
		for _, p := range src[1:] {
			w := unsafe.Slice((*T)(p), n)[i]
			switch op {
			case elem.Sum:
				v += w
			case elem.Prod:
				v *= w
			case elem.Min:
				v = oneNaN(min(v, w))
			case elem.Max:
				v = oneNaN(max(v, w))
			}
		}
		unsafe.Slice((*T)(dst), n)[i] = v
	}
}

// oneNaN is v, and the NaN of arith.h where v is any.
func oneNaN[T float32 | float64 | int32 | uint32 | int64 | uint64](v T) T {
	if v != v {
		return T(math.Float64frombits(0x7ff8 << 48))
	}
	return v
}
