package main

import (
	"fmt"
	"math"
	"sync/atomic"

	"lockstep/host"
	"lockstep/spmd"
)

// The kernels of the model. Beside each stands the one function that launches it,
// which checks nothing that the layout in model.go already settles. Arrays are
// row-major float32; n is the number of tokens b·t, and buffers may be longer
// than the n rows in use.

// rowGrain is how many rows of c elements are worth a goroutine.
func rowGrain(c int) int { return max(1, 1<<14/c) }

// columns calls fn on ranges of c columns of n rows, cut at whole cache lines.
func columns(c, n int, fn func(lo, hi int)) {
	const block = 64
	host.Parallel((c+block-1)/block, max(1, 1<<14/(block*n)), func(lo, hi int) {
		fn(lo*block, min(hi*block, c))
	})
}

// perRow is a grid of one block for each of n rows.
func perRow(n int) spmd.Grid {
	return spmd.Grid{Blocks: [3]int{n, 1, 1}, Threads: [3]int{256, 1, 1}}
}

// checkTokens refuses a token that would reach outside the vocabulary's rows.
func checkTokens(tokens []int32, vocab int) error {
	for i, x := range tokens {
		if x < 0 || int(x) >= vocab {
			return fmt.Errorf("token %d at place %d is outside the vocabulary of %d", x, i, vocab)
		}
	}
	return nil
}

func flag(b bool) spmd.Arg {
	if b {
		return spmd.I32(1)
	}
	return spmd.I32(0)
}

var encoderForwardKernel = spmd.NewKernel("encoder_forward", "", func(a spmd.Args) error {
	out, tokens := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[int32](a, 1)
	wte, wpe := spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[float32](a, 3)
	n, t, c, vocab := a.I32(4), a.I32(5), a.I32(6), a.I32(7)
	if err := checkTokens(tokens[:n], vocab); err != nil {
		return err
	}
	host.Parallel(n, rowGrain(c), func(lo, hi int) { cEncoderForward(out, tokens, wte, wpe, t, c, lo, hi) })
	return nil
})

// encoderForward enqueues out(n,c) = wte[token] + wpe[position].
func (e *enqueue) encoderForward(out spmd.Buffer[float32], tokens spmd.Buffer[int32], wte, wpe spmd.Buffer[float32]) {
	C := e.m.Cfg.Channels
	e.launch(encoderForwardKernel, spmd.Cover1D(e.n*C, 256), out.Arg(), tokens.Arg(), wte.Arg(), wpe.Arg(),
		spmd.I32(e.n), spmd.I32(e.t), spmd.I32(C), spmd.I32(e.m.Cfg.Vocab))
}

var encoderBackwardKernel = spmd.NewKernel("encoder_backward", "", func(a spmd.Args) error {
	dwte, dwpe := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	dout, tokens := spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[int32](a, 3)
	n, t, c, positions, acc := a.I32(4), a.I32(5), a.I32(6), a.I32(7), a.I32(8) != 0
	// Two rows with one token add to one row of dwte: split by columns, each column
	// adds in the order of the rows.
	columns(c, n, func(lo, hi int) { cEncoderBackward(dwte, dwpe, dout, tokens[:n], t, c, positions, acc, lo, hi) })
	return nil
})

// encoderBackward enqueues dwte[token] += dout and dwpe[position] (+)= dout. The
// head has set dwte before.
func (e *enqueue) encoderBackward(dwte, dwpe, dout spmd.Buffer[float32], tokens spmd.Buffer[int32]) {
	C := e.m.Cfg.Channels
	e.launch(encoderBackwardKernel, spmd.Cover1D(e.n*C, 256), dwte.Arg(), dwpe.Arg(), dout.Arg(), tokens.Arg(),
		spmd.I32(e.n), spmd.I32(e.t), spmd.I32(C), spmd.I32(e.m.Cfg.SeqMax), flag(e.acc))
}

var layerNormForwardKernel = spmd.NewKernel("layernorm_forward", "", func(a spmd.Args) error {
	out, mean, rstd := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2)
	x, weight, bias := spmd.ArgSlice[float32](a, 3), spmd.ArgSlice[float32](a, 4), spmd.ArgSlice[float32](a, 5)
	n, c := a.I32(6), a.I32(7)
	host.Parallel(n, rowGrain(c), func(lo, hi int) {
		cLayerNormForward(nil, out, mean, rstd, x, nil, nil, weight, bias, c, lo, hi)
	})
	return nil
})

