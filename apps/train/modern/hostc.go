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

// These are the wrappers of loops.c, which says what they compute. lo and hi are bounds within the
// slices. An empty slice is NULL.

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
