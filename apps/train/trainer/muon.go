package trainer

import (
	"errors"
	"math"
	"slices"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// MuonConfig holds the constants of Muon, and the rates of the parameters that AdamW
// updates beside it.
type MuonConfig struct {
	// the rate of matrices to which the rates below belong: all rise and fall together
	Peak                       float64
	Embeddings, Heads, Vectors float64 // rates of AdamW
}

// DefaultMuon is the start for modern models of GPT-2-small's size.
var DefaultMuon = MuonConfig{Peak: 0.02, Embeddings: 0.3, Heads: 0.005, Vectors: 0.02}

// DefaultMuonAdam is AdamW's part beside Muon.
var DefaultMuonAdam = AdamConfig{Beta1: 0.8, Beta2: 0.95, Eps: 1e-10}

// Momentum returns the momentum of a step, counted from 0. It rises for muonWarmup steps.
func (MuonConfig) Momentum(step int) float64 {
	return 0.85 + 0.1*min(1, float64(step)/muonWarmup)
}

const muonWarmup = 300

// rate returns the rate of a family if the matrices' is lr.
func (c *MuonConfig) rate(f layout.Family, lr float64) float64 {
	return lr / c.Peak * [...]float64{layout.Matrices: c.Peak, layout.Embeddings: c.Embeddings, layout.Heads: c.Heads,
		layout.Vectors: c.Vectors}[f]
}

// polynomial is a step towards a matrix whose singular values are 1.
type polynomial struct{ a, b, c float64 }

// polynomials bring singular values near 1. Each turns a matrix X, with A = X·Xᵀ, into a·X + (b·A +
// c·A²)·X. Source: Amsel and others, The Polar Express, with a margin.
var polynomials = [...]polynomial{
	{4.0848, -6.8946, 2.9270}, {3.9505, -6.3029, 2.6377}, {3.7418, -5.5913, 2.3037}, {2.8769, -3.1427, 1.2046},
	{2.8366, -3.0525, 1.2012},
}

// orthogonalScale is the factor for the result of the products, which leave out each
// polynomial's a.
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
// orthogonal has all singular values near 1. Source: Jordan and others, Muon: An optimizer for
// hidden layers.
//
// The ranks divide the matrices of a shape, make them orthogonal, and give them to each other. If
// the ranks share the moments, each has a part of every matrix. The parts then go to the rank that
// makes the matrix orthogonal, and the parts of the result go back, in the type of the products.
//
// The results of a shape, and the update with them, go beside the products of the next one.
type muon struct {
	cfg    AdamConfig
	state  *gpt.State
	at     ops.MuonState // this rank's parts of weights, gradients and AdamW's first moments
	shapes []*muonShape
	work   orthogonalizer
	beside *spmd.Stream // of what comes from other ranks, and updates
}

// muonShape is matrices of one shape.
type muonShape struct {
	ops.MuonMatrices
	rows, cols int
	at         []layout.Param
	first      int      // element of all that are made orthogonal
	counts     []int    // elements that each rank makes orthogonal
	parts      [][]part // with --shard: the elements of each matrix that a rank has, by ranks
}

// part is elements [from, to) of a matrix.
type part struct{ from, to int }

// orthogonalizer has the memory of the products, for any type of their operands.
type orthogonalizer interface {
	take(sp *layout.Space, most, squares, all int)
	update(s *spmd.Stream, x *muon, q *muonShape, c spmd.Comm) error
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
			shapes[i].Len = p.Len
		}
		shapes[i].at = append(shapes[i].at, p)
		shapes[i].Count++
	}
	return shapes
}

// takeAll allocates, or counts, the memory.
func (x *muon) takeAll(sp *layout.Space, half bool) {
	most, squares, all := 0, 0, 0
	for _, q := range x.shapes {
		layout.Take(sp, ops.PlaceNumbers*q.Count, &q.Places)
		layout.Take(sp, q.Count*q.Chunks(), &q.Squares)
		side := min(q.rows, q.cols)
		most, squares = max(most, q.Count*q.Len), max(squares, q.Count*side*side)
		q.first = all
		all += (q.Count*q.Len + layout.ArenaAlign - 1) / layout.ArenaAlign * layout.ArenaAlign
	}
	layout.Take(sp, 2, &x.at.Hyper)
	x.work = &orthogonals[float32]{}
	if half {
		x.work = &orthogonals[spmd.BF16]{}
	}
	x.work.take(sp, most, squares, all)
}

