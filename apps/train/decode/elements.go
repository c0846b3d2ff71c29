package decode

import (
	"math"

	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

//go:generate go run lockstep/spmd/spmdgen

// embedElement computes channel j of token i, at a place behind earlier tokens.
//
//spmd:kernel
func embedElement(i, j int, x []float32, tokens []int32, wte, wpe []float32, place *int32, c int) {
	x[i*c+j] = wte[int(tokens[i])*c+j] + wpe[(int(*place)+i)*c+j]
}

// appendElement adds the bias to element j of row i of qkv(n,3,c). It puts the element in its place
// if it belongs to a key or value.
//
//spmd:kernel
func appendElement[A ops.Act](i, j int, keys, values []A, qkv, bias []float32, place *int32, c, hs, seq int) {
	v := qkv[i*3*c+j] + bias[j]
	qkv[i*3*c+j] = v
	if at := slot(i+int(*place), j, c, hs, seq); j >= 2*c {
		values[at] = spmd.Narrow[A](v)
	} else if j >= c {
		keys[at] = spmd.Narrow[A](v)
	}
}

// slot returns where element j of a token's keys or values lies among (heads,seq,hs).
func slot(token, j, c, hs, seq int) int {
	j %= c
	return (j/hs*seq+token)*hs + j%hs
}

// geluElement works on rows of c numbers, by GPT-2's tanh formula.
//
//spmd:kernel
//spmd:tolerance 1e-5
func geluElement[A ops.Act](i, j int, out []A, x, bias []float32, c int) {
	v := x[i*c+j] + bias[j]
	out[i*c+j] = spmd.Narrow[A](v / (1 + float32(math.Exp(float64(-1.5957691216*(v+0.044715*v*v*v))))))
}
