package vector

import (
	"slices"
	"unsafe"
)

// scratch is memory that sorts on the host use one after another.
type scratch[K, V uint32 | uint64] struct {
	keys   []K
	values []V
}

// halves returns two vectors of n elements. Their memory m grows when it is too small.
func halves[T any](m *[]T, n int) (a, b []T) {
	*m = slices.Grow((*m)[:0], 2*n)[:2*n]
	return (*m)[:n], (*m)[n:]
}

// onHost does the work of sort.cu, but leaves out a pass in which all keys have one digit.
func (m *scratch[K, V]) onHost(dst, x []K, valuesDst, values []V, kind int) {
	passes := int(unsafe.Sizeof(*new(K)))
	in, out := halves(&m.keys, len(x))
	valuesOut, spare := halves(&m.values, len(values))
	valuesIn := values // which may be the destination, and are unchanged
	var counts [8][digits]int
	for i, k := range x {
		k = into(k, kind)
		in[i] = k
		for p := range passes {
			counts[p][k>>(8*p)&(digits-1)]++
		}
	}
	for p := range passes {
		count := &counts[p]
		if count[in[0]>>(8*p)&(digits-1)] == len(in) {
			continue
		}
		at := 0
		for d, n := range count {
			count[d], at = at, at+n
		}
		for i, k := range in {
			d := k >> (8 * p) & (digits - 1)
			to := count[d]
			count[d]++
			out[to] = k
			if len(values) > 0 {
				valuesOut[to] = valuesIn[i]
			}
		}
		in, out = out, in
		valuesIn, valuesOut, spare = valuesOut, spare, valuesOut
	}
	for i, k := range in {
		dst[i] = outOf(k, kind)
	}
	copy(valuesDst, valuesIn)
}

// into and outOf change keys to unsigned numbers of the same order, and back.
func into[K uint32 | uint64](k K, kind int) K {
	sign := K(1) << (8*unsafe.Sizeof(k) - 1)
	switch {
	case kind == unsigned:
		return k
	case kind == signed:
		return k ^ sign
	}
	infinity, nan := uint64(0x7ff0000000000000), uint64(0x7ff8000000000000)
	if unsafe.Sizeof(k) == 4 {
		infinity, nan = 0x7f800000, 0x7fc00000
	}
	if uint64(k&^sign) > infinity {
		k = K(nan)
	}
	if k&sign != 0 {
		return ^k
	}
	return k ^ sign
}

func outOf[K uint32 | uint64](k K, kind int) K {
	sign := K(1) << (8*unsafe.Sizeof(k) - 1)
	switch {
	case kind == unsigned:
		return k
	case kind == signed || k&sign != 0:
		return k ^ sign
	}
	return ^k
}
