package attention

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync"

	"lockstep/cuda/cudnn"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Elem is the set of element types of attention.
type Elem interface{ float32 | spmd.BF16 }

// Options say how attention is computed. The zero value is the fastest way.
type Options struct {
	// Path is "cudnn", "mma" or "simple": that path, or an error. "" and "auto" take the first path
	// that every rank of the world has for the shape and the type. They take mma before cudnn if
	// its kernels are those of warpgroups.
	//   cudnn   cuDNN 9.6 or later: bfloat16, Tokens a multiple of 128, Size one of 8
	//   mma     this package's kernels for tensor cores, from compute capability 8.0 on: bfloat16,
	//           Size a multiple of 8 up to 128; with 9.0, and Size up to 64, by warpgroups
	//   simple  on CUDA cores in float32, any shape and type; the way on the host
	Path string
	// Deterministic makes equal operands give equal bits. Only the gradients of cudnn differ
	// without it. With it, and no Path, mma's backward pass stands beside cuDNN's forward pass, if
	// it has the shape: cuDNN's takes 2 bytes of workspace for each of Batch * Heads * Tokens *
	// Tokens scores. The path is still called cudnn.
	Deterministic bool
}

// The names of the paths.
const (
	pathAuto   = "auto"
	pathCuDNN  = "cudnn"
	pathMMA    = "mma"
	pathSimple = "simple"
)

// Attention computes causal self-attention of one shape, in elements of T. It shares its memory
// with the Attentions that For returns: one stream at a time may use them.
//
// q, k and v have the shape (Batch, Tokens, Heads, Size). The score of query i for key j is q_i k_j
// / sqrt(Size), for j up to i within the window. out is the mean of the values, weighted by the
// softmax of the scores. lse keeps the natural logarithms of the softmax's denominators.
//
// qkv and its gradient are packed as (Batch, Tokens, 3, Heads, Size). out and its gradient are
// (Batch, Tokens, Heads, Size), lse is (Batch, Heads, Tokens). All are row-major; sums are kept in
// float32.
type Attention[T Elem] struct {
	f     *family[T]
	shape Shape
	path  string
	why   string
	cudnn *cudnnPath           // if that is the path
	back  string               // the path of the backward pass
	wgmma *wgmmaShape          // nil if the path is not mma, or its kernels are not wgmma's
	work  spmd.Buffer[float32] // of the path, shared by the family
}

// family is shared by the attentions of one New.
type family[T Elem] struct {
	w       *spmd.World
	o       Options
	most    Shape
	lib     *cudnnLibrary // nil if cudnn is not to be had
	noCuDNN string        // why it is not
	noMMA   string
	noWGMMA string                 // why mma's kernels are not wgmma's
	scratch []spmd.Buffer[float32] // the last is the longest
	cancel  func()

	mu      sync.Mutex
	members map[[2]int]*Attention[T] // by Batch and Tokens
	closed  bool
}

// New makes attention of a shape ready on the ranks of w, which may take a second: it opens cuDNN
// and asks it for its plans. It fails if the shape is none, Path is unknown, or a rank lacks the
// path that was asked for.
//
// The first time on a kind of device, rank 0 times the engines that cuDNN proposes for the shape,
// if there is memory for it. That takes seconds. All ranks take its choice, which is kept in the
// cache folder by shape, device and version. Another engine may round otherwise: runs with the same
// folder have the same bits.
//
// Collective over w, blocking: every rank calls it with the same shape and options, and all take
// the same path.
func New[T Elem](w *spmd.World, shape Shape, o Options) (*Attention[T], error) {
	if err := shape.check("attention.New"); err != nil {
		return nil, err
	}
	switch o.Path {
	case "":
		o.Path = pathAuto
	case pathAuto, pathCuDNN, pathMMA, pathSimple:
	default:
		return nil, fmt.Errorf("%s: attention.New: no path %q: there are auto, cudnn, mma and simple",
			ccall.At(), o.Path)
	}
	f := &family[T]{w: w, o: o, most: shape, members: map[[2]int]*Attention[T]{}}
	a, err := f.first()
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.cancel = library.AtClose(w, f.close)
	return a, nil
}

