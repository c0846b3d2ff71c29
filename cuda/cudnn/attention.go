package cudnn

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// Shape is the shape of causal self-attention. Each of Batch sequences has Tokens tokens; Heads
// heads of Size channels see it.
type Shape struct {
	Batch, Tokens, Heads, Size int
	Type                       elem.Type // elem.BFloat16 or elem.Float16
}

// Attention is causal self-attention of one shape, forward and backward, made ready for a device.
//
// qkv and its gradient are (Batch, Tokens, 3, Heads, Size). The output and its gradient are (Batch,
// Tokens, Heads, Size). All have the shape's type and are row-major. The logarithms of the softmax
// denominators, scale included, are (Batch, Heads, Tokens) of float32. All begin at multiples of 16
// bytes. Sums are kept in float32.
type Attention struct {
	h                 *Handle
	shape             Shape
	forward, backward pass
	deterministic     bool
}

// pass is a plan with its place for intermediate results.
type pass struct {
	g    *graph
	e    engine
	p    plan
	own  []int // bytes of the operands that lie in the workspace, the plan's own part behind them
	size int   // bytes of the whole workspace
}

// supports returns why attention of a shape is not attempted, or nil. Versions up to 9.15 compute
// wrongly, or read beyond the operands, if Tokens is not a multiple of 128.
func (s Shape) supports() error {
	switch v := sysVersion(); {
	case s.Batch < 1 || s.Tokens < 1 || s.Heads < 1 || s.Size < 1:
		return fmt.Errorf("cudnn: attention of %d sequences of %d tokens, %d heads of %d channels",
			s.Batch, s.Tokens, s.Heads, s.Size)
	case !s.Type.Half():
		return fmt.Errorf("cudnn: attention of %v: %w", s.Type, ErrNotSupported)
	case s.Tokens%128 != 0:
		return fmt.Errorf("cudnn: attention over %d tokens, not a multiple of 128: %w", s.Tokens, ErrNotSupported)
	case s.Size%8 != 0:
		return fmt.Errorf("cudnn: attention with heads of %d channels, not a multiple of 8: %w", s.Size,
			ErrNotSupported)
	case v == 91000 || v == 91001:
		return fmt.Errorf("cudnn: attention's backward pass is wrong in version %s: %w", text(v), ErrNotSupported)
	}
	return nil
}

// Choice is the engines of both passes, by their places among those that the library proposes. The
// zero Choice is the library's own. Engines may round differently.
type Choice struct{ Forward, Backward int }

// NewAttention makes attention of a shape ready. It may compile code and take up to seconds. With
// deterministic the backward pass gives equal bits for equal operands. It then takes a workspace of
// 2 bytes for each of the Batch * Heads * Tokens * Tokens scores. A shape, type or device that the
// library has no engine for is ErrNotSupported. Source: cudnn_graph.h, cudnnBackendFinalize of
// CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR.
func (h *Handle) NewAttention(s Shape, deterministic bool, c Choice) (*Attention, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.h == nil {
		return nil, errClosed
	}
	if err := s.supports(); err != nil {
		return nil, err
	}
	a := &Attention{h: h, shape: s, deterministic: deterministic}
	if err := a.makeForward(c.Forward); err != nil {
		return nil, errors.Join(fmt.Errorf("cudnn: attention forward: %w", err), a.forward.close())
	}
	if err := a.makeBackward(deterministic, c.Backward); err != nil {
		return nil, errors.Join(fmt.Errorf("cudnn: attention backward: %w", err), a.backward.close(), a.forward.close())
	}
	return a, nil
}

// layouts are the forms of the tensors of both passes.
type layouts struct {
	half                      int32
	heads, headsT             [4]int64 // (B, NH, T, HS), and with the last two changed places
	qkv, qkvT, out            [4]int64 // strides
	scores, scoresAt, scoresT [4]int64
	lse, lseAt                [4]int64
}

func (s Shape) layouts() layouts {
	b, t, nh, hs := int64(s.Batch), int64(s.Tokens), int64(s.Heads), int64(s.Size)
	l := layouts{half: dataBFloat16, heads: [4]int64{b, nh, t, hs}, qkv: [4]int64{t * 3 * nh * hs, hs, 3 * nh * hs, 1},
		out: [4]int64{t * nh * hs, hs, nh * hs, 1}, scores: [4]int64{b, nh, t, t}, lse: [4]int64{b, nh, t, 1}}
	if s.Type == elem.Float16 {
		l.half = dataFloat16
	}
	l.headsT, l.qkvT = swapped(l.heads), swapped(l.qkv)
	l.scoresAt, l.lseAt = packed(l.scores), packed(l.lse)
	l.scoresT = swapped(l.scoresAt)
	return l
}

// hidden returns the value of a score whose key comes after the query.
func hidden() float32 {
	if sysVersion() < 91000 {
		return -math.MaxFloat32 // what those versions recognise
	}
	return float32(math.Inf(-1))
}

