package modern

/*
#cgo CFLAGS: -O3 -fopenmp-simd
#cgo LDFLAGS: -lm
#include "loops.h"
*/
import "C"

import (
	"unsafe"
)

// The wrappers of loops.c, which says what they compute. lo and hi are bounds within what the slices hold; an empty slice
// is NULL.

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

func cEmbed(out []float32, tokens []int32, wte []float32, c, lo, hi int) {
	C.modern_embed(floats(out), ints(tokens), floats(wte), long(c), long(lo), long(hi))
}

func cEmbedBackward(d, dfirst []float32, tokens []int32, wte []float32, c, lo, hi int) {
	C.modern_embed_backward(floats(d), floats(dfirst), ints(tokens), floats(wte), long(c), long(lo), long(hi))
}

func cNorm(out, mixed, x, first, kept, mix, skip []float32, c, lo, hi int) {
	C.modern_norm(floats(out), floats(mixed), floats(x), floats(first), floats(kept), floats(mix), floats(skip), long(c), long(lo), long(hi))
}

func cNormBackward(d, dfirst, dkept, sums, dnorm, mixed, x, first, kept, above, mix, skip []float32, c int, add, fresh bool, lo, hi int) {
	C.modern_norm_backward(floats(d), floats(dfirst), floats(dkept), floats(sums), floats(dnorm), floats(mixed), floats(x), floats(first),
		floats(kept), floats(above), floats(mix), floats(skip), long(c), truth(add), truth(fresh), long(lo), long(hi))
}

func cHeads(out, qkv []float32, tokens []int32, table, mix, turn []float32, t, heads, size int, norm bool, scale float32, lo, hi int) {
	C.modern_heads(floats(out), floats(qkv), ints(tokens), floats(table), floats(mix), floats(turn), long(t), long(heads), long(size),
		truth(norm), C.float(scale), long(lo), long(hi))
}

func cHeadsBackward(d, dtable, sums, qkv []float32, tokens []int32, table, mix, turn []float32, t, heads, size int, norm bool, scale float32, fresh bool, lo, hi int) {
	C.modern_heads_backward(floats(d), floats(dtable), floats(sums), floats(qkv), ints(tokens), floats(table), floats(mix), floats(turn),
		long(t), long(heads), long(size), truth(norm), C.float(scale), truth(fresh), long(lo), long(hi))
}

func cReLU2(x []float32, lo, hi int) { C.modern_relu2(floats(x), long(lo), long(hi)) }

func cReLU2Backward(d, y []float32, lo, hi int) {
	C.modern_relu2_backward(floats(d), floats(y), long(lo), long(hi))
}

func cClassifier(losses, logits []float32, targets []int32, v, vp int, scale float32, grad bool, lo, hi int) {
	C.modern_classifier(floats(losses), floats(logits), ints(targets), long(v), long(vp), C.float(scale), truth(grad), long(lo), long(hi))
}