// first makes the attention of the whole shape. No rank takes a path that another rank lacks.
func (f *family[T]) first() (*Attention[T], error) {
	var choice cudnn.Choice
	f.noMMA, f.noWGMMA = f.lacksMMA(), lacksWGMMA(f.w)
	others, err := f.agree(&choice, f.noMMA == "", f.noWGMMA == "")
	if err != nil {
		return nil, err
	}
	f.noMMA, f.noWGMMA = cmp.Or(f.noMMA, others[0]), cmp.Or(f.noWGMMA, others[1])
	if f.o.Path == pathAuto && f.byWGMMA(f.most) {
		f.noCuDNN = "not the faster one here"
		return f.member(f.most, nil, "")
	}
	var plan *cudnnPath
	var noPlan string
	deterministic := f.planDeterministic()
	if f.noCuDNN = "a window"; f.most.Window == 0 {
		f.noCuDNN = f.openCuDNN()
	}
	if f.noCuDNN == "" {
		if plan, err = f.lib.plan(f.most, deterministic); err == nil && f.w.Rank() == 0 {
			choice, err = f.lib.choose(f.most, deterministic)
		}
		if err != nil {
			err = errors.Join(err, plan.close())
			plan, noPlan = nil, err.Error()
			if !notSupported(err) {
				f.noCuDNN = noPlan
			}
		}
	}
	if others, err = f.agree(&choice, f.noCuDNN == "", plan != nil); err != nil {
		return nil, errors.Join(err, plan.close())
	}
	f.noCuDNN, noPlan = cmp.Or(f.noCuDNN, others[0]), cmp.Or(noPlan, others[1])
	if noPlan != "" {
		err = plan.close()
		plan = nil
	}
	if f.noCuDNN != "" {
		err = errors.Join(err, f.lib.close())
		f.lib = nil
	}
	if f.lib != nil {
		f.lib.choice = choice
	}
	if err == nil && plan != nil && choice != (cudnn.Choice{}) {
		err = plan.close()
		if plan = nil; err == nil {
			plan, err = f.lib.plan(f.most, deterministic)
		}
	}
	if err != nil {
		return nil, errors.Join(err, plan.close())
	}
	return f.member(f.most, plan, noPlan)
}

// backwardByMMA reports whether mma's backward pass stands beside cuDNN's forward pass.
func (f *family[T]) backwardByMMA() bool {
	return f.o.Path == pathAuto && f.noMMA == "" && f.most.fitsMMA() && f.o.Deterministic
}

// byWGMMA reports whether mma's kernels for a shape are wgmma's.
func (f *family[T]) byWGMMA(s Shape) bool {
	return f.noMMA == "" && s.fitsMMA() && f.noWGMMA == "" && s.Size <= wgmmaMaxHead
}

// planDeterministic reports whether cuDNN's backward pass has to be deterministic, which takes
// memory. An unused one need not be.
func (f *family[T]) planDeterministic() bool { return f.o.Deterministic && !f.backwardByMMA() }

// agree returns, for each path that a rank may have, why not all ranks have it, or "". The choice
// becomes rank 0's.
func (f *family[T]) agree(choice *cudnn.Choice, have ...bool) (why []string, err error) {
	b, err := spmd.Alloc[int32](f.w, len(have)+2)
	if err != nil {
		return nil, err
	}
	lowest := make([]int32, len(have), len(have)+2) // rank without it
	for i, h := range have {
		lowest[i] = int32(f.w.Size())
		if !h {
			lowest[i] = int32(f.w.Rank())
		}
	}
	if f.w.Rank() == 0 {
		lowest = append(lowest, int32(choice.Forward), int32(choice.Backward))
	} else {
		lowest = append(lowest, math.MaxInt32, math.MaxInt32)
	}
	err = errors.Join(b.CopyFrom(lowest), spmd.AllReduce(f.w.Comm(), b, b, spmd.Min), b.CopyTo(lowest), b.Free())
	why = make([]string, len(have))
	for i, r := range lowest[:len(have)] {
		if int(r) < f.w.Size() {
			why[i] = fmt.Sprintf("rank %d lacks it", r)
		}
	}
	choice.Forward, choice.Backward = int(lowest[len(have)]), int(lowest[len(have)+1])
	return why, err
}

// lacksMMA returns why there are no kernels for tensor cores, or "".
func (f *family[T]) lacksMMA() string {
	switch {
	case !isHalf[T]():
		return "float32"
	case library.GPU(f.w) != nil:
		if major, minor := library.GPU(f.w).Capability(); major < 8 {
			return fmt.Sprintf("compute capability %d.%d", major, minor)
		}
	case f.o.Path != pathMMA:
		return "host" // which only has the stand-in of the kernels
	}
	return ""
}

