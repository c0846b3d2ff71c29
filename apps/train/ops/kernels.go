package ops

import (
	_ "embed"
	"fmt"
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// Finite reports whether x is neither infinite nor NaN.
func Finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// These are the kernels of the model. Beside each stands the one function that launches it. It does
// not check again what the model has settled.
//
// Arrays are row-major. Activations and their gradients are of the model's type A, all else is
// float32. n is the number of tokens b·t. Buffers may be longer than the n rows in use.
//
// kernels.cu runs on a GPU, after common.cuh and eight.cuh. kernels.c has the loops of the host.

// commonSource begins the sources of kernels, also of other packages.
//
//go:embed common.cuh
var commonSource string

//go:embed loss.cuh
var lossSource string

//go:embed kernels.cu
var kernelsSource string

var cudaSource = commonSource + eightSource + lossSource + kernelsSource

// Act is the element type of activations and of their gradients.
type Act interface{ float32 | spmd.BF16 }

// Blocks returns a grid of blocks of 256 threads, which kernels.cu relies on.
func Blocks(x, y, z int) spmd.Grid {
	return spmd.Grid{Blocks: [3]int{x, y, z}, Threads: [3]int{256, 1, 1}}
}

// warpRows returns a grid of a warp for each of n rows.
func warpRows(n int) spmd.Grid { return Blocks((n+7)/8, 1, 1) }

// ChunksOf returns how many warps cover a row of c columns.
func ChunksOf(c int) int {
	if c%8 == 0 {
		return (c + 255) / 256
	}
	return (c + 31) / 32
}

// CheckTokens refuses a token that would reach outside the vocabulary's rows.
func CheckTokens(tokens []int32, vocab int) error {
	for i, x := range tokens {
		if x < 0 || int(x) >= vocab {
			return fmt.Errorf("token %d at place %d is outside the vocabulary of %d", x, i, vocab)
		}
	}
	return nil
}

var encoderForwardKernel = newKernel(cudaSource, "encoder_forward", func(a *HostArgs) error {
	n, t, c, vocab, first, own, positions := a.I32(4), a.I32(5), a.I32(6), a.I32(7), a.I32(8), a.I32(9), a.flag(10)
	out, tokens, wte, wpe := a.Out(0, n*c), a.Ints(1, n), a.Floats(2), a.Floats(3)
	if err := CheckTokens(tokens, vocab); err != nil {
		return err
	}
	host.Parallel(n, RowGrain(c), func(lo, hi int) {
		cEncoderForward(out, tokens, wte, wpe, t, c, first, own, positions, lo, hi)
	})
	return nil
})

// EncoderForward enqueues out(n,c) = wte[token] + wpe[position]; wpe may be empty. A token outside
// the vocabulary fails the stream on the host, and makes the loss NaN on a GPU.
//
// If ranks divide the vocabulary, out is a part, and the sum over them is the result: each rank
// adds its tokens, and the first one the positions.
func (e *Launcher[A]) EncoderForward(out spmd.Buffer[A], tokens spmd.Buffer[int32], wte, wpe spmd.Buffer[float32]) {
	C := e.Cfg.Channels
	first, _, own := e.Cfg.OwnVocab()
	e.Launch(encoderForwardKernel, warpRows(e.N), out.Arg(), tokens.Arg(), wte.Arg(), wpe.Arg(),
		spmd.I32(e.N), spmd.I32(e.T), spmd.I32(C), spmd.I32(e.Cfg.Vocab), spmd.I32(first), spmd.I32(own),
		Flag(e.Cfg.Tensor.Rank == 0 && wpe.Len() > 0))
}

var encoderBackwardKernel = newKernel(cudaSource, "encoder_backward", func(a *HostArgs) error {
	n, t, c, positions, vocab, acc := a.I32(6), a.I32(7), a.I32(8), a.I32(9), a.I32(10), a.flag(15)
	first, own := a.I32(13), a.I32(14)
	dwte, dwpe, dout := a.Floats(0), a.Floats(1), a.In(4, n*c)
	p := planOf(a.Ints(5, SortedLen(n, vocab)), n, vocab)
	if err := p.check(vocab); err != nil {
		return err
	}
	// Two rows with one token add to one row of dwte. If columns divide the work, each column adds
	// in the order of the rows.
	columns(c, n, func(lo, hi int) { cEncoderBackward(dwte, dwpe, dout, p, t, c, positions, first, own, acc, lo, hi) })
	return nil
}, 2, 3)

// EncoderBackward enqueues dwte[token] += dout and dwpe[position] (+)= dout, from the tokens as
// Sorter.Sort leaves them. dwte has this rank's tokens, and was set before. dwpe may be empty.
func (e *Launcher[A]) EncoderBackward(dwte, dwpe spmd.Buffer[float32], dout spmd.Buffer[A], sorted spmd.Buffer[int32]) {
	cfg, positions := e.Cfg, 0
	if dwpe.Len() > 0 {
		positions = e.Cfg.SeqMax
	}
	first, _, own := cfg.OwnVocab()
	parts, splits := mostParts(e.N, cfg.Vocab), MostSplits(e.N)
	warps := (positions + parts) * ChunksOf(cfg.Channels)
	e.Launch(encoderBackwardKernel, Blocks(min(2112, (warps+7)/8), 1, 1), dwte.Arg(), dwpe.Arg(), e.Partial.Arg(),
		e.Arrived.Arg(), dout.Arg(), sorted.Arg(), spmd.I32(e.N), spmd.I32(e.T), spmd.I32(cfg.Channels),
		spmd.I32(positions), spmd.I32(cfg.Vocab),
		spmd.I32(parts), spmd.I32(splits), spmd.I32(first), spmd.I32(own), Flag(e.Acc))
}

var (
	classifierKernel  = newKernel(cudaSource, "classifier", hostClassifier)
	classifierKernel8 = newKernel(cudaSource, "classifier_8", Copying[spmd.F8E5M2](9, hostClassifier))
)

func hostClassifier(a *HostArgs) error {
	n, v, vp, scale, grad := a.I32(3), a.I32(4), a.I32(5), a.F32(7), a.flag(8)
	losses, targets := a.Floats(0), a.Ints(2, n)
	logits := a.In
	if grad {
		logits = a.InOut
	}
	x := logits(1, n*vp)
	if err := CheckTokens(targets, v); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	host.Parallel(n, RowGrain(vp), func(lo, hi int) { cClassifier(losses, x, targets, v, vp, scale, grad, lo, hi) })
	return nil
}

// Classifier enqueues losses(n) = the cross-entropy of logits(n,vp) against targets(n). With grad
// the logits become scale times their gradient, 0 in the columns beyond the vocabulary. A target
// outside the vocabulary has the effect of such a token in EncoderForward.
//
// The gradient's copy goes to Wide: most of its elements are a 100,000th of the largest.
func (e *Launcher[A]) Classifier(losses spmd.Buffer[float32], logits spmd.Buffer[A], targets spmd.Buffer[int32],
	scale float32, grad bool, to Cast) {
	n, vp := targets.Len(), e.Cfg.PaddedVocab()
	g, held := e.classifierGrid(n)
	args := [12]spmd.Arg{losses.Arg(), logits.Arg(), targets.Arg(),
		spmd.I32(n), spmd.I32(e.Cfg.Vocab), spmd.I32(vp), spmd.I32(held), spmd.F32(scale), Flag(grad), to.Wide.Arg(),
		to.Up.Arg(), to.Peak.Arg()}
	if to.None() || !grad {
		e.Launch(classifierKernel, g, args[:9]...)
	} else {
		e.Launch(classifierKernel8, g, args[:]...)
	}
}

// classifierGrid returns a grid of a block for each of n rows of logits, and how many pieces of 16
// bytes of a row a block holds.
func (e *Launcher[A]) classifierGrid(n int) (g spmd.Grid, held int) {
	size := 4
	if IsHalf[A]() {
		size = 2
	}
	// Two blocks share a multiprocessor: while one waits for its row, the other computes. The
	// kernel itself declares less than 2 KB.
	held = max(0, min(e.Cfg.PaddedVocab()*size, e.S.World().SharedMemory()-2<<10, 112<<10)) / 16
	return spmd.Grid{Blocks: [3]int{n, 1, 1}, Threads: [3]int{512, 1, 1}, Shared: 16 * held}, held
}

// LossSum enqueues loss(1) (+)= scale times the sum of losses(n).
func (e *Launcher[A]) LossSum(loss spmd.Buffer[float64], losses spmd.Buffer[float32], scale float32) {
	if e.Err == nil {
		e.Err = launchLossRow(e.S, 1, loss, losses.Slice(0, e.N), scale, e.Acc || e.AccLoss)
	}
}
