package attention

import (
	_ "embed"
	"fmt"
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// The kernels of mma.cu, on tensor cores by mma.sync: the path that needs no library, for bfloat16
// and GPUs of compute capability 8.0 and above. Equal inputs give equal bits. qkv and dqkv are
// (b,t,3,nh,hs), out and dout (b,t,nh,hs), all aligned to 16 bytes; lse is (b,nh,t). Buffers may be
// longer.

//go:embed mma.cu
var mmaSource string

//go:embed mma.cuh
var tilesSource string // goes before it

//go:embed tensor.cuh
var tensorSource string // goes before sources for tensor cores

// mmaMaxHead is the largest size of a head; every size is a multiple of mmaHeadStep.
const mmaMaxHead, mmaHeadStep = 128, 8

// mmaMaxRow bounds the elements of a row of qkv: a tile of 128 is addressed by 32 bits.
const mmaMaxRow = 1 << 24

// mmaThreads is the number of threads of a block, of all kernels.
const mmaThreads = 128

// mmaKernel is a kernel. Its blocks have rows queries or keys of a head.
type mmaKernel struct {
	*spmd.Kernel
	rows, shared int
}

// mmaPath is the kernels for heads of up to width elements.
type mmaPath struct {
	width                                  int
	forward, backwardQueries, backwardKeys mmaKernel
}

// The sizes of the wrappers in mma.cu, as newMMAKernel takes them.
var mmaPaths = [...]mmaPath{
	{
		width:           64,
		forward:         newMMAKernel("forward_64", 64, 1, 128, 64, mmaHostForward),
		backwardQueries: newMMAKernel("backward_queries_64", 64, 2, 64, 64, mmaHostBackwardQueries),
		backwardKeys:    newMMAKernel("backward_keys_64", 64, 2, 64, 64, mmaHostBackwardKeys),
	},
	{
		width:           128,
		forward:         newMMAKernel("forward_128", 128, 1, 128, 32, mmaHostForward),
		backwardQueries: newMMAKernel("backward_queries_128", 128, 2, 64, 64, mmaHostBackwardQueries),
		backwardKeys:    newMMAKernel("backward_keys_128", 128, 2, 64, 64, mmaHostBackwardKeys),
	},
}

// newMMAKernel declares a kernel of mma.cu. A block holds own matrices of rows rows, and two tiles
// each of two more matrices. A row has width elements, and a row of a tile 8 bytes more.
func newMMAKernel(name string, width, own, rows, tile int, fn func(*mmaHost)) mmaKernel {
	k := spmd.NewKernel("mma_"+name, windowSource+tensorSource+tilesSource+mmaSource, onHost(fn))
	return mmaKernel{k, rows, 2*width*(own*rows+2*2*tile) + 2*8*tile}
}

// onHost returns a kernel's work on the host.
func onHost(fn func(*mmaHost)) func(spmd.Args) error {
	return func(args spmd.Args) error {
		fn(&mmaHost{Args: args})
		return nil
	}
}

// mmaShape is the arguments of the kernels behind their buffers.
type mmaShape struct{ b, t, nh, hs, window int }

func (x mmaShape) path() *mmaPath {
	for i := range mmaPaths {
		if x.hs <= mmaPaths[i].width {
			return &mmaPaths[i]
		}
	}
	return nil
}

func (x mmaShape) grid(k *mmaKernel) spmd.Grid {
	tiles := (x.t + k.rows - 1) / k.rows
	return spmd.Grid{Blocks: [3]int{x.b * x.nh * tiles, 1, 1}, Threads: [3]int{mmaThreads, 1, 1}, Shared: k.shared}
}

func (x mmaShape) scale() float32 { return float32(1 / math.Sqrt(float64(x.hs))) }

// elements returns the length of out.
func (x mmaShape) elements() int { return x.b * x.t * x.nh * x.hs }

// check refuses shapes that the kernels do not have and buffers that are too short.
func (x mmaShape) check(what string, out, lse, qkv int) error {
	switch {
	case x.b < 1 || x.t < 1 || x.nh < 1 || x.hs < 1:
		return fmt.Errorf("%s: a shape of (%d,%d,3,%d,%d)", what, x.b, x.t, x.nh, x.hs)
	case x.hs > mmaMaxHead || x.hs%mmaHeadStep != 0:
		return fmt.Errorf("%s: heads of %d elements: want a multiple of %d up to %d", what, x.hs,
			mmaHeadStep, mmaMaxHead)
	case 3*x.nh*x.hs >= mmaMaxRow:
		return fmt.Errorf("%s: rows of 3·%d·%d elements: want fewer than %d", what, x.nh, x.hs, mmaMaxRow)
	case out < x.elements() || qkv < 3*x.elements() || lse < x.b*x.nh*x.t:
		return fmt.Errorf("%s: out has %d elements, qkv %d and lse %d: too few for a shape of (%d,%d,3,%d,%d)",
			what, out, qkv, lse, x.b, x.t, x.nh, x.hs)
	}
	return nil
}

// mmaForward enqueues the causal attention of qkv into out, with scores divided by the root of hs.
// It leaves the logarithms of the softmax's denominators in lse.
func mmaForward(
	s *spmd.Stream, out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32], qkv spmd.Buffer[spmd.BF16], x mmaShape,
) error {
	if err := x.check("Forward", out.Len(), lse.Len(), qkv.Len()); err != nil {
		return err
	}
	k := &x.path().forward
	return k.Launch(s, x.grid(k), out.Arg(), lse.Arg(), qkv.Arg(),
		spmd.I32(x.b), spmd.I32(x.t), spmd.I32(x.nh), spmd.I32(x.hs), spmd.F32(x.scale()), spmd.I32(x.window))
}

