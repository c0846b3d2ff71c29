package inproc

import (
	"unsafe"

	"lockstep/internal/elem"
)

// fewElements are added up here: a call into C takes longer.
const fewElements = 8

// addUp sets n elements at dst to their sums over src, in the order of src as shm.Reduce does. It reports whether it has a
// type.
func addUp(dst unsafe.Pointer, src []unsafe.Pointer, n int, t elem.Type) bool {
	switch t {
	case elem.Float32:
		add[float32](dst, src, n)
	case elem.Float64:
		add[float64](dst, src, n)
	case elem.Int32, elem.Uint32:
		add[uint32](dst, src, n)
	case elem.Int64, elem.Uint64:
		add[uint64](dst, src, n)
	default:
		return false
	}
	return true
}

func add[T float32 | float64 | uint32 | uint64](dst unsafe.Pointer, src []unsafe.Pointer, n int) {
	for i := range unsafe.Slice((*T)(dst), n) {
		sum := unsafe.Slice((*T)(src[0]), n)[i]
		for _, p := range src[1:] {
			sum += unsafe.Slice((*T)(p), n)[i]
		}
		unsafe.Slice((*T)(dst), n)[i] = sum
	}
}
