package optim

import (
	_ "embed"
	"errors"
	"math"
	"slices"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/kernels"
	"lockstep/apps/train/layout"
	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// MuonConfig holds the constants of Muon, and the rates of what AdamW updates beside it.
type MuonConfig struct {
	Peak                       float64 // the rate of matrices at which the others are as below: all rise and fall together
	Embeddings, Heads, Vectors float64 // rates of AdamW
}

// DefaultMuon is what modern models of GPT-2-small's size begin with.
var DefaultMuon = MuonConfig{Peak: 0.02, Embeddings: 0.3, Heads: 0.005, Vectors: 0.02}

// DefaultMuonAdam is AdamW's part beside Muon.
var DefaultMuonAdam = AdamConfig{Beta1: 0.8, Beta2: 0.95, Eps: 1e-10}

// Momentum is that of a step, counted from 0: it rises for muonWarmup steps.
func (MuonConfig) Momentum(step int) float64 {
	return 0.85 + 0.1*min(1, float64(step)/muonWarmup)
}

const muonWarmup = 300

// rate is that of a family where the matrices' is lr.
func (c *MuonConfig) rate(f layout.Family, lr float64) float64 {
	return lr / c.Peak * [...]float64{layout.Matrices: c.Peak, layout.Embeddings: c.Embeddings, layout.Heads: c.Heads, layout.Vectors: c.Vectors}[f]
}

// polynomials are those of the steps that bring singular values near 1: each makes of a matrix X with A = X·Xᵀ
// a·X + (b·A + c·A²)·X. Source: Amsel and others, The Polar Express, with a margin.
var polynomials = [...]struct{ a, b, c float64 }{
	{4.0848, -6.8946, 2.9270}, {3.9505, -6.3029, 2.6377}, {3.7418, -5.5913, 2.3037}, {2.8769, -3.1427, 1.2046}, {2.8366, -3.0525, 1.2012},
}

// orthogonalScale is by how much what products leave is to be multiplied: they leave out each polynomial's a.
var orthogonalScale = func() float64 {
	s := 1.0
	for _, p := range polynomials {
		s *= p.a
	}
	return s
}()

// muon updates the matrices of layers:
//
//	m ← μm + (1-μ)g
//	p ← (1-lr·λ)p - lr·√max(1, rows/columns)·orthogonal((1-μ)g + μm)
//
// where orthogonal has all singular values near 1 (Jordan and others, Muon: An optimizer for hidden layers). The matrices
// of a shape are made so by the ranks, some each, which then give them to each other.
type muon struct {
	cfg    AdamConfig
	state  *gpt.State
	m      spmd.Buffer[float32] // AdamW's
	hyper  spmd.Buffer[float32] // (2): rate, momentum
	shapes []*muonShape
	work   orthogonalizer
}

// muonShape is matrices of one shape.
type muonShape struct {
	rows, cols int
	at         []int                // in arenas
	offsets    spmd.Buffer[int64]   // the same
	squares    spmd.Buffer[float32] // of each and each chunk of it
	counts     []int                // elements that each rank makes orthogonal
}

// orthogonalizer has the memory of the products, whatever the type of their operands.
type orthogonalizer interface {
	take(sp *layout.Space, most, squares int)
	orthogonal(s *spmd.Stream, x *muon, q *muonShape, gate spmd.Buffer[float32], c spmd.Comm) (spmd.Arg, error)
}

// shapesOf lists the matrices of layers by their shape.
func shapesOf(cfg layout.Config, params []layout.Param) (shapes []*muonShape) {
	for _, p := range params {
		if cfg.Family(p) != layout.Matrices {
			continue
		}
		i := slices.IndexFunc(shapes, func(q *muonShape) bool { return q.rows == p.Shape[0] && q.cols == p.Shape[1] })
		if i < 0 {
			i = len(shapes)
			shapes = append(shapes, &muonShape{rows: p.Shape[0], cols: p.Shape[1]})
		}
		shapes[i].at = append(shapes[i].at, p.Off)
	}
	return shapes
}

func (q *muonShape) len() int { return q.rows * q.cols }

func (q *muonShape) chunks() int { return (q.len() + muonChunk - 1) / muonChunk }

// takeAll takes, or counts, the memory.
func (x *muon) takeAll(sp *layout.Space, half bool) {
	most, squares := 0, 0
	for _, q := range x.shapes {
		layout.Take(sp, len(q.at), &q.offsets)
		layout.Take(sp, len(q.at)*q.chunks(), &q.squares)
		side := min(q.rows, q.cols)
		most, squares = max(most, len(q.at)*q.len()), max(squares, len(q.at)*side*side)
	}
	layout.Take(sp, 2, &x.hyper)
	x.work = &orthogonals[float32]{}
	if half {
		x.work = &orthogonals[spmd.BF16]{}
	}
	x.work.take(sp, most, squares)
}

// open fills what takeAll has taken. c is the ranks that share the work.
func (x *muon) open(c spmd.Comm) error {
	var errs []error
	for _, q := range x.shapes {
		at := make([]int64, len(q.at))
		for i, off := range q.at {
			at[i] = int64(off)
		}
		errs = append(errs, q.offsets.CopyFrom(at))
		for r := range c.Size() {
			q.counts = append(q.counts, spmd.ShardOf(len(q.at), r, c.Size()).Len*q.len())
		}
	}
	return errors.Join(errs...)
}

// prepare enqueues the numbers of a step.
func (x *muon) prepare(s *spmd.Stream, step int, lr float64) error {
	if err := spmd.Fill(s, x.hyper.Slice(0, 1), float32(lr)); err != nil {
		return err
	}
	return spmd.Fill(s, x.hyper.Slice(1, 2), float32(x.cfg.Muon.Momentum(step)))
}

// apply enqueues the update.
func (x *muon) apply(s *spmd.Stream, gate spmd.Buffer[float32], c spmd.Comm) error {
	for _, q := range x.shapes {
		grid := muonGrid(q, len(q.at))
		if err := muonMomentumKernel.Launch(s, grid, x.m.Arg(), q.squares.Arg(), x.state.Grads.Arg(), q.offsets.Arg(), x.hyper.Arg(), gate.Arg(),
			spmd.I64(q.len()), spmd.F32(float32(x.cfg.Clip))); err != nil {
			return err
		}
		u, err := x.work.orthogonal(s, x, q, gate, c)
		if err != nil {
			return err
		}
		factor := orthogonalScale * math.Sqrt(max(1, float64(q.rows)/float64(q.cols)))
		kernel := muonUpdateKernel.F32
		if x.state.Half.Len() > 0 {
			kernel = muonUpdateKernel.BF16
		}
		if err := kernel.Launch(s, grid, x.state.Weights.Arg(), x.state.Half.Arg(), u, q.offsets.Arg(), x.hyper.Arg(), gate.Arg(),
			spmd.I64(q.len()), spmd.F32(float32(factor)), spmd.F32(float32(x.cfg.WeightDecay))); err != nil {
			return err
		}
	}
	return nil
}

// orthogonals is an orthogonalizer by products of T.
type orthogonals[T kernels.Act] struct {
	x    [2]spmd.Buffer[T] // matrices, which steps take from one to the other
	a, b spmd.Buffer[T]    // (n,side,side)
}

func (o *orthogonals[T]) take(sp *layout.Space, most, squares int) {
	layout.Take(sp, most, &o.x[0], &o.x[1])
	layout.Take(sp, squares, &o.a, &o.b)
}

// orthogonal enqueues the steps for this rank's matrices, and returns where those of all ranks then are.
func (o *orthogonals[T]) orthogonal(s *spmd.Stream, x *muon, q *muonShape, gate spmd.Buffer[float32], c spmd.Comm) (u spmd.Arg, err error) {
	mine, n := spmd.ShardOf(len(q.at), c.Rank(), c.Size()), q.len()
	kernel := muonDirectionKernel.F32
	if kernels.IsHalf[T]() {
		kernel = muonDirectionKernel.BF16
	}
	if mine.Len > 0 {
		if err := kernel.Launch(s, muonGrid(q, mine.Len), o.x[0].Arg(), q.squares.Arg(), x.m.Arg(), x.state.Grads.Arg(), q.offsets.Arg(), x.hyper.Arg(), gate.Arg(),
			spmd.I64(n), spmd.F32(float32(x.cfg.Clip)), spmd.I32(mine.Off), spmd.I32(mine.Len)); err != nil {
			return u, err
		}
	}
	scale := 1.0 // of the matrices, of which from has what is left
	for k, p := range polynomials {
		from, to := o.x[k%2].Slice(mine.Off*n, (mine.Off+mine.Len)*n), o.x[1-k%2].Slice(mine.Off*n, (mine.Off+mine.Len)*n)
		if mine.Len == 0 {
			break
		}
		if err := o.step(s, to, from, mine.Len, q.rows, q.cols, scale, p.a, p.b, p.c); err != nil {
			return u, err
		}
		scale *= p.a
	}
	all := o.x[len(polynomials)%2].Slice(0, len(q.at)*n)
	if c.Size() > 1 {
		err = spmd.AllGatherV(c.On(s), all, all.Slice(mine.Off*n, (mine.Off+mine.Len)*n), q.counts)
	}
	return all.Arg(), err
}

// step enqueues, for each of n matrices, with X = scale·from, to = (a·X + (b·A + c·A²)·X)/(a·scale), where A = X·Xᵀ; or, where X is higher than wide, X·(...)
// with A = Xᵀ·X, which is the same.
func (o *orthogonals[T]) step(s *spmd.Stream, to, from spmd.Buffer[T], n, rows, cols int, scale, a, b, c float64) error {
	high, side := rows > cols, min(rows, cols)
	x, y := blas.MatrixOf(from, n*rows, cols), blas.MatrixOf(to, n*rows, cols)
	aa, bb := blas.MatrixOf(o.a.Slice(0, n*side*side), n*side, side), blas.MatrixOf(o.b.Slice(0, n*side*side), n*side, side)
	if err := blas.Gemm(s, aa, x, x, blas.Options{Batch: n, TransA: high, TransB: !high, Alpha: scale * scale}); err != nil {
		return err
	}
	if err := blas.Gemm(s, bb, aa, aa, blas.Options{Batch: n, Alpha: c / b, Residual: aa.Arg()}); err != nil { // A + c/b·A²
		return err
	}
	if high {
		return blas.Gemm(s, y, x, bb, blas.Options{Batch: n, Alpha: b / a, Residual: x.Arg()})
	}
	return blas.Gemm(s, y, bb, x, blas.Options{Batch: n, Alpha: b / a, Residual: x.Arg()})
}

//go:embed muon.cu
var muonSource string

const muonChunk = 4096 // elements of a block, as in muon.cu

// muonGrid is a grid for n matrices.
func muonGrid(q *muonShape, n int) spmd.Grid {
	return spmd.Grid{Blocks: [3]int{q.chunks(), n, 1}, Threads: [3]int{256, 1, 1}}
}

// clipped is what gradients of such a norm are multiplied by; false where the norm is not finite.
func clipped(a spmd.Args, norm, clip int) (float32, bool) {
	x, most := float64(spmd.ArgSlice[float32](a, norm)[0]), float64(a.F32(clip))
	if most > 0 && x > most {
		return float32(most / x), kernels.Finite(x)
	}
	return 1, kernels.Finite(x)
}

// eachChunk calls fn for chunk i of matrices, in parallel, with its elements [lo, hi).
func eachChunk(matrices, n int, fn func(matrix, chunk, lo, hi int)) {
	chunks := (n + muonChunk - 1) / muonChunk
	host.Parallel(matrices*chunks, 4, func(first, end int) {
		for i := first; i < end; i++ {
			lo := i % chunks * muonChunk
			fn(i/chunks, i%chunks, lo, min(lo+muonChunk, n))
		}
	})
}

var muonMomentumKernel = spmd.NewKernel("muon_momentum", muonSource, func(a spmd.Args) error {
	m, squares, g, at := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[int64](a, 3)
	momentum, n := spmd.ArgSlice[float32](a, 4)[1], a.I64(6)
	scale, good := clipped(a, 5, 7)
	if !good {
		return nil
	}
	chunks := len(squares) / len(at)
	eachChunk(len(at), n, func(matrix, chunk, lo, hi int) {
		off := int(at[matrix])
		squares[matrix*chunks+chunk] = float32(cMuonMomentum(m[off+lo:off+hi], g[off+lo:off+hi], scale, momentum))
	})
	return nil
}, spmd.Define("ACT", "float"), spmd.Tolerance(1e-5))

// typedMuon declares a kernel for each type of the products' operands.
func typedMuon(name string, fn func(a spmd.Args, half bool) error) kernels.Kernel {
	return kernels.Kernel{
		F32:  spmd.NewKernel(name, muonSource, func(a spmd.Args) error { return fn(a, false) }, spmd.Define("ACT", "float"), spmd.Tolerance(1e-5)),
		BF16: spmd.NewKernel(name, muonSource, func(a spmd.Args) error { return fn(a, true) }, spmd.Define("ACT", "bf16"), spmd.Tolerance(1e-5)),
	}
}

var muonDirectionKernel = typedMuon("muon_direction", func(a spmd.Args, half bool) error {
	squares, m, g, at := spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[float32](a, 3), spmd.ArgSlice[int64](a, 4)
	momentum, n, first := spmd.ArgSlice[float32](a, 5)[1], a.I64(7), a.I32(9)
	scale, good := clipped(a, 6, 8)
	if !good {
		return nil
	}
	chunks := len(squares) / len(at)
	eachChunk(a.I32(10), n, func(matrix, _, lo, hi int) {
		matrix += first
		sum, off := 0.0, int(at[matrix])
		for _, x := range squares[matrix*chunks : (matrix+1)*chunks] {
			sum += float64(x)
		}
		inverse := float32(1 / (math.Sqrt(sum) + 1e-7))
		if !half {
			x := spmd.ArgSlice[float32](a, 0)[matrix*n : (matrix+1)*n]
			cMuonDirection(x[lo:hi], m[off+lo:off+hi], g[off+lo:off+hi], scale, momentum, inverse)
			return
		}
		var wide [muonChunk]float32
		cMuonDirection(wide[:hi-lo], m[off+lo:off+hi], g[off+lo:off+hi], scale, momentum, inverse)
		host.Round(spmd.ArgSlice[spmd.BF16](a, 0)[matrix*n+lo:matrix*n+hi], wide[:hi-lo])
	})
	return nil
})

var muonUpdateKernel = typedMuon("muon_update", func(a spmd.Args, half bool) error {
	p, at, hyper, n := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[int64](a, 3), spmd.ArgSlice[float32](a, 4), a.I64(6)
	rate, decay := hyper[0]*a.F32(7), hyper[0]*a.F32(8)
	if !kernels.Finite(float64(spmd.ArgSlice[float32](a, 5)[0])) {
		return nil
	}
	eachChunk(len(at), n, func(matrix, _, lo, hi int) {
		off := int(at[matrix])
		w := p[off+lo : off+hi]
		if !half {
			cMuonUpdate(w, spmd.ArgSlice[float32](a, 2)[matrix*n+lo:matrix*n+hi], rate, decay)
			return
		}
		var wide [muonChunk]float32
		host.Widen(wide[:hi-lo], spmd.ArgSlice[spmd.BF16](a, 2)[matrix*n+lo:matrix*n+hi])
		cMuonUpdate(w, wide[:hi-lo], rate, decay)
		host.Round(spmd.ArgSlice[spmd.BF16](a, 1)[off+lo:off+hi], w)
	})
	return nil
})