// open fills the memory of takeAll. c is the ranks that share the work.
func (x *muon) open(c spmd.Comm) error {
	var errs []error
	st := x.state
	var err error
	if x.beside, err = st.World.NewStream("muon", spmd.High); err != nil {
		return err
	}
	x.at.W, x.at.G, x.at.Half = st.Weights, st.Grads, st.Half
	x.at.Clip, x.at.WeightDecay = x.cfg.Clip, x.cfg.WeightDecay
	if st.Cfg.Shard.Mode != layout.ShardOff {
		x.at.Half = spmd.Buffer[spmd.BF16]{} // parts that have come are rounded
	}
	if st.Cfg.Shard.Mode == layout.ShardParameters {
		x.at.W = st.Sharded.Weights
	}
	if st.Cfg.Shard.ScattersGrads() {
		x.at.G = st.Sharded.Grads
	}
	for _, q := range x.shapes {
		var places []int64
		for _, p := range q.at {
			have := ownOf(st, p.Group, p.Off, p.Off+p.Len)
			from := have.first - p.Off
			places = append(places, int64(from), int64(from+have.n), int64(have.w-from), int64(have.g-from),
				int64(have.m-from))
		}
		errs = append(errs, q.Places.CopyFrom(places))
		for r := range c.Size() {
			q.counts = append(q.counts, spmd.ShardOf(q.Count, r, c.Size()).Len*q.Len)
			if st.Cfg.Shard.Mode == layout.ShardOff {
				continue
			}
			cfg, parts := st.Cfg, []part{}
			cfg.Shard.Rank = r
			partition := cfg.PartitionOf(st.Groups)
			for _, p := range q.at {
				skip, _, n := partition.Own(p.Group, p.Off, p.Off+p.Len)
				parts = append(parts, part{skip, skip + n})
			}
			q.parts = append(q.parts, parts)
		}
	}
	return errors.Join(errs...)
}

// prepare enqueues the numbers of a step.
func (x *muon) prepare(s *spmd.Stream, step int, lr float64) error {
	if err := spmd.Fill(s, x.at.Hyper.Slice(0, 1), float32(lr)); err != nil {
		return err
	}
	return spmd.Fill(s, x.at.Hyper.Slice(1, 2), float32(x.cfg.Muon.Momentum(step)))
}

// apply enqueues the update. gate is AdamW's.
func (x *muon) apply(s *spmd.Stream, gate spmd.Buffer[float32], c spmd.Comm) error {
	x.at.Norm = gate
	for _, q := range x.shapes {
		if err := q.Momentum(s, x.at); err != nil {
			return err
		}
		if q.parts != nil && c.Size() > 1 {
			if err := spmd.AllReduce(c.On(s), q.Squares, q.Squares, spmd.Sum); err != nil {
				return err
			}
		}
		if err := x.work.update(s, x, q, c); err != nil {
			return err
		}
	}
	return s.After(x.beside)
}

func (x *muon) close() error {
	if x.beside == nil {
		return nil
	}
	return x.beside.Close()
}

// orthogonals is an orthogonalizer by products of T.
type orthogonals[T ops.Act] struct {
	x    [2]spmd.Buffer[T] // matrices of a shape, which steps take from one to the other
	all  spmd.Buffer[T]    // those of all shapes, as the last step leaves them
	a, b spmd.Buffer[T]    // (n,side,side)
}

func (o *orthogonals[T]) take(sp *layout.Space, most, squares, all int) {
	layout.Take(sp, most, &o.x[0], &o.x[1])
	layout.Take(sp, all, &o.all)
	layout.Take(sp, squares, &o.a, &o.b)
}

