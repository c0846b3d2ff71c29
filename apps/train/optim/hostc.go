package optim

/*
#cgo CFLAGS: -O3 -fopenmp-simd
#cgo LDFLAGS: -lm
#include "adamw.h"
#include "muon.h"
*/
import "C"

import (
	"unsafe"
)

func floats(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }

// The loops of Muon, on slices of one length; muon.h says what they compute.

func cMuonMomentum(m, g []float32, gscale, momentum float32) float64 {
	return float64(C.train_muon_momentum(floats(m), floats(g), C.float(gscale), C.float(momentum), C.long(len(m))))
}

func cMuonDirection(x, m, g []float32, gscale, momentum, scale float32) {
	C.train_muon_direction(floats(x), floats(m), floats(g), C.float(gscale), C.float(momentum), C.float(scale), C.long(len(x)))
}

func cMuonUpdate(p, x []float32, rate, decay float32) {
	C.train_muon_update(floats(p), floats(x), C.float(rate), C.float(decay), C.long(len(p)))
}

// cAdamW updates elements [lo, hi); adamw.h says how.
func cAdamW(p, m, v, g []float32, decay []uint8, hyper []float32, gscale, beta1, beta2, eps, weightDecay float32, lo, hi int) {
	C.train_adamw(floats(p), floats(m), floats(v), floats(g), (*C.uint8_t)(unsafe.SliceData(decay)), floats(hyper),
		C.float(gscale), C.float(beta1), C.float(beta2), C.float(eps), C.float(weightDecay), C.long(lo), C.long(hi))
}