// layerNormForward enqueues out(n,c) = (x - mean)·rstd·weight + bias, and keeps
// mean(n) and rstd(n).
func (e *enqueue) layerNormForward(out, mean, rstd, x, weight, bias spmd.Buffer[float32]) {
	e.launch(layerNormForwardKernel, perRow(e.n), out.Arg(), mean.Arg(), rstd.Arg(), x.Arg(), weight.Arg(), bias.Arg(),
		spmd.I32(e.n), spmd.I32(e.m.Cfg.Channels))
}

var residualLayerNormForwardKernel = spmd.NewKernel("residual_layernorm_forward", "", func(a spmd.Args) error {
	res, out := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	mean, rstd := spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[float32](a, 3)
	x, y, ybias := spmd.ArgSlice[float32](a, 4), spmd.ArgSlice[float32](a, 5), spmd.ArgSlice[float32](a, 6)
	weight, bias := spmd.ArgSlice[float32](a, 7), spmd.ArgSlice[float32](a, 8)
	n, c := a.I32(9), a.I32(10)
	host.Parallel(n, rowGrain(c), func(lo, hi int) {
		cLayerNormForward(res, out, mean, rstd, x, y, ybias, weight, bias, c, lo, hi)
	})
	return nil
})

// residualLayerNormForward enqueues res(n,c) = x + y + ybias and the LayerNorm of
// res into out.
func (e *enqueue) residualLayerNormForward(res, out, mean, rstd, x, y, ybias, weight, bias spmd.Buffer[float32]) {
	e.launch(residualLayerNormForwardKernel, perRow(e.n), res.Arg(), out.Arg(), mean.Arg(), rstd.Arg(),
		x.Arg(), y.Arg(), ybias.Arg(), weight.Arg(), bias.Arg(), spmd.I32(e.n), spmd.I32(e.m.Cfg.Channels))
}

var layerNormBackwardKernel = spmd.NewKernel("layernorm_backward", "", func(a spmd.Args) error {
	dx, dweight, dbias := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2)
	dout, x, weight := spmd.ArgSlice[float32](a, 3), spmd.ArgSlice[float32](a, 4), spmd.ArgSlice[float32](a, 5)
	mean, rstd := spmd.ArgSlice[float32](a, 6), spmd.ArgSlice[float32](a, 7)
	n, c, add, acc := a.I32(8), a.I32(9), a.I32(10) != 0, a.I32(11) != 0
	host.Parallel(n, rowGrain(c), func(lo, hi int) {
		cLayerNormBackwardInput(dx, dout, x, weight, mean, rstd, c, add, lo, hi)
	})
	columns(c, n, func(lo, hi int) { cLayerNormBackwardParams(dweight, dbias, dout, x, mean, rstd, n, c, acc, lo, hi) })
	return nil
})

// layerNormBackward enqueues dx(n,c) = the gradient of the LayerNorm's input, added
// with add, and the gradients of its parameters.
func (e *enqueue) layerNormBackward(dx, dweight, dbias, dout, x, weight, mean, rstd spmd.Buffer[float32], add bool) {
	e.launch(layerNormBackwardKernel, perRow(e.n), dx.Arg(), dweight.Arg(), dbias.Arg(), dout.Arg(), x.Arg(), weight.Arg(),
		mean.Arg(), rstd.Arg(), spmd.I32(e.n), spmd.I32(e.m.Cfg.Channels), flag(add), flag(e.acc))
}

var biasForwardKernel = spmd.NewKernel("bias_forward", "", func(a spmd.Args) error {
	y, bias := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	n, c := a.I32(2), a.I32(3)
	host.Parallel(n, rowGrain(c), func(lo, hi int) { cBiasForward(y, bias, c, lo, hi) })
	return nil
})

// biasForward enqueues y(n,c) += bias(c).
func (e *enqueue) biasForward(y, bias spmd.Buffer[float32], c int) {
	e.launch(biasForwardKernel, spmd.Cover1D(e.n*c, 256), y.Arg(), bias.Arg(), spmd.I32(e.n), spmd.I32(c))
}

var biasBackwardKernel = spmd.NewKernel("bias_backward", "", func(a spmd.Args) error {
	dbias, dy := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	n, c, acc := a.I32(2), a.I32(3), a.I32(4) != 0
	columns(c, n, func(lo, hi int) { cBiasBackward(dbias, dy, n, c, acc, lo, hi) })
	return nil
})

