package main

import (
	_ "embed"
	"fmt"

	"lockstep/host"
	"lockstep/spmd"
)

// The kernels of the model. Beside each stands the one function that launches it,
// which checks nothing that the layout in model.go already settles. Arrays are
// row-major; activations and their gradients are of the model's type A, all else is
// float32. n is the number of tokens b·t, and buffers may be longer than the n rows
// in use. kernels.cu is what runs on a GPU, kernels.c has the loops of the host.

//go:embed kernels.cu
var cudaSource string

// Act is the element type of activations and of their gradients.
type Act interface{ float32 | spmd.BF16 }

// kernel is one computation for each type of activations.
type kernel struct{ f32, bf16 *spmd.Kernel }

// newKernel declares kernel name of kernels.cu for each type of activations; on the host
// fn computes both.
func newKernel(name string, fn func(a *hostArgs) error) kernel {
	return kernel{spmd.NewKernel(name, cudaSource, onHost(false, fn), spmd.Define("ACT", "float")),
		spmd.NewKernel(name, cudaSource, onHost(true, fn), spmd.Define("ACT", "bf16"))}
}

// onHost is what spmd calls on the host for a kernel that fn computes.
func onHost(half bool, fn func(a *hostArgs) error) func(spmd.Args) error {
	return func(args spmd.Args) error {
		a := hostArgs{Args: args, half: half}
		if err := fn(&a); err != nil {
			return err
		}
		for _, w := range a.written {
			roundAll(w.to, w.from)
		}
		return nil
	}
}

// hostArgs are the arguments of a kernel on the host, which computes in float32: of
// bfloat16 activations it gets widened copies, and what it has written is rounded
// when it returns.
type hostArgs struct {
	spmd.Args
	half    bool
	written []rounding
}

type rounding struct {
	to   []spmd.BF16
	from []float32
}

// in returns the first n elements of argument i, activations to read.
func (a *hostArgs) in(i, n int) []float32 {
	if !a.half {
		return a.f32(i)[:n]
	}
	src, wide := spmd.ArgSlice[spmd.BF16](a.Args, i)[:n], make([]float32, n)
	host.Parallel(n, halfGrain, func(lo, hi int) { host.Widen(wide[lo:hi], src[lo:hi]) })
	return wide
}

// out returns the first n elements of argument i, activations to write, every one.
func (a *hostArgs) out(i, n int) []float32 {
	if !a.half {
		return a.f32(i)[:n]
	}
	return a.rounded(i, make([]float32, n))
}

// inOut returns the first n elements of argument i, activations to read and write.
func (a *hostArgs) inOut(i, n int) []float32 {
	if !a.half {
		return a.f32(i)[:n]
	}
	return a.rounded(i, a.in(i, n))
}

// settle rounds what has been written so far, as the caller will see it.
func (a *hostArgs) settle() {
	for _, w := range a.written {
		host.Parallel(len(w.to), halfGrain, func(lo, hi int) {
			host.Round(w.to[lo:hi], w.from[lo:hi])
			host.Widen(w.from[lo:hi], w.to[lo:hi])
		})
	}
}

// rounded makes wide what argument i receives in the end, and returns it.
func (a *hostArgs) rounded(i int, wide []float32) []float32 {
	a.written = append(a.written, rounding{spmd.ArgSlice[spmd.BF16](a.Args, i)[:len(wide)], wide})
	return wide
}

// f32 returns argument i, float32 in both kernels.
func (a *hostArgs) f32(i int) []float32 { return spmd.ArgSlice[float32](a.Args, i) }

// i32 returns the first n elements of argument i, tokens.
func (a *hostArgs) i32(i, n int) []int32 { return spmd.ArgSlice[int32](a.Args, i)[:n] }

// flag returns argument i, passed by flag.
func (a *hostArgs) flag(i int) bool { return a.I32(i) != 0 }

func flag(b bool) spmd.Arg {
	if b {
		return spmd.I32(1)
	}
	return spmd.I32(0)
}

// halfGrain is how many conversions are worth a goroutine.
const halfGrain = 1 << 14

