package optim

/*
#cgo CFLAGS: -O3 -fopenmp-simd
#cgo LDFLAGS: -lm
#include "adamw.h"
*/
import "C"

import (
	"unsafe"
)

func floats(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }

// cAdamW updates elements [lo, hi), see adamw.h.
func cAdamW(p, m, v, g []float32, decay []uint8, hyper []float32, gscale, beta1, beta2, eps, weightDecay float32,
	lo, hi int) {
	C.train_adamw(floats(p), floats(m), floats(v), floats(g), (*C.uint8_t)(unsafe.SliceData(decay)), floats(hyper),
		C.float(gscale), C.float(beta1), C.float(beta2), C.float(eps), C.float(weightDecay), C.long(lo), C.long(hi))
}