// mmaScratch returns how many elements mmaBackward needs as scratch.
func mmaScratch(b, t, nh int) int { return 2 * b * nh * t }

// mmaBackward enqueues dqkv, the gradient of qkv. It takes dout, the gradient of out, and the
// results of mmaForward. It computes probabilities again, and overwrites scratch.
func mmaBackward(
	s *spmd.Stream, dqkv, dout, out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32],
	qkv spmd.Buffer[spmd.BF16], scratch spmd.Buffer[float32], x mmaShape,
) error {
	if err := x.checkBackward(dqkv, dout, out, lse, qkv, scratch); err != nil {
		return err
	}
	// The first kernel leaves in scratch the second one's input for each query.
	queries, keys := &x.path().backwardQueries, &x.path().backwardKeys
	err := queries.Launch(s, x.grid(queries), dqkv.Arg(), scratch.Arg(), dout.Arg(), out.Arg(), lse.Arg(), qkv.Arg(),
		spmd.I32(x.b), spmd.I32(x.t), spmd.I32(x.nh), spmd.I32(x.hs), spmd.F32(x.scale()), spmd.I32(x.window))
	if err != nil {
		return err
	}
	return keys.Launch(s, x.grid(keys), dqkv.Arg(), scratch.Arg(), dout.Arg(), qkv.Arg(),
		spmd.I32(x.b), spmd.I32(x.t), spmd.I32(x.nh), spmd.I32(x.hs), spmd.F32(x.scale()), spmd.I32(x.window))
}

func (x mmaShape) checkBackward(
	dqkv, dout, out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32], qkv spmd.Buffer[spmd.BF16],
	scratch spmd.Buffer[float32],
) error {
	if err := x.check("Backward", min(out.Len(), dout.Len()), lse.Len(),
		min(qkv.Len(), dqkv.Len())); err != nil {
		return err
	}
	if n := mmaScratch(x.b, x.t, x.nh); scratch.Len() < n {
		return fmt.Errorf("Backward: scratch of %d elements, want %d", scratch.Len(), n)
	}
	return nil
}

// mmaHost is a launch on the host: whole matrices of scores, head by head, products
// in float32.
type mmaHost struct {
	spmd.Args
	mmaShape
	factor float32 // of the scores
}

// heads reads the shape, arguments from i on. It calls fn for each head with the places of its
// first row in qkv and in out, and in lse.
func (a *mmaHost) heads(i int, fn func(in, out, lse int)) {
	a.b, a.t, a.nh, a.hs, a.factor, a.window = a.I32(i), a.I32(i+1), a.I32(i+2), a.I32(i+3), a.F32(i+4), a.I32(i+5)
	for b := range a.b {
		for h := range a.nh {
			row, column := b*a.t, h*a.hs
			fn(row*3*a.width()+column, row*a.width()+column, (b*a.nh+h)*a.t)
		}
	}
}

// width returns the length of a row of out.
func (a *mmaHost) width() int { return a.nh * a.hs }

// read returns the t rows of a head, widened; rows of argument i are stride apart.
func (a *mmaHost) read(i, first, stride int) []float32 {
	src, wide := spmd.ArgSlice[spmd.BF16](a.Args, i), make([]float32, a.t*a.hs)
	for r := range a.t {
		host.Widen(wide[r*a.hs:][:a.hs], src[first+r*stride:][:a.hs])
	}
	return wide
}

// write rounds the rows of a head into argument 0.
func (a *mmaHost) write(first, stride int, rows []float32) {
	dst := spmd.ArgSlice[spmd.BF16](a.Args, 0)
	for r := range a.t {
		host.Round(dst[first+r*stride:][:a.hs], rows[r*a.hs:][:a.hs])
	}
}

