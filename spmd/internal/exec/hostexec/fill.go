package hostexec

import (
	"unsafe"

	"lockstep/host"
	"lockstep/internal/elem"
)

// Grain is the least number of elements that is worth a goroutine.
const Grain = 1 << 16

// Fill sets every element to v. It uses all cores: the first touch of fresh memory is slow, since
// the system clears it.
func Fill[T any](h []T, v T) {
	if len(h) <= Grain {
		fillPart(h, v)
		return
	}
	host.Parallel(len(h), Grain, func(lo, hi int) { fillPart(h[lo:hi], v) })
}

func fillPart[T any](part []T, v T) {
	if len(part) == 0 {
		return
	}
	part[0] = v
	for done := 1; done < len(part); {
		done += copy(part[done:], part[:min(done, 1<<12)]) // from the cache
	}
}

// FillAs fills n elements of a type known at run time with the low bits of v: a
// fill moves bits, so the unsigned type of equal size will do.
func FillAs(t elem.Type, dst unsafe.Pointer, n int, v elem.Bits) {
	switch t.Size() {
	case 1:
		Fill(unsafe.Slice((*uint8)(dst), n), uint8(v[0]))
	case 2:
		Fill(unsafe.Slice((*uint16)(dst), n), uint16(v[0]))
	case 4:
		Fill(unsafe.Slice((*uint32)(dst), n), uint32(v[0]))
	case 8:
		Fill(unsafe.Slice((*uint64)(dst), n), v[0])
	default:
		Fill(unsafe.Slice((*elem.Bits)(dst), n), v)
	}
}