func roundAll(dst []spmd.BF16, src []float32) {
	host.Parallel(len(src), halfGrain, func(lo, hi int) { host.Round(dst[lo:hi], src[lo:hi]) })
}

// rowGrain is how many rows of c elements are worth a goroutine.
func rowGrain(c int) int { return max(1, 1<<14/c) }

// columns calls fn on ranges of c columns of n rows, cut at whole cache lines.
func columns(c, n int, fn func(lo, hi int)) {
	const block = 64
	host.Parallel((c+block-1)/block, max(1, 1<<14/(block*n)), func(lo, hi int) {
		fn(lo*block, min(hi*block, c))
	})
}

// blocks is a grid of blocks of 256 threads, which kernels.cu relies on.
func blocks(x, y, z int) spmd.Grid {
	return spmd.Grid{Blocks: [3]int{x, y, z}, Threads: [3]int{256, 1, 1}}
}

// warpRows is a grid of a warp for each of n rows.
func warpRows(n int) spmd.Grid { return blocks((n+7)/8, 1, 1) }

// The backward pass of a LayerNorm goes in up to normParts blocks, two for each
// multiprocessor of an H100 or H200. Each leaves sums of three kinds for each column;
// so do its sets of sumSet blocks.
const (
	normParts = 264
	sumSet    = 16
	normRows  = normParts + (normParts+sumSet-1)/sumSet
)

// tileGrid is a grid of at most most blocks for kernels on tiles of rows of n rows of c
// columns: groups of whole warps with a thread for every 8 columns, each group rows at a
// time. Rows that do not fit such groups are for blocks of 256 threads, one at a time.
func tileGrid(n, c, rows, most int) spmd.Grid {
	const mostThreads = 288
	threads, groups := 256, 1
	if c%8 == 0 && c <= 8*mostThreads {
		group := (c/8 + 31) / 32 * 32
		groups = mostThreads / group
		threads = groups * group
	} else {
		rows = 1
	}
	return spmd.Grid{Blocks: [3]int{min(most, (n+rows*groups-1)/(rows*groups)), 1, 1}, Threads: [3]int{threads, 1, 1}}
}

// normByWarps is a grid of up to most blocks for the kernels of LayerNorms of n rows of c columns
// whose warps have a row each, and read so many arrays ahead; false where there is another kernel.
func (e *launcher[A]) normByWarps(n, c, arrays, most int) (spmd.Grid, bool) {
	const warps, deep = 8, 4
	shared := warps * deep * (2*arrays*c + 2*4*32) // of rows, and two statistics for each lane
	if !isHalf[A]() || c%8 != 0 || c <= 512 || c > 1024 || shared > e.s.World().SharedMemory()-1<<10 {
		return spmd.Grid{}, false
	}
	return spmd.Grid{Blocks: [3]int{min(most, (n+warps-1)/warps), 1, 1}, Threads: [3]int{32 * warps, 1, 1}, Shared: shared}, true
}

// chunksOf is how many warps it takes to cover a row of c columns.
func chunksOf(c int) int {
	if c%8 == 0 {
		return (c + 255) / 256
	}
	return (c + 31) / 32
}

// launcher puts kernels on a stream that work on some rows of a model. After the first error it
// launches nothing more, and keeps the error.
type launcher[A Act] struct {
	s       *spmd.Stream
	cfg     Config
	n, t    int  // rows, which are tokens; those of a sequence
	acc     bool // add to the gradients and the loss instead of setting them
	accLoss bool // add to the loss, at any rate
	scratch
	err error
}

// scratch is memory that kernels use while they run.
type scratch struct {
	partial spmd.Buffer[float32] // parts of sums over rows, on a GPU
	arrived spmd.Buffer[uint32]  // of how many parts there are, between two sums 0
	columns spmd.Buffer[float32] // (columnParts,4C): sums of columns of what is cast; empty where nothing is
}

// launch puts one of the two on the stream.
func (e *launcher[A]) launch(k kernel, g spmd.Grid, args ...spmd.Arg) {
	if e.err != nil {
		return
	}
	if isHalf[A]() {
		e.err = k.bf16.Launch(e.s, g, args...)
	} else {
		e.err = k.f32.Launch(e.s, g, args...)
	}
}

