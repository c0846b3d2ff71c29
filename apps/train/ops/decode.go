package ops

import (
	_ "embed"
	"math"

	"lockstep/apps/train/layout"
	"lockstep/host"
	"lockstep/spmd"
)

// These are the kernels of the forward pass of a GPT-2 that keeps each token's keys and values.
// decode.cu runs on a GPU, decode.c on the host. The residual stream and the results of products
// are float32.

//go:embed decode.cu
var decodeSource string

var decodeNormKernel = newKernel(decodeSource, "decode_norm", func(a *HostArgs) error {
	n, c := a.I32(6), a.I32(7)
	out, x, y, ybias, weight, bias := a.Out(0, n*c), a.Floats(1), a.Floats(2), a.Floats(3), a.Floats(4), a.Floats(5)
	host.Parallel(n, RowGrain(c), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, sum, squares := x[i*c:(i+1)*c], 0.0, 0.0
			for j := range row {
				if len(y) > 0 {
					row[j] += y[i*c+j] + ybias[j]
				}
				sum += float64(row[j])
			}
			mean := sum / float64(c)
			for _, v := range row {
				squares += (float64(v) - mean) * (float64(v) - mean)
			}
			scale := 1 / math.Sqrt(squares/float64(c)+layout.NormEpsilon)
			for j, v := range row {
				out[i*c+j] = float32((float64(v)-mean)*scale)*weight[j] + bias[j]
			}
		}
	})
	return nil
})

// DecodeNorm enqueues x(n,C) += add + addBias, if there is anything to add, and out = the LayerNorm
// of x.
func (e *Launcher[A]) DecodeNorm(out spmd.Buffer[A], x, add, addBias spmd.Buffer[float32], p *Norm) {
	e.Launch(decodeNormKernel, Blocks(e.N, 1, 1), out.Arg(), x.Arg(), add.Arg(), addBias.Arg(), p.W.Arg(), p.B.Arg(),
		spmd.I32(e.N), spmd.I32(e.Cfg.Channels))
}

var decodeAttendKernel = newKernel(decodeSource, "decode_attend", func(a *HostArgs) error {
	n, nh, hs, seq := a.I32(5), a.I32(6), a.I32(7), a.I32(8)
	c := nh * hs
	out, qkv, keys, values := a.Out(0, n*c), a.Floats(1), a.In(2, seq*c), a.In(3, seq*c)
	place := int(spmd.ArgSlice[int32](a.Args, 4)[0])
	host.Parallel(n*nh, max(1, 1<<14/((place+n)*hs)), func(lo, hi int) {
		cDecodeAttend(out, make([]float32, place+n), qkv, keys, values, place, nh, hs, seq, lo, hi)
	})
	return nil
})

// Cached is the keys and values of a layer for the tokens of a sequence so far, (NH,T,HS) each.
type Cached[A Act] struct {
	Keys, Values spmd.Buffer[A]
	Place        spmd.Buffer[int32] // (1): tokens before these
	T            int                // most tokens
}

// DecodeAttend enqueues out(n,C) = the attention of the queries in qkv to the keys up to their own.
func (e *Launcher[A]) DecodeAttend(out spmd.Buffer[A], qkv spmd.Buffer[float32], c Cached[A]) {
	nh, hs := e.Cfg.Heads, e.Cfg.Channels/e.Cfg.Heads
	e.Launch(decodeAttendKernel, Blocks(e.N*nh, (hs+255)/256, 1), out.Arg(), qkv.Arg(), c.Keys.Arg(),
		c.Values.Arg(), c.Place.Arg(), spmd.I32(e.N), spmd.I32(nh), spmd.I32(hs), spmd.I32(c.T))
}

// DecodeEmbed enqueues x(n,C) = wte[token] + wpe[position], behind the tokens that place counts.
func (e *Launcher[A]) DecodeEmbed(x spmd.Buffer[float32], tokens spmd.Buffer[int32], wte, wpe spmd.Buffer[float32],
	place spmd.Buffer[int32]) {
	if c := e.Cfg.Channels; e.Err == nil {
		e.Err = launchEmbedElement(e.S, e.N, c, x, tokens, wte, wpe, place, c)
	}
}

// DecodeAppend enqueues qkv(n,3,C) += bias, and puts the keys and values in their places.
func (e *Launcher[A]) DecodeAppend(qkv, bias spmd.Buffer[float32], to Cached[A]) {
	if c := e.Cfg.Channels; e.Err == nil {
		e.Err = launchAppendElement(e.S, e.N, 3*c, to.Keys, to.Values, qkv, bias, to.Place, c, c/e.Cfg.Heads, to.T)
	}
}

// DecodeGELU enqueues out(n,4C) = GELU(x + bias).
func (e *Launcher[A]) DecodeGELU(out spmd.Buffer[A], x, bias spmd.Buffer[float32]) {
	if c := 4 * e.Cfg.Channels; e.Err == nil {
		e.Err = launchGeluElement(e.S, e.N, c, out, x, bias, c)
	}
}

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
func appendElement[A Act](i, j int, keys, values []A, qkv, bias []float32, place *int32, c, hs, seq int) {
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
func geluElement[A Act](i, j int, out []A, x, bias []float32, c int) {
	v := x[i*c+j] + bias[j]
	out[i*c+j] = spmd.Narrow[A](v / (1 + float32(math.Exp(float64(-1.5957691216*(v+0.044715*v*v*v))))))
}
