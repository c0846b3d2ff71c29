package attention

/*
#cgo CFLAGS: -O3 -fopenmp-simd
#cgo LDFLAGS: -lm
#include "simple.h"
*/
import "C"

import "unsafe"

// The loops of simple.c for heads [lo, hi). The result is false if there was no memory for them.

func floats(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }

func hostForward(out, lse, qkv []float32, x dims, lo, hi int) bool {
	return C.attention_forward(floats(out), floats(lse), floats(qkv), C.long(x.t), C.long(x.nh),
		C.long(x.hs), C.long(x.window), C.long(lo), C.long(hi)) == 0
}

func hostBackward(dqkv, dout, out, lse, qkv []float32, x dims, lo, hi int) bool {
	return C.attention_backward(floats(dqkv), floats(dout), floats(out), floats(lse), floats(qkv),
		C.long(x.t), C.long(x.nh), C.long(x.hs), C.long(x.window), C.long(lo), C.long(hi)) == 0
}
