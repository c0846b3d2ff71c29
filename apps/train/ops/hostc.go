package ops

/*
#cgo CFLAGS: -O3 -fopenmp-simd
#cgo LDFLAGS: -lm
#include "adamw.h"
#include "decode.h"
#include "kernels.h"
#include "modern.h"
*/
import "C"

import (
	"unsafe"
)

// These are the wrappers of the C loops, whose headers say what they compute. lo and hi are bounds
// within the slices: the callers, host functions of kernels, have compared the lengths. An empty
// slice is NULL.

func floats(x []float32) *C.float {
	if len(x) == 0 {
		return nil
	}
	return (*C.float)(unsafe.SliceData(x))
}

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

func cEmbed(out []float32, tokens []int32, wte []float32, c, lo, hi int) {
	C.modern_embed(floats(out), ints(tokens), floats(wte), long(c), long(lo), long(hi))
}

func cEmbedBackward(d []float32, tokens []int32, wte []float32, c, lo, hi int) {
	C.modern_embed_backward(floats(d), ints(tokens), floats(wte), long(c), long(lo), long(hi))
}

func cNorm(out, sum, x, kept, skip []float32, c, lo, hi int) {
	C.modern_norm(floats(out), floats(sum), floats(x), floats(kept), floats(skip), long(c), long(lo), long(hi))
}

func cNormBackward(d, dkept, sums, dnorm, x, kept, above, skip []float32, c int, add bool, lo, hi int) {
	C.modern_norm_backward(floats(d), floats(dkept), floats(sums), floats(dnorm), floats(x), floats(kept),
		floats(above), floats(skip), long(c), truth(add), long(lo), long(hi))
}

func cHeads(out, qkv []float32, tokens []int32, table, mix, turn []float32, t, heads, size int, norm bool,
	scale float32, lo, hi int) {
	C.modern_heads(floats(out), floats(qkv), ints(tokens), floats(table), floats(mix), floats(turn), long(t),
		long(heads), long(size), truth(norm), C.float(scale), long(lo), long(hi))
}

func cHeadsBackward(d, dtable, sums, qkv []float32, tokens []int32, table, mix, turn []float32, t, heads, size int,
	norm bool, scale float32, fresh bool, lo, hi int) {
	C.modern_heads_backward(floats(d), floats(dtable), floats(sums), floats(qkv), ints(tokens), floats(table),
		floats(mix), floats(turn),
		long(t), long(heads), long(size), truth(norm), C.float(scale), truth(fresh), long(lo), long(hi))
}

func cDecodeAttend(out, scores, qkv, keys, values []float32, place, nh, hs, seq, lo, hi int) {
	C.train_decode_attend(floats(out), floats(scores), floats(qkv), floats(keys), floats(values), long(place), long(nh),
		long(hs), long(seq), long(lo), long(hi))
}

func cAdamW(p, m, v, g []float32, decay []uint8, hyper []float32, gscale, beta1, beta2, eps, weightDecay float32,
	lo, hi int) {
	C.train_adamw(floats(p), floats(m), floats(v), floats(g), (*C.uint8_t)(unsafe.SliceData(decay)), floats(hyper),
		C.float(gscale), C.float(beta1), C.float(beta2), C.float(eps), C.float(weightDecay), C.long(lo), C.long(hi))
}