// For returns attention for fewer sequences, or another number of tokens, than the shape of New:
// batch * tokens is at most Batch * Tokens there. The first call with these numbers makes it, and a
// keeps it. That call may take as long as New and waits for the collectives in flight: call it
// before a capture. The path may be another one, if New's does not have the shape.
//
// Not collective: ranks may ask for different numbers.
func (a *Attention[T]) For(batch, tokens int) (*Attention[T], error) {
	if batch == a.shape.Batch && tokens == a.shape.Tokens {
		return a, nil
	}
	f := a.f
	s := Shape{batch, tokens, f.most.Heads, f.most.Size, f.most.Window}
	if err := s.check("For"); err != nil {
		return nil, err
	}
	if n, _ := elem.Product(batch, tokens); n > f.most.Batch*f.most.Tokens {
		return nil, fmt.Errorf("%s: For: %d sequences of %d tokens, but it was made for %d of %d", ccall.At(), batch,
			tokens, f.most.Batch, f.most.Tokens)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errClosed
	}
	if m := f.members[[2]int{batch, tokens}]; m != nil {
		return m, nil
	}
	var plan *cudnnPath
	var noPlan string
	if f.lib != nil {
		if err := library.Quiet(f.w); err != nil {
			return nil, err
		}
		var err error
		if plan, err = f.lib.plan(s, f.planDeterministic()); err != nil {
			if !notSupported(err) {
				return nil, err
			}
			noPlan = err.Error()
		}
	}
	return f.member(s, plan, noPlan)
}

var errClosed = errors.New("attention: used after Close")

// member keeps the attention of a shape by the best path that there is. plan is cuDNN's; it is nil
// for the reason noPlan.
func (f *family[T]) member(s Shape, plan *cudnnPath, noPlan string) (*Attention[T], error) {
	a := &Attention[T]{f: f, shape: s, cudnn: plan}
	noCuDNN, noMMA := cmp.Or(f.noCuDNN, noPlan), f.noMMA
	if noMMA == "" && !s.fitsMMA() {
		noMMA = fmt.Sprintf("heads of %d channels", s.Size)
	}
	auto := f.o.Path == pathAuto
	switch {
	case (auto || f.o.Path == pathCuDNN) && plan != nil:
		a.path, a.why = pathCuDNN, "cuDNN "+plan.version+f.lib.timed
	case f.o.Path == pathCuDNN:
		return nil, fmt.Errorf("attention: path cudnn was asked for: %s", noCuDNN)
	case (auto || f.o.Path == pathMMA) && noMMA == "":
		a.path, a.why = pathMMA, "cudnn: "+noCuDNN
	case f.o.Path == pathMMA:
		return nil, fmt.Errorf("attention: path mma was asked for: %s", noMMA)
	case noCuDNN == noMMA: // the host, or float32
		a.path, a.why = pathSimple, noMMA
	default:
		a.path, a.why = pathSimple, "cudnn: "+noCuDNN+"; mma: "+noMMA
	}
	if !auto && plan == nil {
		a.why = "asked for"
	}
	if a.back = a.path; a.path == pathCuDNN && f.backwardByMMA() {
		a.back = pathMMA
		a.why += ", backward by mma: equal bits in little memory"
	}
	if a.back == pathMMA && f.byWGMMA(s) {
		a.why += ", with wgmma"
		a.wgmma = newWGMMA(mmaShape(s.dims()))
	}
	n := 0
	if a.path == pathCuDNN {
		n = plan.a.ForwardWorkspace()
	}
	switch a.back {
	case pathCuDNN:
		n = max(n, plan.a.BackwardWorkspace())
	case pathMMA:
		n = max(n, 4*mmaScratch(s.Batch, s.Tokens, s.Heads))
		if a.SumsBias() {
			n = max(n, 4*a.wgmma.scratch())
		}
	}
	n = (n + 3) / 4
	var err error
	if a.work, err = f.room(n); err != nil {
		return nil, errors.Join(err, plan.close())
	}
	f.members[[2]int{s.Batch, s.Tokens}] = a
	return a, nil
}

