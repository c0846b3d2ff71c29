package ops

import (
	_ "embed"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"lockstep/host"
	"lockstep/spmd"
)

// These are the kernels of modern models: modern.cu runs on a GPU, modern.c on the host. A part
// that a model lacks is an empty buffer.

//go:embed modern.cu
var modernCUDA string

var modernSource = commonSource + eightSource + modernCUDA

// Grids are multiples of tuned, the multiprocessors of an H100. Every GPU has the same: sums
// have the same parts there, and so the same bits. sumBlocks is the largest number of blocks that
// leave sums of numbers. SumSets is how many sets of 16 they make.
const (
	tuned     = 132
	sumBlocks = 6 * tuned
	SumSets   = (sumBlocks + 15) / 16
)

// SumsLen returns how many numbers the kernels of n rows leave as parts of sums.
func SumsLen(n int) int { return 2 * max(n, sumBlocks+SumSets) }

// newCopying declares kernel name for bfloat16: what fn computes, and a copy of what fn writes
// first. The codes are argument i.
func newCopying(name string, i int, fn func(a *HostArgs) error, scratch ...int) Kernel {
	return Kernel{BF16: declare(modernSource, name, onHost[spmd.BF16](Copying[spmd.F8E4M3](i, fn)), "bf16", scratch)}
}

// rowKernel is a kernel whose warps hold a row in registers. It has a form for each width of rows,
// in pieces of 256 numbers.
type rowKernel [len(rowPieces)]Kernel

var rowPieces = [...]int{1, 3, 4, 8}

func newRowKernel(name string, fn func(a *HostArgs) error, scratch ...int) (k rowKernel) {
	for i, pieces := range rowPieces {
		k[i] = newKernel(modernSource, fmt.Sprintf(name, pieces), fn, scratch...)
	}
	return k
}

// newRowKernels returns a row kernel without copies, and the one with them: its codes are argument
// codes.
func newRowKernels(name string, codes int, fn func(a *HostArgs) error,
	scratch ...int) (plain, copying rowKernel) {
	for i, pieces := range rowPieces {
		copying[i] = newCopying(fmt.Sprintf(name+"<%d,true>", pieces), codes, fn, scratch...)
	}
	return newRowKernel(name+"<%d,false>", fn, scratch...), copying
}

// of returns the kernel for rows of c numbers.
func (k *rowKernel) of(c int) Kernel { return k[piecesOf(c)] }

// piecesOf returns the index in rowPieces for rows of c numbers.
func piecesOf(c int) int {
	for i, pieces := range rowPieces {
		if c <= 256*pieces {
			return i
		}
	}
	panic("ops: a row beyond layout.MostModernChannels")
}

// optional returns activations that may be missing.
func optional(a *HostArgs, i, n int) []float32 {
	if !a.Has(i) {
		return nil
	}
	return a.In(i, n)
}

// written returns activations that may be missing, to be written.
func written(a *HostArgs, i, n int) []float32 {
	if !a.Has(i) {
		return nil
	}
	return a.Out(i, n)
}

// changed is written for activations that are also read if they are added to.
func changed(a *HostArgs, i, n int, added bool) []float32 {
	if added && a.Has(i) {
		return a.InOut(i, n)
	}
	return written(a, i, n)
}

// total sets each of to (+)= the sum of a column of the sums of n rows.
func total(acc bool, sums []float32, n int, to ...*float32) {
	for k, x := range to {
		sum := 0.0
		for i := range n {
			sum += float64(sums[i*len(to)+k])
		}
		if acc {
			sum += float64(*x)
		}
		*x = float32(sum)
	}
}

var embedKernel = newRowKernel("modern_embed<%d>", func(a *HostArgs) error {
	n, c, vocab := a.I32(3), a.I32(4), a.I32(5)
	out, tokens, wte := a.Out(0, n*c), a.Ints(1, n), a.Floats(2)
	if err := CheckTokens(tokens, vocab); err != nil {
		return err
	}
	host.Parallel(n, RowGrain(c), func(lo, hi int) { cEmbed(out, tokens, wte, c, lo, hi) })
	return nil
})

// EmbedNormed enqueues out(n,c) = the norm of the rows of wte. A token outside the vocabulary has
// the same effect as in EncoderForward.
func (e *Launcher[A]) EmbedNormed(out spmd.Buffer[A], tokens spmd.Buffer[int32], wte spmd.Buffer[float32]) {
	c := e.Cfg.Channels
	e.Launch(embedKernel.of(c), warpRows(e.N), out.Arg(), tokens.Arg(), wte.Arg(), spmd.I32(e.N), spmd.I32(c),
		spmd.I32(e.Cfg.Vocab))
}