// biasBackward enqueues dbias(c) (+)= the sum of dy(n,c) over its rows.
func (e *enqueue) biasBackward(dbias, dy spmd.Buffer[float32], c int) {
	e.launch(biasBackwardKernel, spmd.Cover1D(c, 32), dbias.Arg(), dy.Arg(), spmd.I32(e.n), spmd.I32(c), flag(e.acc))
}

var biasGeluForwardKernel = spmd.NewKernel("bias_gelu_forward", "", func(a spmd.Args) error {
	out, x, bias := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2)
	n, c := a.I32(3), a.I32(4)
	host.Parallel(n, rowGrain(c), func(lo, hi int) { cBiasGeluForward(out, x, bias, c, lo, hi) })
	return nil
})

// biasGeluForward enqueues x(n,c) += bias(c) and out = gelu(x), by GPT-2's tanh
// formula.
func (e *enqueue) biasGeluForward(out, x, bias spmd.Buffer[float32], c int) {
	e.launch(biasGeluForwardKernel, spmd.Cover1D(e.n*c, 256), out.Arg(), x.Arg(), bias.Arg(), spmd.I32(e.n), spmd.I32(c))
}

var geluBackwardKernel = spmd.NewKernel("gelu_backward", "", func(a spmd.Args) error {
	d, x, n := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), a.I64(2)
	host.Parallel(n, 1<<14, func(lo, hi int) { cGeluBackward(d, x, lo, hi) })
	return nil
})

// geluBackward enqueues d(n,c) *= gelu'(x).
func (e *enqueue) geluBackward(d, x spmd.Buffer[float32], c int) {
	e.launch(geluBackwardKernel, spmd.Cover1D(e.n*c, 256), d.Arg(), x.Arg(), spmd.I64(e.n*c))
}

// headGrain is how many heads are worth a goroutine.
func headGrain(t, hs int) int { return max(1, 1<<18/(t*t*hs)) }

// attend runs fn on ranges of the b·nh heads, and says when one had no memory.
func attend(b, t, nh, hs int, fn func(lo, hi int) bool) error {
	var failed atomic.Bool
	host.Parallel(b*nh, headGrain(t, hs), func(lo, hi int) {
		if !fn(lo, hi) {
			failed.Store(true)
		}
	})
	if failed.Load() {
		return fmt.Errorf("attention: no memory for the scores of %d tokens", t)
	}
	return nil
}

var attentionForwardKernel = spmd.NewKernel("attention_forward", "", func(a spmd.Args) error {
	out, lse, qkv := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2)
	b, t, nh, hs := a.I32(3), a.I32(4), a.I32(5), a.I32(6)
	return attend(b, t, nh, hs, func(lo, hi int) bool { return cAttentionForward(out, lse, qkv, t, nh, hs, lo, hi) })
})

// attentionForward enqueues the causal attention of qkv(b,t,3,nh,hs) into
// out(b,t,nh,hs), keeping the logarithms of the softmax's denominators, lse(b,nh,t).
func (e *enqueue) attentionForward(out, lse, qkv spmd.Buffer[float32]) {
	nh, hs := e.m.Cfg.Heads, e.m.Cfg.Channels/e.m.Cfg.Heads
	e.launch(attentionForwardKernel, perRow(e.b*nh*e.t), out.Arg(), lse.Arg(), qkv.Arg(),
		spmd.I32(e.b), spmd.I32(e.t), spmd.I32(nh), spmd.I32(hs))
}

var attentionBackwardKernel = spmd.NewKernel("attention_backward", "", func(a spmd.Args) error {
	dqkv, delta, dout := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2)
	out, lse, qkv := spmd.ArgSlice[float32](a, 3), spmd.ArgSlice[float32](a, 4), spmd.ArgSlice[float32](a, 5)
	b, t, nh, hs := a.I32(6), a.I32(7), a.I32(8), a.I32(9)
	return attend(b, t, nh, hs, func(lo, hi int) bool {
		return cAttentionBackward(dqkv, delta, dout, out, lse, qkv, t, nh, hs, lo, hi)
	})
})

// attentionBackward enqueues dqkv from dout and what attentionForward kept; the
// probabilities are computed again. delta(b,nh,t) is scratch.
func (e *enqueue) attentionBackward(dqkv, delta, dout, out, lse, qkv spmd.Buffer[float32]) {
	nh, hs := e.m.Cfg.Heads, e.m.Cfg.Channels/e.m.Cfg.Heads
	e.launch(attentionBackwardKernel, perRow(e.b*nh*e.t), dqkv.Arg(), delta.Arg(), dout.Arg(), out.Arg(), lse.Arg(), qkv.Arg(),
		spmd.I32(e.b), spmd.I32(e.t), spmd.I32(nh), spmd.I32(hs))
}