// room returns n elements that the family shares. Graphs may hold earlier results.
func (f *family[T]) room(n int) (spmd.Buffer[float32], error) {
	if last := len(f.scratch) - 1; last >= 0 && f.scratch[last].Len() >= n {
		return f.scratch[last].Slice(0, n), nil
	}
	b, err := spmd.Alloc[float32](f.w, n)
	if err == nil {
		f.scratch = append(f.scratch, b)
	}
	return b, err
}

// Path returns how a is computed: "cudnn", "mma" or "simple". why is the version of the library, or
// what stood against the paths before it.
func (a *Attention[T]) Path() (path, why string) { return a.path, a.why }

// Workspace returns the bytes of device memory that a needs beside the buffers of its calls, and
// holds until Close. The Attentions that For returned share them.
func (a *Attention[T]) Workspace() int { return a.work.Bytes() }

// Workspace returns how much memory an Attention on a GPU needs at most, by cuDNN 9.14, before
// there is one. It panics if New refuses the shape.
func Workspace[T Elem](s Shape, o Options) int {
	if err := s.check("attention.Workspace"); err != nil {
		panic(err)
	}
	rows := s.Batch * s.Heads * s.Tokens
	most := 0
	if o.Path != pathSimple && isHalf[T]() {
		most = 4 * mmaScratch(s.Batch, s.Tokens, s.Heads)
		if s.Size <= wgmmaMaxHead {
			most = 4 * newWGMMA(mmaShape(s.dims())).scratch()
		}
	}
	alone := !o.Deterministic || o.Path == pathCuDNN || !s.fitsMMA()
	if most > 0 && o.Path != pathMMA && alone && s.Window == 0 { // cuDNN's backward pass may be taken
		each := 4 * s.Size // a row's gradient in float32
		if o.Deterministic {
			each = 2 * s.Tokens // a row of scores
		}
		if s.Tokens == 128 {
			each = max(each, 512) // measured
		}
		most = max(most, rows*(4+each)+1024)
	}
	return most
}

func (a *Attention[T]) dims() dims { return a.shape.dims() }

// check refuses buffers that are too short.
func (a *Attention[T]) check(op string, out, lse, qkv int) error {
	if x := a.dims(); out < x.elements() || qkv < 3*x.elements() || lse < x.rows() {
		return fmt.Errorf("%s: %s: buffers of %d elements for out, %d for qkv and %d for lse are "+
			"too short for %v", ccall.At(), op, out, qkv, lse, a.shape)
	}
	return nil
}

// Forward enqueues on s the attention of qkv into out, and the input of Backward into lse. Buffers
// may be longer than the shape; they begin at multiples of 16 bytes, as buffers of Alloc do. It
// allocates nothing and may be captured. It fails on buffers that overlap, are too short, freed or
// of another world.
func (a *Attention[T]) Forward(s *spmd.Stream, out spmd.Buffer[T], lse spmd.Buffer[float32], qkv spmd.Buffer[T]) error {
	if err := a.check("Forward", out.Len(), lse.Len(), qkv.Len()); err != nil {
		return err
	}
	x := a.dims()
	if err := library.Apart("Forward",
		library.Writes("out", out.Slice(0, x.elements())), library.Writes("lse", lse.Slice(0, x.rows())),
		library.Reads("qkv", qkv.Slice(0, 3*x.elements()))); err != nil {
		return err
	}
	switch a.path {
	case pathCuDNN:
		return a.cudnn.forward.Call(s, 0, out.Arg(), lse.Arg(), qkv.Arg(), a.work.Arg())
	case pathMMA:
		if a.wgmma != nil {
			return a.wgmma.forward(s, half(out), lse, half(qkv))
		}
		return mmaForward(s, half(out), lse, half(qkv), mmaShape(x))
	default:
		return simpleOf[T]().forward.Launch(s, simpleGrid(x, 1), out.Arg(), lse.Arg(), qkv.Arg(),
			spmd.I32(x.t), spmd.I32(x.nh), spmd.I32(x.hs), spmd.I32(x.b), spmd.I32(x.window))
	}
}

