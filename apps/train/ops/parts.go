package ops

import (
	"fmt"

	"lockstep/host"
	"lockstep/spmd"
)

// If ranks divide the vocabulary, the classifier of each has the columns of its tokens.
// A row's loss and gradient need three numbers from each other rank, which ranks
// exchange between two kernels.

// LogitNumbers is how many numbers of a row LogitSums computes.
const LogitNumbers = 3

var logitSumsKernel = newKernel(cudaSource, "logit_sums", func(a *HostArgs) error {
	n, v, vp, first := a.I32(3), a.I32(4), a.I32(5), a.I32(6)
	sums, x, targets := a.Floats(0), a.In(1, n*vp), a.Ints(2, n)
	host.Parallel(n, RowGrain(vp), func(lo, hi int) { cLogitSums(sums, x, targets, v, vp, first, lo, hi) })
	return nil
})

// LogitSums enqueues sums(n,LogitNumbers) of this rank's columns of logits(n,v): the largest, the
// sum of e^(x - largest), and the target's logit. A missing value is -Inf.
func (e *Launcher[A]) LogitSums(sums spmd.Buffer[float32], logits spmd.Buffer[A], targets spmd.Buffer[int32]) {
	first, rows, own := e.Cfg.OwnVocab()
	e.Launch(logitSumsKernel, blockRows(e.N), sums.Arg(), logits.Arg(), targets.Arg(),
		spmd.I32(e.N), spmd.I32(own), spmd.I32(rows), spmd.I32(first))
}

var classifierOfPartsKernel = newKernel(cudaSource, "classifier_of_parts", func(a *HostArgs) error {
	parts, n, v, vp, first, vocab, scale, grad := a.I32(4), a.I32(5), a.I32(6), a.I32(7), a.I32(8), a.I32(9), a.F32(10),
		a.flag(11)
	losses, targets, all := a.Floats(0), a.Ints(2, n), a.Floats(3)
	logits := a.In
	if grad {
		logits = a.InOut
	}
	x := logits(1, n*vp)
	if err := CheckTokens(targets, vocab); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	host.Parallel(n, RowGrain(vp), func(lo, hi int) {
		cClassifierOfParts(losses, x, targets, all, parts, n, v, vp, first, scale, grad, lo, hi)
	})
	return nil
})

// ClassifierOfParts enqueues Classifier for this rank's columns. all(ranks,n,LogitNumbers) has the
// LogitSums of each rank. All ranks get the same losses.
func (e *Launcher[A]) ClassifierOfParts(losses spmd.Buffer[float32], logits spmd.Buffer[A], targets spmd.Buffer[int32],
	all spmd.Buffer[float32], scale float32, grad bool) {
	first, rows, own := e.Cfg.OwnVocab()
	e.Launch(classifierOfPartsKernel, blockRows(e.N), losses.Arg(), logits.Arg(), targets.Arg(), all.Arg(),
		spmd.I32(e.Cfg.Tensor.Parts()), spmd.I32(e.N), spmd.I32(own), spmd.I32(rows), spmd.I32(first),
		spmd.I32(e.Cfg.Vocab), spmd.F32(scale), Flag(grad))
}

// blockRows returns a grid of a block of 512 threads for each of n rows.
func blockRows(n int) spmd.Grid {
	return spmd.Grid{Blocks: [3]int{n, 1, 1}, Threads: [3]int{512, 1, 1}}
}