// outer returns x yT of two heads' rows.
func (a *mmaHost) outer(x, y []float32) []float32 {
	s := make([]float32, a.t*a.t)
	host.Gemm(host.NoTrans, host.Trans, a.t, a.t, a.hs, 1, x, a.hs, y, a.hs, 0, s, a.t)
	return s
}

// weighted returns factor w x, or factor wT x, with w(t,t).
func (a *mmaHost) weighted(transposed bool, factor float32, w, x []float32) []float32 {
	y := make([]float32, a.t*a.hs)
	host.Gemm(transposed, host.NoTrans, a.t, a.hs, a.t, factor, w, a.t, x, a.hs, 0, y, a.hs)
	return y
}

// firstKey returns the first key that a query sees.
func (x mmaShape) firstKey(query int) int {
	if x.window == 0 {
		return 0
	}
	return max(0, query/windowStep*windowStep-x.window)
}

// rows calls fn for each query, in parallel, with the first key that it sees and the first behind
// these.
func (a *mmaHost) rows(fn func(i, past, future int)) {
	host.Parallel(a.t, max(1, 1<<14/a.t), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			fn(i, a.firstKey(i), i+1)
		}
	})
}

func mmaHostForward(a *mmaHost) {
	a.heads(3, func(in, out, first int) {
		lse := spmd.ArgSlice[float32](a.Args, 1)[first:]
		c := a.width()
		q, k, v := a.read(2, in, 3*c), a.read(2, in+c, 3*c), a.read(2, in+2*c, 3*c)
		s := a.outer(q, k)
		a.rows(func(i, past, future int) {
			row := s[i*a.t:][:a.t]
			top, sum := math.Inf(-1), 0.0
			for _, x := range row[past:future] {
				top = math.Max(top, float64(a.factor*x))
			}
			for j, x := range row[past:future] {
				e := math.Exp(float64(a.factor*x) - top)
				row[past+j] = float32(e)
				sum += e
			}
			for j := range row[past:future] {
				row[past+j] /= float32(sum)
			}
			clear(row[:past])
			clear(row[future:])
			lse[i] = float32(top + math.Log(sum))
		})
		a.write(out, c, a.weighted(host.NoTrans, 1, s, v))
	})
}

// mmaHostBackwardQueries leaves lse and delta in argument 1, not in powers of 2 as on a GPU.
func mmaHostBackwardQueries(a *mmaHost) {
	a.heads(6, func(in, out, first int) {
		lse := spmd.ArgSlice[float32](a.Args, 4)[first:]
		kept := spmd.ArgSlice[float32](a.Args, 1)[2*first:]
		c := a.width()
		d, o := a.read(2, out, c), a.read(3, out, c)
		for i := range a.t {
			kept[2*i] = lse[i]
			kept[2*i+1] = float32(host.Dot(d[i*a.hs:][:a.hs], o[i*a.hs:][:a.hs]))
		}
		_, ds, _, k := a.gradients(5, in, d, kept)
		a.write(in, 3*c, a.weighted(host.NoTrans, a.factor, ds, k))
	})
}

func mmaHostBackwardKeys(a *mmaHost) {
	a.heads(4, func(in, out, first int) {
		kept := spmd.ArgSlice[float32](a.Args, 1)[2*first:]
		c := a.width()
		d := a.read(2, out, c)
		p, ds, q, _ := a.gradients(3, in, d, kept)
		a.write(in+c, 3*c, a.weighted(host.Trans, a.factor, ds, q))
		a.write(in+2*c, 3*c, a.weighted(host.Trans, 1, p, d))
	})
}

// gradients returns a head's probabilities, the gradients of its scores before they are scaled, its
// queries and its keys. qkv is argument i.
func (a *mmaHost) gradients(i, in int, d, kept []float32) (p, ds, q, k []float32) {
	c := a.width()
	q, k = a.read(i, in, 3*c), a.read(i, in+c, 3*c)
	p, ds = a.outer(q, k), a.outer(d, a.read(i, in+2*c, 3*c))
	a.rows(func(i, past, future int) {
		p, ds := p[i*a.t:][:a.t], ds[i*a.t:][:a.t]
		for j := past; j < future; j++ {
			p[j] = float32(math.Exp(float64(a.factor*p[j] - kept[2*i])))
			ds[j] = p[j] * (ds[j] - kept[2*i+1])
		}
		for _, x := range [][]float32{p, ds} {
			clear(x[:past])
			clear(x[future:])
		}
	})
	return p, ds, q, k
}