func isHalf[A Act]() bool {
	_, half := any(*new(A)).(spmd.BF16)
	return half
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

var encoderForwardKernel = newKernel("encoder_forward", func(a *hostArgs) error {
	n, t, c, vocab := a.I32(4), a.I32(5), a.I32(6), a.I32(7)
	out, tokens, wte, wpe := a.out(0, n*c), a.i32(1, n), a.f32(2), a.f32(3)
	if err := checkTokens(tokens, vocab); err != nil {
		return err
	}
	host.Parallel(n, rowGrain(c), func(lo, hi int) { cEncoderForward(out, tokens, wte, wpe, t, c, lo, hi) })
	return nil
})

// encoderForward enqueues out(n,c) = wte[token] + wpe[position]. A token outside the
// vocabulary fails the stream on the host; on a GPU it makes the loss NaN.
func (e *launcher[A]) encoderForward(out spmd.Buffer[A], tokens spmd.Buffer[int32], wte, wpe spmd.Buffer[float32]) {
	C := e.cfg.Channels
	e.launch(encoderForwardKernel, warpRows(e.n), out.Arg(), tokens.Arg(), wte.Arg(), wpe.Arg(),
		spmd.I32(e.n), spmd.I32(e.t), spmd.I32(C), spmd.I32(e.cfg.Vocab))
}

var encoderBackwardKernel = newKernel("encoder_backward", func(a *hostArgs) error {
	n, t, c, positions, vocab, acc := a.I32(6), a.I32(7), a.I32(8), a.I32(9), a.I32(10), a.flag(13)
	dwte, dwpe, dout := a.f32(0), a.f32(1), a.in(4, n*c)
	p := planOf(a.i32(5, sortedLen(n, vocab)), n, vocab)
	if err := p.check(vocab); err != nil {
		return err
	}
	// Two rows with one token add to one row of dwte: split by columns, each column
	// adds in the order of the rows.
	columns(c, n, func(lo, hi int) { cEncoderBackward(dwte, dwpe, dout, p, t, c, positions, acc, lo, hi) })
	return nil
})

// encoderBackward enqueues dwte[token] += dout and dwpe[position] (+)= dout, from the
// tokens as sorter.sort leaves them. The head has set dwte before.
func (e *launcher[A]) encoderBackward(dwte, dwpe spmd.Buffer[float32], dout spmd.Buffer[A], sorted spmd.Buffer[int32]) {
	cfg := e.cfg
	parts, splits := mostParts(e.n, cfg.Vocab), mostSplits(e.n)
	warps := (cfg.SeqMax + parts) * chunksOf(cfg.Channels)
	e.launch(encoderBackwardKernel, blocks(min(2112, (warps+7)/8), 1, 1), dwte.Arg(), dwpe.Arg(), e.partial.Arg(), e.arrived.Arg(),
		dout.Arg(), sorted.Arg(), spmd.I32(e.n), spmd.I32(e.t), spmd.I32(cfg.Channels), spmd.I32(cfg.SeqMax), spmd.I32(cfg.Vocab),
		spmd.I32(parts), spmd.I32(splits), flag(e.acc))
}

var (
	layerNormForwardKernel = newKernel("layernorm_forward", hostLayerNormForward)
	layerNormForwardWarps  = newKernel("layernorm_forward_warps", hostLayerNormForward)
	layerNormForwardWarps8 = newKernel("layernorm_forward_warps_8", copying(8, hostLayerNormForward))
)

func hostLayerNormForward(a *hostArgs) error {
	n, c := a.I32(6), a.I32(7)
	out, mean, rstd, x, weight, bias := a.out(0, n*c), a.f32(1), a.f32(2), a.in(3, n*c), a.f32(4), a.f32(5)
	host.Parallel(n, rowGrain(c), func(lo, hi int) {
		cLayerNormForward(out, mean, rstd, x, weight, bias, c, lo, hi)
	})
	return nil
}

// layerNormForward enqueues out(n,c) = (x - mean)·rstd·weight + bias, and its copy, and
// keeps mean(n) and rstd(n).
func (e *launcher[A]) layerNormForward(out spmd.Buffer[A], mean, rstd spmd.Buffer[float32], x spmd.Buffer[A], p *norm, to cast) {
	c := e.cfg.Channels
	args := [11]spmd.Arg{out.Arg(), mean.Arg(), rstd.Arg(), x.Arg(), p.w.Arg(), p.b.Arg(), spmd.I32(e.n), spmd.I32(c),
		to.codes.Arg(), to.up.Arg(), to.peak.Arg()}
	switch grid, ok := e.normByWarps(e.n, c, 1, 264); {
	case ok && to.none():
		e.launch(layerNormForwardWarps, grid, args[:8]...)
	case ok:
		e.launch(layerNormForwardWarps8, grid, args[:]...)
	default:
		e.launch(layerNormForwardKernel, tileGrid(e.n, c, 2, 528), args[:8]...)
		e.cast(out, e.n*c, to)
	}
}

var (
	layerNormBackwardKernel = newKernel("layernorm_backward", hostLayerNormBackward)
	layerNormBackwardWarps  = newKernel("layernorm_backward_warps", hostLayerNormBackward)
	layerNormBackwardWarps8 = newKernel("layernorm_backward_warps_8", copying(15, hostLayerNormBackward))
)

func hostLayerNormBackward(a *hostArgs) error {
	n, c, add, acc := a.I32(11), a.I32(12), a.flag(13), a.flag(14)
	var dx []float32
	if add {
		dx = a.inOut(0, n*c)
	} else {
		dx = a.out(0, n*c)
	}
	dweight, dbias, dcolumns := a.f32(1), a.f32(2), a.f32(3)
	dout, x, weight, mean, rstd := a.in(6, n*c), a.in(7, n*c), a.f32(8), a.f32(9), a.f32(10)
	host.Parallel(n, rowGrain(c), func(lo, hi int) {
		cLayerNormBackwardInput(dx, dout, x, weight, mean, rstd, c, add, lo, hi)
	})
	a.settle()
	columns(c, n, func(lo, hi int) {
		cLayerNormBackwardParams(dweight, dbias, dout, x, mean, rstd, n, c, acc, lo, hi)
		if len(dcolumns) > 0 {
			cBiasBackward(dcolumns, dx, n, c, acc, lo, hi)
		}
	})
	return nil
}

// layerNormBackward enqueues dx(n,c) = the gradient of the LayerNorm's input, added
// with add, the gradients of its parameters, and dcolumns(c) (+)= the sums of the new
// dx over its rows, where dcolumns is not empty: dx is the gradient of the residual
// stream, and that of the bias of the projection that wrote there. It makes a copy of dx.
func (e *launcher[A]) layerNormBackward(dx, dout, x spmd.Buffer[A], mean, rstd spmd.Buffer[float32], p *norm, dcolumns spmd.Buffer[float32], add bool, to cast) {
	c := e.cfg.Channels
	args := [18]spmd.Arg{dx.Arg(), p.dw.Arg(), p.db.Arg(), dcolumns.Arg(),
		e.partial.Arg(), e.arrived.Arg(), dout.Arg(), x.Arg(), p.w.Arg(), mean.Arg(), rstd.Arg(), spmd.I32(e.n), spmd.I32(c), flag(add), flag(e.acc),
		to.codes.Arg(), to.up.Arg(), to.peak.Arg()}
	switch grid, ok := e.normByWarps(e.n, c, 3, normParts/2); {
	case ok && to.none():
		e.launch(layerNormBackwardWarps, grid, args[:15]...)
	case ok:
		e.launch(layerNormBackwardWarps8, grid, args[:]...)
	default:
		e.launch(layerNormBackwardKernel, tileGrid(e.n, c, 1, normParts), args[:15]...)
		e.cast(dx, e.n*c, to)
	}
}

var addToKernel = spmd.NewKernel("add_to", cudaSource, func(a spmd.Args) error {
	dst, src := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	for i, v := range src {
		dst[i] += v
	}
	return nil
}, spmd.Define("ACT", "float"))

// addTo enqueues dst += src.
func (e *launcher[A]) addTo(dst, src spmd.Buffer[float32]) {
	if e.err == nil {
		e.err = addToKernel.Launch(e.s, spmd.Cover1D(src.Len(), 256), dst.Arg(), src.Arg(), spmd.I32(src.Len()))
	}
}

var (
	classifierKernel  = newKernel("classifier", hostClassifier)
	classifierKernel8 = newKernel("classifier_8", copying(9, hostClassifier))
)

func hostClassifier(a *hostArgs) error {
	n, v, vp, scale, grad := a.I32(3), a.I32(4), a.I32(5), a.F32(7), a.flag(8)
	losses, targets := a.f32(0), a.i32(2, n)
	logits := a.in
	if grad {
		logits = a.inOut
	}
	x := logits(1, n*vp)
	if err := checkTokens(targets, v); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	host.Parallel(n, rowGrain(vp), func(lo, hi int) { cClassifier(losses, x, targets, v, vp, scale, grad, lo, hi) })
	return nil
}

// classifier enqueues losses(n) = the cross-entropy of logits(n,vp) against
// targets(n). With grad the logits become scale times their gradient, 0 in the
// columns beyond the vocabulary. A target outside the vocabulary does what such a
// token does to encoderForward. A gradient is copied, too.
func (e *launcher[A]) classifier(losses spmd.Buffer[float32], logits spmd.Buffer[A], targets spmd.Buffer[int32], scale float32, grad bool, to cast) {
	n, vp, size := targets.Len(), e.cfg.PaddedVocab(), 4
	if isHalf[A]() {
		size = 2
	}
	// Two blocks of a multiprocessor share what it has: while one waits for its row, the
	// other computes. The kernel itself declares less than 2 KB.
	held := max(0, min(vp*size, e.s.World().SharedMemory()-2<<10, 112<<10)) / 16
	g := spmd.Grid{Blocks: [3]int{n, 1, 1}, Threads: [3]int{512, 1, 1}, Shared: 16 * held}
	args := [12]spmd.Arg{losses.Arg(), logits.Arg(), targets.Arg(),
		spmd.I32(n), spmd.I32(e.cfg.Vocab), spmd.I32(vp), spmd.I32(held), spmd.F32(scale), flag(grad), to.codes.Arg(), to.up.Arg(), to.peak.Arg()}
	if to.none() || !grad {
		e.launch(classifierKernel, g, args[:9]...)
	} else {
		e.launch(classifierKernel8, g, args[:]...)
	}
}

var lossSumKernel = spmd.NewKernel("loss_sum", cudaSource, func(a spmd.Args) error {
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
}, spmd.Define("ACT", "float"))

// lossSum enqueues loss(1) (+)= scale times the sum of losses(n).
func (e *launcher[A]) lossSum(loss spmd.Buffer[float64], losses spmd.Buffer[float32], scale float32) {
	if e.err == nil {
		g := spmd.Grid{Blocks: [3]int{1, 1, 1}, Threads: [3]int{1024, 1, 1}}
		e.err = lossSumKernel.Launch(e.s, g, loss.Arg(), losses.Arg(), spmd.I32(e.n), spmd.F32(scale), flag(e.acc || e.accLoss))
	}
}

var roundWeightsKernel = spmd.NewKernel("round_weights", cudaSource, func(a spmd.Args) error {
	roundAll(spmd.ArgSlice[spmd.BF16](a, 0), spmd.ArgSlice[float32](a, 1))
	return nil
}, spmd.Define("ACT", "float"))

// roundWeights enqueues half = p, whole arenas.
func roundWeights(s *spmd.Stream, half spmd.Buffer[spmd.BF16], p spmd.Buffer[float32]) error {
	return roundWeightsKernel.Launch(s, spmd.Cover1D(p.Len()/4, 256), half.Arg(), p.Arg(), spmd.I64(p.Len()))
}