// update enqueues the steps for this rank's matrices, and the update of all ranks' matrices.
func (o *orthogonals[T]) update(s *spmd.Stream, x *muon, q *muonShape, c spmd.Comm) error {
	mine, n := spmd.ShardOf(q.Count, c.Rank(), c.Size()), q.Len
	there := mine // whose direction this rank has
	if q.parts != nil {
		there = spmd.Shard{Len: q.Count}
	}
	if err := ops.MuonDirection(s, o.x[0], &q.MuonMatrices, x.at, there); err != nil {
		return err
	}
	if err := o.exchange(s, o.x[0], q, c, toOwners); err != nil {
		return err
	}
	lo, hi := mine.Off*n, (mine.Off+mine.Len)*n
	all := o.all.Slice(q.first, q.first+q.Count*n)
	from, scale := o.x[0].Slice(lo, hi), 1.0 // the factor of the matrices in from
	for k, p := range polynomials {
		to := o.x[1-k%2].Slice(lo, hi)
		if k == len(polynomials)-1 {
			to = all.Slice(lo, hi)
		}
		if mine.Len == 0 {
			break
		}
		if err := o.step(s, to, from, q, scale, p); err != nil {
			return err
		}
		from = to
		scale *= p.a
	}
	if err := x.beside.After(s); err != nil {
		return err
	}
	if q.parts != nil {
		if err := o.exchange(x.beside, all, q, c, fromOwners); err != nil {
			return err
		}
	} else if c.Size() > 1 {
		if err := spmd.AllGatherV(c.On(x.beside), all, all.Slice(lo, hi), q.counts); err != nil {
			return err
		}
	}
	factor := orthogonalScale * math.Sqrt(max(1, float64(q.rows)/float64(q.cols)))
	return ops.MuonUpdate(x.beside, &q.MuonMatrices, x.at, all, factor)
}

// direction is which way parts of matrices go: to the ranks that make them orthogonal, or back.
type direction bool

const (
	toOwners   direction = true
	fromOwners direction = false
)

// exchange enqueues the exchange of the parts of matrices.
func (o *orthogonals[T]) exchange(s *spmd.Stream, x spmd.Buffer[T], q *muonShape, c spmd.Comm, way direction) error {
	if q.parts == nil || c.Size() == 1 {
		return nil
	}
	on := c.On(s)
	return on.Group(func() error {
		for owner := range c.Size() {
			of := spmd.ShardOf(q.Count, owner, c.Size())
			for i := of.Off; i < of.Off+of.Len; i++ {
				for r := range c.Size() {
					p := q.parts[r][i]
					if r == owner || p.from == p.to {
						continue
					}
					b, from, to := x.Slice(i*q.Len+p.from, i*q.Len+p.to), r, owner
					if way == fromOwners {
						from, to = owner, r
					}
					var err error
					switch c.Rank() {
					case from:
						err = spmd.Send(on, b, to)
					case to:
						err = spmd.Recv(on, b, from)
					}
					if err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// step enqueues, for each matrix with X = scale·from and A = X·Xᵀ, to = (a·X + (b·A +
// c·A²)·X)/(a·scale). If X is higher than wide, it computes the same as X·(...) with A = Xᵀ·X.
func (o *orthogonals[T]) step(s *spmd.Stream, to, from spmd.Buffer[T], q *muonShape, scale float64,
	p polynomial) error {
	n, rows, cols := from.Len()/q.Len, q.rows, q.cols
	high, side := rows > cols, min(rows, cols)
	x, y := blas.MatrixOf(from, n*rows, cols), blas.MatrixOf(to, n*rows, cols)
	aa := blas.MatrixOf(o.a.Slice(0, n*side*side), n*side, side)
	bb := blas.MatrixOf(o.b.Slice(0, n*side*side), n*side, side)
	if err := blas.Gemm(s, aa, x, x,
		blas.Options{Batch: n, TransA: high, TransB: !high, Alpha: scale * scale}); err != nil {
		return err
	}
	// This is A + c/b·A².
	if err := blas.Gemm(s, bb, aa, aa, blas.Options{Batch: n, Alpha: p.c / p.b, Residual: aa.Arg()}); err != nil {
		return err
	}
	if high {
		return blas.Gemm(s, y, x, bb, blas.Options{Batch: n, Alpha: p.b / p.a, Residual: x.Arg()})
	}
	return blas.Gemm(s, y, bb, x, blas.Options{Batch: n, Alpha: p.b / p.a, Residual: x.Arg()})
}