// mask chooses x for scores whose query is not before their key, and low for the others.
func (g *graph) mask(x, low tensor) tensor {
	row, col := g.index(2, x), g.index(3, x)
	seen := g.pointwise(pointwiseGE, g.between(dataBoolean, x.dims, x.strides), row, col)
	return g.pointwise(pointwiseSelect, g.between(dataFloat32, x.dims, x.strides), x, low, seen)
}

// The library knows both passes by their form: it has fused engines for these operations, in this
// order.

// makeForward: out = softmax(mask(q k' / sqrt(Size))) v. A row's softmax leaves its logarithm of
// the denominator.
func (a *Attention) makeForward(choice int) error {
	g := &graph{h: a.h.h}
	a.forward.g = g
	l := a.shape.layouts()
	score := func() tensor { return g.between(dataFloat32, l.scores, l.scoresAt) }
	row := func() tensor { return g.between(dataFloat32, l.lse, l.lseAt) }

	q, kT := g.tensor(l.half, l.heads, l.qkv), g.tensor(l.half, l.headsT, l.qkvT)
	v, out := g.tensor(l.half, l.heads, l.qkv), g.tensor(l.half, l.heads, l.out)
	lse := g.tensor(dataFloat32, l.lse, l.lseAt)
	scale, low := g.scalar(), g.scalar()

	x := g.matmul(q, kT, score())
	x = g.pointwise(pointwiseMul, score(), x, scale)
	x = g.mask(x, low)
	most := g.reduce(reduceMax, row(), x)
	x = g.pointwise(pointwiseSub, score(), x, most)
	x = g.pointwise(pointwiseExp, score(), x)
	sum := g.reduce(reduceAdd, row(), x)
	log := g.pointwise(pointwiseLog, row(), sum)
	g.pointwise(pointwiseAdd, lse, most, log)
	p := g.pointwise(pointwiseDiv, g.between(l.half, l.scores, l.scoresAt), x, sum)
	g.matmul(p, v, out)
	return a.forward.finish(choice, []tensor{q, kT, v, out, lse}, nil, []tensor{scale, low},
		[]float32{a.scale(), hidden()})
}

func (a *Attention) scale() float32 { return float32(1 / math.Sqrt(float64(a.shape.Size))) }

// makeBackward: p is the softmax, D the sum of dout * out over the channels, and ds = p * (dout v'
// - D) / sqrt(Size). Then dv = p' dout, dk = ds' q, dq = ds k. The deterministic form writes dq at
// once; the other sums it in float32 first.
func (a *Attention) makeBackward(deterministic bool, choice int) error {
	g := &graph{h: a.h.h}
	a.backward.g = g
	s, l := a.shape, a.shape.layouts()
	score := func() tensor { return g.between(dataFloat32, l.scores, l.scoresAt) }
	row := func() tensor { return g.between(dataFloat32, l.lse, l.lseAt) }

	q, kT, vT := g.tensor(l.half, l.heads, l.qkv), g.tensor(l.half, l.headsT, l.qkvT),
		g.tensor(l.half, l.headsT, l.qkvT)
	out, dout := g.tensor(l.half, l.heads, l.out), g.tensor(l.half, l.heads, l.out)
	lse, d := g.tensor(dataFloat32, l.lse, l.lseAt), g.tensor(dataFloat32, l.lse, l.lseAt)
	dq, dk, dv := g.tensor(l.half, l.heads, l.qkv), g.tensor(l.half, l.heads, l.qkv), g.tensor(l.half, l.heads, l.qkv)
	scale, low, one := g.scalar(), g.scalar(), g.scalar()

	x := g.pointwise(pointwiseMul, g.between(dataFloat32, l.heads, packed(l.heads)), dout, out)
	x = g.reduce(reduceAdd, row(), x)
	g.pointwise(pointwiseMul, d, x, one)

	x = g.matmul(q, kT, score())
	x = g.pointwise(pointwiseMul, score(), x, scale)
	x = g.pointwise(pointwiseSub, score(), x, lse)
	x = g.mask(x, low)
	p := g.pointwise(pointwiseExp, score(), x)
	pT := g.reshape(g.between(l.half, l.scores, l.scoresT), p)
	g.matmul(pT, dout, dv)

	x = g.matmul(dout, vT, score())
	x = g.pointwise(pointwiseSub, score(), x, d)
	x = g.pointwise(pointwiseMul, score(), x, p)
	ds := g.pointwise(pointwiseMul, score(), x, scale)
	dsT := g.reshape(g.between(l.half, l.scores, l.scoresT), ds)
	g.matmul(dsT, q, dk)
	k := g.reshape(g.between(l.half, l.heads, l.qkv), kT)
	own := []int{4 * s.Batch * s.Heads * s.Tokens}
	operands := []tensor{q, kT, vT, out, dout, lse, dq, dk, dv, d}
	if deterministic {
		g.matmul(ds, k, dq)
	} else {
		sum := g.tensor(dataFloat32, l.heads, packed(l.heads))
		g.matmul(ds, k, sum)
		g.pointwise(pointwiseIdentity, dq, sum)
		own = append(own, own[0]*s.Size)
		operands = append(operands, sum)
	}
	return a.backward.finish(choice, operands, own, []tensor{scale, low, one}, []float32{a.scale(), hidden(), 1})
}