// Backward enqueues on s the gradient dqkv of qkv. It takes dout, the gradient of out, and the out
// and lse that Forward left. It overwrites dqkv, which shares no memory with the others. Otherwise
// as Forward.
func (a *Attention[T]) Backward(
	s *spmd.Stream, dqkv, dout, out spmd.Buffer[T], lse spmd.Buffer[float32], qkv spmd.Buffer[T],
) error {
	if err := a.check("Backward", min(out.Len(), dout.Len()), lse.Len(), min(qkv.Len(), dqkv.Len())); err != nil {
		return err
	}
	x := a.dims()
	if err := a.apart("Backward", dqkv, spmd.Buffer[float32]{}, dout, out, lse, qkv); err != nil {
		return err
	}
	switch a.back {
	case pathCuDNN:
		return a.cudnn.backward.Call(s, 0, dqkv.Arg(), dout.Arg(), out.Arg(), lse.Arg(), qkv.Arg(), a.work.Arg())
	case pathMMA:
		if a.SumsBias() {
			return a.wgmma.backward(s, half(dqkv), spmd.Buffer[float32]{}, half(dout), half(out), lse,
				half(qkv), a.work)
		}
		return mmaBackward(s, half(dqkv), half(dout), half(out), lse, half(qkv), a.work, mmaShape(x))
	default:
		return simpleOf[T]().backward.Launch(s, simpleGrid(x, 2), dqkv.Arg(), dout.Arg(), out.Arg(),
			lse.Arg(), qkv.Arg(),
			spmd.I32(x.t), spmd.I32(x.nh), spmd.I32(x.hs), spmd.I32(x.b), spmd.I32(x.window))
	}
}

// apart refuses operands of a backward pass that overlap those that it writes.
func (a *Attention[T]) apart(
	op string, dqkv spmd.Buffer[T], dbias spmd.Buffer[float32], dout, out spmd.Buffer[T], lse spmd.Buffer[float32],
	qkv spmd.Buffer[T],
) error {
	x := a.dims()
	n := x.elements()
	return library.Apart(op, library.Writes("dqkv", dqkv.Slice(0, 3*n)), library.Writes("dbias", dbias),
		library.Reads("dout", dout.Slice(0, n)), library.Reads("out", out.Slice(0, n)),
		library.Reads("lse", lse.Slice(0, x.rows())), library.Reads("qkv", qkv.Slice(0, 3*n)))
}

// SumsBias reports whether there is BackwardBias: with compute capability 9.0, Size up to 64, and
// the path mma.
func (a *Attention[T]) SumsBias() bool { return a.wgmma != nil }

// BackwardBias is Backward, and leaves in dbias, (3, Heads, Size), the sums of dqkv over all
// tokens: the gradient of the bias of the product that wrote qkv. It takes the sums before dqkv is
// rounded, and equal operands give equal bits. It fails if SumsBias returns false.
func (a *Attention[T]) BackwardBias(
	s *spmd.Stream, dqkv spmd.Buffer[T], dbias spmd.Buffer[float32], dout, out spmd.Buffer[T],
	lse spmd.Buffer[float32], qkv spmd.Buffer[T],
) error {
	if !a.SumsBias() {
		return fmt.Errorf("%s: BackwardBias: path %s has none (%s)", ccall.At(), a.path, a.why)
	}
	if err := a.check("BackwardBias", min(out.Len(), dout.Len()), lse.Len(), min(qkv.Len(), dqkv.Len())); err != nil {
		return err
	}
	x := a.dims()
	if dbias.Len() != 3*x.nh*x.hs {
		return fmt.Errorf("%s: BackwardBias: a bias of %d elements, want %d", ccall.At(), dbias.Len(), 3*x.nh*x.hs)
	}
	if err := a.apart("BackwardBias", dqkv, dbias, dout, out, lse, qkv); err != nil {
		return err
	}
	return a.wgmma.backward(s, half(dqkv), dbias, half(dout), half(out), lse, half(qkv), a.work)
}

// half returns a buffer of bfloat16 in its own type.
func half[T Elem](b spmd.Buffer[T]) spmd.Buffer[spmd.BF16] { return any(b).(spmd.Buffer[spmd.BF16]) }

// Close gives back the memory of a and of all that For returned; their work has run. Graphs that
// hold some of it cannot be launched any more. A second Close does nothing. The world closes what
// is left.
func (a *Attention[T]) Close() error {
	if a.f.cancel != nil {
		a.f.cancel()
	}
	return a.f.close()
}

func (f *family[T]) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	var errs []error
	for _, m := range f.members {
		errs = append(errs, m.cudnn.close())
	}
	for _, b := range f.scratch {
		errs = append(errs, b.Free())
	}
	return errors.Join(append(errs, f.lib.close())...)
}