var embedBackwardKernel = newRowKernel("modern_embed_backward<%d>", func(a *HostArgs) error {
	n, c := a.I32(3), a.I32(4)
	d, tokens, wte := a.InOut(0, n*c), a.Ints(1, n), a.Floats(2)
	if err := CheckTokens(tokens, a.I32(5)); err != nil {
		return err
	}
	host.Parallel(n, RowGrain(c), func(lo, hi int) { cEmbedBackward(d, tokens, wte, c, lo, hi) })
	return nil
})

// EmbedNormedBackward enqueues the step from d, the gradient of EmbedNormed's output, to the
// gradient of the rows.
func (e *Launcher[A]) EmbedNormedBackward(d spmd.Buffer[A], tokens spmd.Buffer[int32], wte spmd.Buffer[float32]) {
	c := e.Cfg.Channels
	e.Launch(embedBackwardKernel.of(c), warpRows(e.N), d.Arg(), tokens.Arg(), wte.Arg(), spmd.I32(e.N), spmd.I32(c),
		spmd.I32(e.Cfg.Vocab))
}

// Number is a parameter of one number or two, and its gradient.
type Number struct{ W, DW spmd.Buffer[float32] }

// Skip is added to the residual stream before a norm: the output of an earlier layer,
// times a number.
type Skip[A Act] struct {
	Sum, Kept spmd.Buffer[A] // (n,c); empty if nothing is added
	By        Number         // (1)
}

var normKernel, normKernel8 = newRowKernels("modern_norm", 7, func(a *HostArgs) error {
	n, c := a.I32(5), a.I32(6)
	out, sum, x, kept, by := a.Out(0, n*c), written(a, 1, n*c), a.In(2, n*c), optional(a, 3, n*c), a.Floats(4)
	host.Parallel(n, RowGrain(c), func(lo, hi int) { cNorm(out, sum, x, kept, by, c, lo, hi) })
	return nil
})

// RMSNorm enqueues out(n,c) = the norm of x, with the addition of k, and its copy.
func (e *Launcher[A]) RMSNorm(out, x spmd.Buffer[A], k Skip[A], to Cast) {
	c, form := e.Cfg.Channels, &normKernel
	if !to.None() {
		form = &normKernel8
	}
	e.Launch(form.of(c), warpRows(e.N), out.Arg(), k.Sum.Arg(), x.Arg(), k.Kept.Arg(), k.By.W.Arg(),
		spmd.I32(e.N), spmd.I32(c), to.Codes.Arg(), to.Up.Arg(), to.Peak.Arg())
}

var normBackwardKernel, normBackwardKernel8 = newRowKernels("modern_norm_backward", 15, hostNormBackward, 3, 4)

func hostNormBackward(a *HostArgs) error {
	n, c, add, acc := a.I32(10), a.I32(11), a.I32(12) != 0, a.I32(13) != 0
	d, dkept, dskip, partial := changed(a, 0, n*c, add), written(a, 1, n*c), a.Floats(2), a.Floats(3)
	dnorm, x, kept, above, by := a.In(5, n*c), a.In(6, n*c), optional(a, 7, n*c), optional(a, 8, n*c), a.Floats(9)
	if a.I32(14) != 0 {
		above = dkept
	}
	host.Parallel(n, RowGrain(c), func(lo, hi int) {
		cNormBackward(d, dkept, partial, dnorm, x, kept, above, by, c, add, lo, hi)
	})
	if len(kept) > 0 {
		total(acc, partial, n, &dskip[0])
	}
	return nil
}

// normBackwardBlocks is how many blocks of the kernel fit on a multiprocessor, by the pieces of a
// row. modern.cu has the same numbers.
var normBackwardBlocks = [len(rowPieces)]int{3, 2, 2, 1}

// RMSNormGrad is the backward pass of an RMSNorm.
type RMSNormGrad[A Act] struct {
	D        spmd.Buffer[A]       // (n,c): the gradient of the residual stream behind the norm
	DNorm, X spmd.Buffer[A]       // (n,c): the gradient of the norm; its input, to which Skip is added already
	Skip     Skip[A]              // what was added
	DKept    spmd.Buffer[A]       // receives the gradient of what was kept; may be Above
	Above    spmd.Buffer[A]       // is added to the gradient of X, if it is not empty
	Adds     bool                 // D is added
	Sums     spmd.Buffer[float32] // (SumsLen)
	To       Cast                 // the copy of D
}

