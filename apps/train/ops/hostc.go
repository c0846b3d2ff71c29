package ops

/*
#cgo CFLAGS: -O3 -fopenmp-simd
#cgo LDFLAGS: -lm
#include "kernels.h"
*/
import "C"

import (
	"unsafe"
)

// These are the wrappers of kernels.c, which says what they compute. lo and hi are bounds within
// the slices: the callers, host functions in kernels.go, have compared the lengths.

func floats(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }

func ints(x []int32) *C.int32_t { return (*C.int32_t)(unsafe.SliceData(x)) }

func long(n int) C.long { return C.long(n) }

func truth(b bool) (i C.int) {
	if b {
		i = 1
	}
	return i
}

func cEncoderForward(out []float32, tokens []int32, wte, wpe []float32, t, c, first, own int, positions bool,
	lo, hi int) {
	C.train_encoder_forward(floats(out), ints(tokens), floats(wte), floats(wpe), long(t), long(c), long(first),
		long(own), truth(positions), long(lo), long(hi))
}

func cEncoderBackward(dwte, dwpe, dout []float32, p plan, t, c, positions, first, own int, acc bool, lo, hi int) {
	C.train_encoder_backward(floats(dwte), floats(dwpe), floats(dout), ints(p.order),
		(*C.struct_token_part)(unsafe.Pointer(unsafe.SliceData(p.parts))), long(int(p.count)), long(len(p.order)),
		long(t), long(c), long(positions), long(first), long(own), truth(acc), long(lo), long(hi))
}

func cLayerNormForward(out, mean, rstd, x, weight, bias []float32, c, lo, hi int) {
	C.train_layernorm_forward(floats(out), floats(mean), floats(rstd), floats(x), floats(weight), floats(bias), long(c),
		long(lo), long(hi))
}

func cLayerNormBackwardInput(dx, dout, x, weight, mean, rstd []float32, c int, add bool, lo, hi int) {
	C.train_layernorm_backward_input(floats(dx), floats(dout), floats(x), floats(weight), floats(mean), floats(rstd),
		long(c), truth(add), long(lo), long(hi))
}

func cLayerNormBackwardParams(dweight, dbias, dout, x, mean, rstd []float32, n, c int, acc bool, lo, hi int) {
	C.train_layernorm_backward_params(floats(dweight), floats(dbias), floats(dout), floats(x), floats(mean),
		floats(rstd), long(n), long(c), truth(acc), long(lo), long(hi))
}

func cBiasBackward(dbias, dy []float32, n, c int, acc bool, lo, hi int) {
	C.train_bias_backward(floats(dbias), floats(dy), long(n), long(c), truth(acc), long(lo), long(hi))
}

func cClassifier(losses, logits []float32, targets []int32, v, vp int, scale float32, grad bool, lo, hi int) {
	C.train_classifier(floats(losses), floats(logits), ints(targets), long(v), long(vp), C.float(scale), truth(grad),
		long(lo), long(hi))
}

func cLogitSums(sums, logits []float32, targets []int32, v, vp, first, lo, hi int) {
	C.train_logit_sums(floats(sums), floats(logits), ints(targets), long(v), long(vp), long(first), long(lo), long(hi))
}

func cClassifierOfParts(losses, logits []float32, targets []int32, all []float32, parts, n, v, vp, first int,
	scale float32, grad bool, lo, hi int) {
	C.train_classifier_of_parts(floats(losses), floats(logits), ints(targets), floats(all), long(parts), long(n),
		long(v), long(vp), long(first), C.float(scale), truth(grad), long(lo), long(hi))
}