// finish makes the plan. The last operands are the pass's own, of the given sizes in bytes.
func (p *pass) finish(choice int, operands []tensor, own []int, scalars []tensor, values []float32) (err error) {
	if p.e, err = p.g.finish(choice); err != nil {
		return err
	}
	p.own = own
	for _, n := range own {
		p.size += roundUp(n)
	}
	p.size += p.e.workspace
	ids := func(list []tensor) (v []int64) {
		for _, t := range list {
			v = append(v, t.id)
		}
		return v
	}
	p.p = sysPlan(p.g.h, p.e.plan, ids(operands), ids(scalars), values)
	return nil
}

func roundUp(n int) int { return (n + 255) &^ 255 }

func (p *pass) close() error {
	if p.p != nil {
		sysFreePlan(p.p)
		p.p = nil
	}
	if p.g == nil {
		return nil
	}
	err := p.g.close()
	p.g = nil
	return err
}

// run enqueues the plan with the caller's operands.
func (a *Attention) run(
	p *pass, s *cuda.Stream, given int, operands [mostOperands]unsafe.Pointer, workspace unsafe.Pointer, bytes int,
) error {
	if bytes < p.size || workspace == nil && p.size > 0 {
		return fmt.Errorf("cudnn: attention: workspace of %d bytes at %p, of %d needed", bytes, workspace, p.size)
	}
	for i, o := range operands[:given] {
		if o == nil || uintptr(o)%operandAlignment != 0 {
			return fmt.Errorf("cudnn: attention: operand %d at %p, not at a multiple of %d bytes", i, o,
				operandAlignment)
		}
	}
	for i, n := range p.own {
		operands[given+i] = workspace
		workspace = unsafe.Add(workspace, roundUp(n))
	}
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	if p.p == nil {
		return errClosed
	}
	return sysRun(p.p, s, operands, workspace)
}

// ForwardWorkspace returns the bytes of device memory that Forward may overwrite beside its
// results.
func (a *Attention) ForwardWorkspace() int { return a.forward.size }

// BackwardWorkspace returns the bytes of device memory that Backward may overwrite beside its
// results.
func (a *Attention) BackwardWorkspace() int { return a.backward.size }

// Deterministic reports whether a was made so, and no engine in use has the note that its results
// may differ between runs.
func (a *Attention) Deterministic() bool {
	return a.deterministic && a.forward.e.deterministic && a.backward.e.deterministic
}

// Engines returns the library's numbers of the engines in use.
func (a *Attention) Engines() (forward, backward int) {
	return int(a.forward.e.index), int(a.backward.e.index)
}

// Forward enqueues out and lse for qkv on s. workspace, aligned to 256, has at least
// ForwardWorkspace bytes; calls that may run at the same time need one each. It allocates nothing,
// and may be captured. Source: cudnn_graph.h, cudnnBackendExecute.
func (a *Attention) Forward(s *cuda.Stream, out, lse, qkv, workspace unsafe.Pointer, bytes int) error {
	q, k, v := a.parts(qkv)
	return a.run(&a.forward, s, 5, [mostOperands]unsafe.Pointer{q, k, v, out, lse}, workspace, bytes)
}

// Backward enqueues the gradient dqkv, from dout, the gradient of out, and the out and lse that
// Forward left for qkv. It overwrites dqkv, which may not overlap the others. Otherwise as Forward,
// with BackwardWorkspace. Source: cudnn_graph.h, cudnnBackendExecute.
func (a *Attention) Backward(s *cuda.Stream, dqkv, dout, out, lse, qkv, workspace unsafe.Pointer, bytes int) error {
	q, k, v := a.parts(qkv)
	dq, dk, dv := a.parts(dqkv)
	return a.run(&a.backward, s, 9, [mostOperands]unsafe.Pointer{q, k, v, out, dout, lse, dq, dk, dv}, workspace, bytes)
}

// parts are the addresses of the queries, keys and values in packed ones.
func (a *Attention) parts(qkv unsafe.Pointer) (q, k, v unsafe.Pointer) {
	if qkv == nil {
		return nil, nil, nil
	}
	c := a.shape.Heads * a.shape.Size * a.shape.Type.Size()
	return qkv, unsafe.Add(qkv, c), unsafe.Add(qkv, 2*c)
}

// Close frees a; no run of it may be going on, and no graph hold one. Further calls do nothing.
func (a *Attention) Close() error {
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	return errors.Join(a.backward.close(), a.forward.close())
}