// RMSNormBackward enqueues the backward pass of a norm. D becomes the gradient of X.
func (e *Launcher[A]) RMSNormBackward(g RMSNormGrad[A]) {
	c, form, above, to := e.Cfg.Channels, &normBackwardKernel, g.Above, g.To
	if !to.None() {
		form = &normBackwardKernel8
	}
	twice := above.Len() > 0 && above == g.DKept
	if twice {
		above = spmd.Buffer[A]{}
	}
	pieces := piecesOf(c)
	grid := Blocks(min(tuned*normBackwardBlocks[pieces], (e.N+7)/8), 1, 1)
	e.Launch(form[pieces], grid, g.D.Arg(), g.DKept.Arg(),
		g.Skip.By.DW.Arg(), g.Sums.Arg(), e.Arrived.Arg(), g.DNorm.Arg(), g.X.Arg(), g.Skip.Kept.Arg(), above.Arg(),
		g.Skip.By.W.Arg(), spmd.I32(e.N), spmd.I32(c), Flag(g.Adds), Flag(e.Acc), Flag(twice),
		to.Codes.Arg(), to.Up.Arg(), to.Peak.Arg())
}

// ValueMix is the table that a layer mixes into its values, nothing if it is empty.
type ValueMix struct {
	Table spmd.Buffer[float32] // (Vp,c)
	Mix   Number               // (2)
}

// HeadShape is a model's shape for the kernels of heads.
type HeadShape struct {
	Heads, Size int
	Norm        bool
	Scale       float32              // of queries, for the attention's own
	Turn        spmd.Buffer[float32] // (T,Size/4,2): cosines and sines
}

// mostHeadThreads is PART in modern.cu.
const mostHeadThreads = 384

// grid returns the grid and the arguments of a kernel of heads for n rows, whose threads have 4
// numbers of both halves of a head. room is how many threads fit on a multiprocessor.
func (h HeadShape) grid(n, room int) (spmd.Grid, [6]spmd.Arg) {
	lanes := 1 << bits.Len(uint((h.Size/2-1)/4)) // of a head
	all := 3 * h.Heads * lanes
	parts := (all + mostHeadThreads - 1) / mostHeadThreads
	threads := 32 * ((all + 32*parts - 1) / (32 * parts))
	rows := min(n, max(1, tuned*max(1, min(sumBlocks/tuned, room/threads))/parts))
	return spmd.Grid{Blocks: [3]int{rows * parts, 1, 1}, Threads: [3]int{threads, 1, 1}},
		[...]spmd.Arg{spmd.I32(h.Heads), spmd.I32(h.Size), spmd.I32(lanes), spmd.I32(parts), Flag(h.Norm),
			spmd.F32(h.Scale)}
}

// Forward threads have 40 registers, backward ones 56.
const (
	forwardThreads  = 1536
	backwardThreads = 1152
)

var headsKernel = newKernel(modernSource, "modern_heads", hostHeads)

func hostHeads(a *HostArgs) error {
	n, t, vocab, heads, size, normed, scale := a.I32(6), a.I32(7), a.I32(8), a.I32(9), a.I32(10), a.I32(13) != 0,
		a.F32(14)
	c := heads * size
	out, qkv, tokens, table, mix, turn := a.Out(0, 3*n*c), a.In(1, 3*n*c), a.Ints(2, n), a.Floats(3), a.Floats(4),
		a.Floats(5)
	if err := CheckTokens(tokens, vocab); err != nil {
		return err
	}
	host.Parallel(n, RowGrain(3*c), func(lo, hi int) {
		cHeads(out, qkv, tokens, table, mix, turn, t, heads, size, normed, scale, lo, hi)
	})
	return nil
}

// HeadsForward enqueues out = the input of attention, from the output of the product in qkv. Both
// are (n,3,Heads,Size).
func (e *Launcher[A]) HeadsForward(h HeadShape, out, qkv spmd.Buffer[A], tokens spmd.Buffer[int32], v ValueMix) {
	grid, x := h.grid(e.N, forwardThreads)
	e.Launch(headsKernel, grid, out.Arg(), qkv.Arg(), tokens.Arg(), v.Table.Arg(), v.Mix.W.Arg(), h.Turn.Arg(),
		spmd.I32(e.N), spmd.I32(e.T), spmd.I32(e.Cfg.Vocab), x[0], x[1], x[2], x[3], x[4], x[5])
}

var (
	headsBackwardKernel  = newKernel(modernSource, "modern_heads_backward<false>", hostHeadsBackward, 3, 4)
	headsBackwardKernel8 = newCopying("modern_heads_backward<true>", 21, hostHeadsBackward, 3, 4)
)

