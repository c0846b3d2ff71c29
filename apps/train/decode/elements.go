package decode

import (
	"math"

	"lockstep/apps/train/kernels"
	"lockstep/spmd"
)

//go:generate go run lockstep/spmd/spmdgen

// embedElement is channel j of token i, that of a place behind those before.
//
//spmd:kernel
func embedElement(i, j int, x []float32, tokens []int32, wte, wpe []float32, place *int32, c int) {
	x[i*c+j] = wte[int(tokens[i])*c+j] + wpe[(int(*place)+i)*c+j]
}

// appendElement adds the bias to element j of row i of qkv(n,3,c), and puts it in its place,
// if it is a key's or value's.
//
//spmd:kernel
func appendElement[A kernels.Act](i, j int, keys, values []A, qkv, bias []float32, place *int32, c, hs, seq int) {
	v := qkv[i*3*c+j] + bias[j]
	qkv[i*3*c+j] = v
	if at := slot(i+int(*place), j, c, hs, seq); j >= 2*c {
		values[at] = spmd.Narrow[A](v)
	} else if j >= c {
		keys[at] = spmd.Narrow[A](v)
	}
}

// slot is where element j of the keys or values of a token lies among (heads,seq,hs).
func slot(token, j, c, hs, seq int) int {
	j %= c
	return (j/hs*seq+token)*hs + j%hs
}

// geluElement is of rows of c numbers, by GPT-2's tanh formula.
//
//spmd:kernel
//spmd:tolerance 1e-5
func geluElement[A kernels.Act](i, j int, out []A, x, bias []float32, c int) {
	v := x[i*c+j] + bias[j]
	out[i*c+j] = spmd.Narrow[A](v / (1 + float32(math.Exp(float64(-1.5957691216*(v+0.044715*v*v*v))))))
}
