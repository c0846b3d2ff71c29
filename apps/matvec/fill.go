package main

import "lockstep/spmd"

//go:generate go run lockstep/spmd/spmdgen

// fillFloat32 sets element j of line i to a number of the sequence that seed names. Lines are
// stride elements apart.
//
//spmd:kernel
func fillFloat32(i, j int, w []float32, stride int, seed, start, lineStep, elementStep uint64) {
	w[i*stride+j] = numberAt(seed, start+uint64(i)*lineStep+uint64(j)*elementStep)
}

// fillBF16 is fillFloat32, rounded.
//
//spmd:kernel
func fillBF16(i, j int, w []spmd.BF16, stride int, seed, start, lineStep, elementStep uint64) {
	w[i*stride+j] = spmd.ToBF16(numberAt(seed, start+uint64(i)*lineStep+uint64(j)*elementStep))
}

// numberAt returns a number from 0 to 1 that depends only on the seed and its place.
func numberAt(seed, i uint64) float32 { return float32(spmd.UniformBits(seed, i)) / (1 << 24) }

// filling is lines of elements, and the places of their numbers in the sequence of a seed: that of
// the first, and the steps from line to line and from element to element.
type filling struct {
	lines, length, stride        int
	seed                         uint64
	start, lineStep, elementStep int
}

// fill enqueues the kernel of a type.
func fill[T number](s *spmd.Stream, b spmd.Buffer[T], f filling) error {
	at, line, element := uint64(f.start), uint64(f.lineStep), uint64(f.elementStep)
	if b, ok := any(b).(spmd.Buffer[float32]); ok {
		return launchFillFloat32(s, f.lines, f.length, b, f.stride, f.seed, at, line, element)
	}
	return launchFillBF16(s, f.lines, f.length, any(b).(spmd.Buffer[spmd.BF16]), f.stride, f.seed, at, line, element)
}
