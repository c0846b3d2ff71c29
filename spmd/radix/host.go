package radix

import "unsafe"

// onHost is what radix.cu does, but that a pass in which all keys have one digit is left out.
func onHost[K, V uint32 | uint64](dst, x []K, valuesDst, values []V, kind int) {
	passes := int(unsafe.Sizeof(*new(K)))
	in, out := make([]K, len(x)), make([]K, len(x))
	valuesIn, valuesOut := values, make([]V, len(values))
	var spare []V
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
		if spare == nil {
			spare = make([]V, len(values)) // values may be the destination, and stay as they are
		}
		valuesIn, valuesOut, spare = valuesOut, spare, valuesOut
	}
	for i, k := range in {
		dst[i] = outOf(k, kind)
	}
	copy(valuesDst, valuesIn)
}

// into and outOf change keys to those that have the order of unsigned numbers, and back.
func into[K uint32 | uint64](k K, kind int) K {
	sign := K(1) << (8*unsafe.Sizeof(k) - 1)
	switch {
	case kind == unsigned:
		return k
	case kind == signed:
		return k ^ sign
	}
	infinity := uint64(0x7ff0000000000000)
	if unsafe.Sizeof(k) == 4 {
		infinity = 0x7f800000
	}
	if uint64(k&^sign) > infinity {
		k &^= sign
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