func hostHeadsBackward(a *HostArgs) error {
	n, t, heads, size, normed, scale := a.I32(10), a.I32(11), a.I32(13), a.I32(14), a.I32(17) != 0, a.F32(18)
	fresh, acc := a.I32(19) != 0, a.I32(20) != 0
	c := heads * size
	d, dtable, dmix, partial := a.InOut(0, 3*n*c), changed(a, 1, n*c, !fresh), a.Floats(2), a.Floats(3)
	qkv, tokens, table, mix, turn := a.In(5, 3*n*c), a.Ints(6, n), a.Floats(7), a.Floats(8), a.Floats(9)
	if err := CheckTokens(tokens, a.I32(12)); err != nil {
		return err
	}
	host.Parallel(n, RowGrain(3*c), func(lo, hi int) {
		cHeadsBackward(d, dtable, partial, qkv, tokens, table, mix, turn, t, heads, size, normed, scale, fresh, lo, hi)
	})
	if len(table) > 0 {
		total(acc, partial, n, &dmix[0], &dmix[1])
	}
	return nil
}

// HeadsGrad is the backward pass of HeadsForward.
type HeadsGrad[A Act] struct {
	D      spmd.Buffer[A] // (n,3,Heads,Size): the gradient of the output, then that of QKV
	QKV    spmd.Buffer[A]
	Tokens spmd.Buffer[int32]
	Values ValueMix
	DTable spmd.Buffer[A]       // (n,c): the gradient of the table's rows
	Fresh  bool                 // DTable is set, not added to
	Sums   spmd.Buffer[float32] // (SumsLen)
	To     Cast                 // the copy of D
}

// HeadsBackward enqueues the backward pass of HeadsForward.
func (e *Launcher[A]) HeadsBackward(h HeadShape, g HeadsGrad[A]) {
	form, to := headsBackwardKernel, g.To
	if !to.None() {
		form = headsBackwardKernel8
	}
	grid, x := h.grid(e.N, backwardThreads)
	e.Launch(form, grid, g.D.Arg(), g.DTable.Arg(), g.Values.Mix.DW.Arg(), g.Sums.Arg(), e.Arrived.Arg(),
		g.QKV.Arg(), g.Tokens.Arg(), g.Values.Table.Arg(), g.Values.Mix.W.Arg(), h.Turn.Arg(), spmd.I32(e.N),
		spmd.I32(e.T), spmd.I32(e.Cfg.Vocab), x[0], x[1], x[2], x[3], x[4], x[5], Flag(g.Fresh), Flag(e.Acc),
		to.Codes.Arg(), to.Up.Arg(), to.Peak.Arg())
}

// windowStep is how many tokens share one window, as in package attention.
const windowStep = 128

var attendKernel = newKernel(modernSource, "modern_attend", func(a *HostArgs) error {
	before, n, heads, size, window := a.I32(2), a.I32(3), a.I32(4), a.I32(5), a.I32(6)
	c := heads * size
	out, qkv := a.Out(0, n*c), a.In(1, 3*c*(before+n))
	host.Parallel(n*heads, 1, func(lo, hi int) {
		for unit := lo; unit < hi; unit++ {
			at := before + unit/heads
			first := 0
			if window > 0 {
				first = max(0, at/windowStep*windowStep-window)
			}
			attendOne(out[unit*size:(unit+1)*size], qkv[unit%heads*size:], first, at, c)
		}
	})
	return nil
})

// attendOne sets out to the attention of the query at one token to the keys from first on, for one
// head of rows of 3c numbers.
func attendOne(out, qkv []float32, first, at, c int) {
	query, weights, sum := qkv[3*c*at:][:len(out)], make([]float64, at+1-first), 0.0
	for j := range weights {
		score := 0.0
		for d, k := range qkv[3*c*(first+j)+c:][:len(out)] {
			score += float64(query[d]) * float64(k)
		}
		weights[j] = score / math.Sqrt(float64(len(out)))
	}
	for j, top := 0, slices.Max(weights); j < len(weights); j++ {
		weights[j] = math.Exp(weights[j] - top)
		sum += weights[j]
	}
	for d := range out {
		x := 0.0
		for j, w := range weights {
			x += w * float64(qkv[3*c*(first+j)+2*c+d])
		}
		out[d] = float32(x / sum)
	}
}

// AttendFrom enqueues out(n,c) = the attention of n tokens behind others of one sequence. qkv has
// their queries, keys and values.
func (e *Launcher[A]) AttendFrom(h HeadShape, out, qkv spmd.Buffer[A], before, window int) {
	e.Launch(attendKernel, Blocks(e.N*h.Heads, 1, 1), out.Arg(), qkv.Arg(), spmd.I32(before), spmd.I32(e.N),
		spmd.I32(h.Heads), spmd.I32(h.Size), spmd.I32(window))
}
