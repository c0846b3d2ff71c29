package decode

import "lockstep/spmd"

//go:generate go run lockstep/spmd/spmdgen

// embedElement is channel j of token i, that of a place behind those before.
//
//spmd:kernel
func embedElement(i, j int, x []float32, tokens []int32, wte, wpe []float32, place *int32, c int) {
	x[i*c+j] = wte[int(tokens[i])*c+j] + wpe[(int(*place)+i)*c+j]
}

// appendFloat adds the bias to element j of row i of qkv(n,3,c), and puts it in its place, if it is a key's or value's.
//
//spmd:kernel
func appendFloat(i, j int, keys, values, qkv, bias []float32, place *int32, c, hs, seq int) {
	v := qkv[i*3*c+j] + bias[j]
	qkv[i*3*c+j] = v
	if at := slot(i+int(*place), j, c, hs, seq); j >= 2*c {
		values[at] = v
	} else if j >= c {
		keys[at] = v
	}
}

// appendHalf does so with keys and values of bfloat16.
//
//spmd:kernel
func appendHalf(i, j int, keys, values []spmd.BF16, qkv, bias []float32, place *int32, c, hs, seq int) {
	v := qkv[i*3*c+j] + bias[j]
	qkv[i*3*c+j] = v
	if at := slot(i+int(*place), j, c, hs, seq); j >= 2*c {
		values[at] = spmd.ToBF16(v)
	} else if j >= c {
		keys[at] = spmd.ToBF16(v)
	}
}

// slot is where element j of the keys or values of a token lies among (heads,seq,hs).
func slot(token, j, c, hs, seq int) int {
	j %= c
	return (j/hs*seq+token)*hs + j%hs
}
