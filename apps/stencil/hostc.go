package main

/*
#cgo CFLAGS: -O3 -fopenmp-simd
#include "stencil.h"
*/
import "C"

import "unsafe"

// These are the wrappers of stencil.c. lo and hi are bounds within the box. The callers, host
// functions in kernels.go, have compared it with the lengths of the slices.

func singles(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }
func doubles(x []float64) *C.double {
	return (*C.double)(unsafe.SliceData(x))
}
func boxed(b *box) *C.struct_box { return (*C.struct_box)(unsafe.Pointer(b)) }

func cStep[T number](out, in []T, centre, beside T, b *box, lo, hi int) {
	switch out := any(out).(type) {
	case []float32:
		C.stencil_step_f32(singles(out), singles(any(in).([]float32)), C.float(centre), C.float(beside), boxed(b),
			C.long(lo), C.long(hi))
	case []float64:
		C.stencil_step_f64(doubles(out), doubles(any(in).([]float64)), C.double(centre), C.double(beside), boxed(b),
			C.long(lo), C.long(hi))
	}
}

func cFrame[T number](out, in, sent, received []T, centre, beside T, b *box, onlyPack, lo, hi int) {
	switch out := any(out).(type) {
	case []float32:
		C.stencil_frame_f32(singles(out), singles(any(in).([]float32)), singles(any(sent).([]float32)),
			singles(any(received).([]float32)),
			C.float(centre), C.float(beside), boxed(b), C.int(onlyPack), C.long(lo), C.long(hi))
	case []float64:
		C.stencil_frame_f64(doubles(out), doubles(any(in).([]float64)), doubles(any(sent).([]float64)),
			doubles(any(received).([]float64)),
			C.double(centre), C.double(beside), boxed(b), C.int(onlyPack), C.long(lo), C.long(hi))
	}
}
