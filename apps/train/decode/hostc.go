package decode

/*
#cgo CFLAGS: -O3 -fopenmp-simd
#cgo LDFLAGS: -lm
#include "decode.h"
*/
import "C"

import (
	"unsafe"
)

// These are the wrappers of decode.c, which says what they compute. lo and hi are bounds within the
// slices.

func at(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }

func cDecodeAttend(out, scores, qkv, keys, values []float32, place, nh, hs, seq, lo, hi int) {
	C.train_decode_attend(at(out), at(scores), at(qkv), at(keys), at(values), C.long(place), C.long(nh), C.long(hs),
		C.long(seq), C.long(lo), C.long(hi))
}