var classifierKernel = spmd.NewKernel("classifier", "", func(a spmd.Args) error {
	losses, logits, targets := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[int32](a, 2)
	n, v, vp, scale, grad := a.I32(3), a.I32(4), a.I32(5), a.F32(6), a.I32(7) != 0
	if err := checkTokens(targets[:n], v); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	host.Parallel(n, rowGrain(vp), func(lo, hi int) { cClassifier(losses, logits, targets, v, vp, scale, grad, lo, hi) })
	return nil
})

// classifier enqueues losses(n) = the cross-entropy of logits(n,vp) against
// targets(n). With grad the logits become scale times their gradient, 0 in the
// columns beyond the vocabulary.
func (e *enqueue) classifier(losses, logits spmd.Buffer[float32], targets spmd.Buffer[int32], scale float32, grad bool) {
	cfg := e.m.Cfg
	e.launch(classifierKernel, perRow(e.n), losses.Arg(), logits.Arg(), targets.Arg(),
		spmd.I32(e.n), spmd.I32(cfg.Vocab), spmd.I32(cfg.PaddedVocab()), spmd.F32(scale), flag(grad))
}

var lossSumKernel = spmd.NewKernel("loss_sum", "", func(a spmd.Args) error {
	loss, losses := spmd.ArgSlice[float64](a, 0), spmd.ArgSlice[float32](a, 1)
	n, scale, acc := a.I32(2), a.F32(3), a.I32(4) != 0
	sum := 0.0
	for _, x := range losses[:n] {
		sum += float64(x)
	}
	sum *= float64(scale)
	if acc {
		sum += loss[0]
	}
	loss[0] = sum
	return nil
})

// lossSum enqueues loss(1) (+)= scale times the sum of losses(n).
func (e *enqueue) lossSum(loss spmd.Buffer[float64], losses spmd.Buffer[float32], scale float32) {
	e.launch(lossSumKernel, perRow(1), loss.Arg(), losses.Arg(), spmd.I32(e.n), spmd.F32(scale), flag(e.acc))
}

func (e *enqueue) launch(k *spmd.Kernel, g spmd.Grid, args ...spmd.Arg) {
	if e.err == nil {
		e.err = k.Launch(e.s, g, args...)
	}
}

var adamWKernel = spmd.NewKernel("adamw", "", func(a spmd.Args) error {
	p, m, v, g := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[float32](a, 3)
	decay, hyper, norm := spmd.ArgSlice[uint8](a, 4), spmd.ArgSlice[float32](a, 5), spmd.ArgSlice[float32](a, 6)
	beta1, beta2, eps, weightDecay, clip := a.F32(7), a.F32(8), a.F32(9), a.F32(10), a.F32(11)
	nrm, gscale := float64(norm[0]), float32(1)
	if math.IsNaN(nrm) || math.IsInf(nrm, 0) {
		return nil
	}
	if clip > 0 && nrm > float64(clip) {
		gscale = float32(float64(clip) / nrm)
	}
	host.Parallel(len(decay), 1<<14/arenaAlign, func(lo, hi int) {
		cAdamW(p, m, v, g, decay, hyper, gscale, beta1, beta2, eps, weightDecay, lo, hi)
	})
	return nil
})

// adamW enqueues the update of the whole arena p with its moments m and v from the
// gradients g. decay has one element for each arenaAlign of p; hyper holds the rate and
// the two corrections, norm the norm of g.
func adamW(s *spmd.Stream, p, m, v, g spmd.Buffer[float32], decay spmd.Buffer[uint8], hyper, norm spmd.Buffer[float32], cfg AdamConfig) error {
	return adamWKernel.Launch(s, spmd.Cover1D(p.Len(), 256), p.Arg(), m.Arg(), v.Arg(), g.Arg(), decay.Arg(), hyper.Arg(), norm.Arg(),
		spmd.F32(float32(cfg.Beta1)), spmd.F32(float32(cfg.Beta2)), spmd.F32(float32(cfg.Eps)), spmd.F32(float32(cfg.WeightDecay)), spmd.F32(float32(cfg.Clip)))
}
