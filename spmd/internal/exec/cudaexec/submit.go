package cudaexec

import (
	"fmt"
	"slices"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/exec"
)

// issuing is a command that is being issued, as the transport of a call sees it.
type issuing struct {
	q   *Queue
	c   *exec.Command
	seq uint64
}

var _ exec.Issuer = (*issuing)(nil)

func (i *issuing) Stream() *cuda.Stream { return i.q.h }

func (i *issuing) Hand(j exec.HostJob) error { return i.q.hand(j, i.seq, i.c) }

// issued is a command that communicates.
type issued struct {
	q  *Queue // nil if no other rank takes part
	by any    // who orders its calls itself; nil if nobody does for all of it
}

func (q *Queue) Begin(k exec.CommandKind) (*exec.Command, error) {
	q.front.Lock()
	q.slot.Kind = k
	return &q.slot, nil
}

// Enqueue implements exec.Queue: the command goes to the driver. In a capture the driver adds it to
// the graph.
func (q *Queue) Enqueue(c *exec.Command) error {
	defer q.front.Unlock()
	defer func() { // not to keep alive what it used
		c.Func, c.Capture, c.Plan = nil, nil, nil
		clear(q.using)
		q.using = q.using[:0]
	}()
	var as issued
	collective := c.Kind == exec.DoCall || c.Kind == exec.DoGraph && len(c.Capture.Parties) > 0
	// Before any lock: both may have to wait for this very queue.
	if err := q.prepare(c); err != nil {
		return err
	}
	work, err := q.workFor(c)
	if err != nil {
		return err
	}
	if collective {
		// The order of collectives is the order of this lock: one for all streams.
		q.g.issue.Lock()
		defer q.g.issue.Unlock()
		as = issued{q: q}
		if c.Kind == exec.DoCall {
			as = q.as(c.Plan)
		}
		if err := q.orderAfterOthers(as); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil {
		return err
	}
	seq := q.tail.Load() + 1
	if collective {
		c.Site.Near()
	}
	l := q.lane.Load()
	if err := q.Check(c, l, seq); err != nil {
		return err
	}
	if l != nil {
		l.Takes(c)
		var what captured
		if q.events != nil {
			what = describe(c)
		}
		err := q.issue(c, 0, work)
		if err == nil && q.events != nil {
			l.Track.(*builder).adds(&what, l)
		}
		if err == nil && as.q != nil {
			l.Track.(*builder).last = as
		}
		return err
	}
	if !collective {
		r := q.begins(c)
		err := q.issue(c, seq, work)
		q.ends(r, seq, err)
		if err == nil {
			q.ended(seq)
		}
		return err
	}
	if c.Kind == exec.DoGraph {
		c.Capture.Replays(q, seq)
	}
	r := q.begins(c)
	q.issuing.Store(time.Now().UnixNano())
	err = q.issue(c, seq, work)
	q.issuing.Store(0)
	q.ends(r, seq, err)
	if err != nil {
		return err
	}
	q.ended(seq)
	q.coll.Store(seq)
	if as.q != nil {
		q.g.last = as
	}
	return nil
}

// ended makes seq the end. Its command uses the blocks that Uses has noted. The caller holds q.mu.
func (q *Queue) ended(seq uint64) {
	q.tail.Store(seq)
	for _, b := range q.using {
		b.UsedBy(&q.Seat, seq)
	}
}

// as returns what orderAfterOthers keeps of a call: its queue, and the transport that orders it.
func (q *Queue) as(p *exec.Plan) issued {
	if p.Alone {
		return issued{}
	}
	return issued{q, p.By}
}

// orderAfterOthers keeps collectives of different communicators apart. In another order on every
// rank they would wait for each other for ever. NCCL orders the collectives of one communicator
// itself, and jobs of the host have their order. Graphs and kernels between peers have none. now is
// what as returns for the command on q. The caller holds g.issue.
func (q *Queue) orderAfterOthers(now issued) error {
	last := q.g.last
	if q.lane.Load() != nil { // what is captured runs with the graph, not now
		last = q.lane.Load().Track.(*builder).last
	}
	switch {
	case now.by != nil && last.by == now.by || now.q == nil || last.q == nil || last.q.d != q.d || last.q == q:
		return nil
	case q.lane.Load() != nil:
		node, err := last.q.lane.Load().Record()
		if err != nil {
			return err
		}
		return q.lane.Load().C.Wait(q, node)
	}
	return q.After(last.q.End(), nil)
}

var _ exec.Direct = (*Queue)(nil)

func (q *Queue) Now(p *exec.Plan, take func()) (work unsafe.Pointer, err error) {
	cmd := exec.Command{Kind: exec.DoCall, Plan: p}
	if err := q.prepare(&cmd); err != nil {
		return nil, err
	}
	if work, err = q.workFor(&cmd); err != nil {
		return nil, err
	}
	q.g.issue.Lock()
	defer q.g.issue.Unlock()
	take()
	return work, q.orderAfterOthers(q.as(p))
}

func (q *Queue) Count() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tail.Add(1)
}

func (q *Queue) Used(b *exec.Block) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.UsedBy(&q.Seat, q.tail.Load())
}

func (q *Queue) Ready() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ready()
}

// Exclusive runs fn while nobody enqueues collectives on the GPU.
func (g *GPU) Exclusive(fn func() error) error {
	g.issue.Lock()
	defer g.issue.Unlock()
	return fn()
}

// Forget drops the collectives of an orderer that is about to go: nothing waits for them.
func (g *GPU) Forget(by any) {
	g.issue.Lock()
	defer g.issue.Unlock()
	if g.last.by == by {
		g.last = issued{}
	}
}

// prepare opens a library or kernel that c is the first to need, before any lock is taken.
func (q *Queue) prepare(c *exec.Command) error {
	var k *exec.Kernel
	switch c.Kind {
	case exec.DoKernel:
		k = c.Kernel
	case exec.DoFill:
		if byKernel(c.Type, c.Hosted) {
			k = q.d.fill
		}
	case exec.DoCall:
		if c.Plan.Fills {
			k = q.d.fill
		}
	case exec.DoLibrary:
		if !c.Library.ReadyOn(q.g) {
			return q.open(c.Library)
		}
	}
	if k == nil || q.g.on(k) != nil {
		return nil
	}
	if err := q.d.Quiesce(); err != nil {
		return err
	}
	return q.g.ready(k)
}

// open makes the kernels of a library ready for its first call, which may load code itself.
func (q *Queue) open(l *exec.Library) error {
	if err := q.d.Quiesce(); err != nil {
		return err
	}
	for _, k := range l.Kernels {
		if err := q.g.ready(k); err != nil {
			return err
		}
	}
	l.SetReady(q.g)
	return nil
}

// workFor returns the scratch memory of a command; nil if it needs none.
func (q *Queue) workFor(c *exec.Command) (unsafe.Pointer, error) {
	n := 0
	switch c.Kind {
	case exec.DoLibrary:
		n = c.N
	case exec.DoCall:
		n = c.Plan.Bytes
	}
	if n == 0 {
		return nil, nil
	}
	b, err := q.Scratch(n)
	if err != nil {
		return nil, err
	}
	return b.Ptr, nil
}

// issue makes the driver's call. seq is the number of the command; 0 in a capture.
func (q *Queue) issue(c *exec.Command, seq uint64, work unsafe.Pointer) error {
	switch c.Kind {
	case exec.DoCopy:
		if c.N == 0 {
			return nil
		}
		return q.h.Copy(c.Dst, c.Src, c.N)
	case exec.DoFill:
		return q.d.Fill(q.h, c.Type, c.Dst, c.N, c.Bits, c.Hosted)
	case exec.DoPrefetch:
		return q.prefetch(c)
	case exec.DoKernel:
		return q.Launch(c.Kernel, c.Grid, c.Args)
	case exec.DoLibrary:
		return q.library(c, work)
	case exec.DoFunc:
		return q.hostFunc(c.Func)
	case exec.DoGraph:
		g := c.Capture.Replay.(*graph)
		if g.launched(exec.Point{Q: q, Seq: seq})%pile == 0 {
			if err := q.keepUp(); err != nil {
				return err
			}
		}
		if p := q.splitting; p != nil {
			return p.Launch(q.h)
		}
		return g.exec.Launch(q.h)
	default:
		q.now = issuing{q, c, seq}
		return c.Call.Issue(&q.now, seq, work)
	}
}

// byKernel reports whether a kernel fills elements, not the driver. The driver knows no elements of
// 8 bytes. In memory that the host addresses, pinned or managed, the driver waits until the stream
// is there. Source: CUDA Driver API, API synchronization behavior, Memset.
func byKernel(t elem.Type, hosted bool) bool { return hosted || t.Size() >= 8 }

// NotHosted is the hosted of Fill for memory that the host does not address.
const NotHosted = false

// Fill enqueues that n elements become bits. hosted says that the host addresses them.
func (d *CUDA) Fill(h *cuda.Stream, t elem.Type, dst unsafe.Pointer, n int, bits elem.Bits, hosted bool) error {
	size := t.Size()
	switch {
	case n == 0:
		return nil
	case !byKernel(t, hosted):
		return h.Fill(dst, size, bits[0], n)
	}
	if size < 16 { // else both words are the element's
		bits[0] &= 1<<(8*size) - 1
		for have := size; have < 8; have *= 2 {
			bits[0] |= bits[0] << (8 * have)
		}
		bits[1] = bits[0]
	}
	args := [...]exec.Arg{exec.Memory(dst), exec.Number(elem.Int64, int64(n*size)),
		exec.Number(elem.Uint64, bits[0]), exec.Number(elem.Uint64, bits[1])}
	words := min(n*size/8+1, 1<<20)
	grid := exec.Grid{Blocks: [3]int{(words + 255) / 256, 1, 1}, Threads: [3]int{256, 1, 1}} // whose threads loop
	return d.GPU.launch(h, d.fill, grid, args[:])
}

func (q *Queue) Launch(k *exec.Kernel, grid exec.Grid, args []exec.Arg) error {
	return q.g.launch(q.h, k, grid, args)
}

// launch starts a kernel. A buffer is its address, a number its bits.
func (g *GPU) launch(h *cuda.Stream, k *exec.Kernel, grid exec.Grid, args []exec.Arg) error {
	f := g.on(k)
	if err := f.fits(k, args); err != nil {
		return err
	}
	if int64(grid.Shared) > f.shared.Load() {
		if err := f.raise(grid.Shared); err != nil {
			return err
		}
	}
	n := 0
	for i := range args {
		n += args[i].Slots()
	}
	// Arrays of one size would be cleared whole for the smallest kernel, too.
	const few, many = 24, 24 * 8
	switch {
	case n <= few:
		var words [few]uint64
		var at [few]uint32
		return g.start(h, f, k, grid, args, words[:0], at[:0])
	case n <= many:
		var words [many]uint64
		var at [many]uint32
		return g.start(h, f, k, grid, args, words[:0], at[:0])
	default:
		return g.start(h, f, k, grid, args, make([]uint64, 0, n), make([]uint32, 0, n))
	}
}

// start is launch, with room for the arguments' words, and for the one at which each begins.
func (g *GPU) start(h *cuda.Stream, f *function, k *exec.Kernel, grid exec.Grid, args []exec.Arg,
	words []uint64, at []uint32) error {
	for i := range args {
		at = append(at, uint32(len(words)))
		switch args[i].Kind {
		case exec.BufferArg:
			words = append(words, uint64(ccall.Address(args[i].Ptr)))
		case exec.StructArg:
			words = append(words, args[i].Words()...)
		case exec.TensorArg:
			m, err := g.tensorMap(&args[i])
			if err != nil {
				return fmt.Errorf("kernel %s, argument %d: %w", k.Name(), i, err)
			}
			words = append(words, m[:]...)
		default:
			words = append(words, args[i].Bits[:args[i].Slots()]...)
		}
	}
	if err := h.LaunchShape(f.f, &grid, words, at); err != nil {
		return fmt.Errorf("kernel %s, %v blocks of %v threads: %w", k.Name(), grid.Blocks, grid.Threads, err)
	}
	return nil
}

// tensorTypes are the copy engine's names of elements: 8-bit floats are bytes.
var tensorTypes = [elem.StoredTypes]cuda.TensorType{
	elem.Int8: cuda.TensorUint8, elem.Uint8: cuda.TensorUint8,
	elem.Float8E4M3: cuda.TensorUint8, elem.Float8E5M2: cuda.TensorUint8,
	elem.Int32: cuda.TensorInt32, elem.Uint32: cuda.TensorUint32,
	elem.Int64: cuda.TensorInt64, elem.Uint64: cuda.TensorUint64,
	elem.Float16: cuda.TensorFloat16, elem.BFloat16: cuda.TensorBFloat16,
	elem.Float32: cuda.TensorFloat32, elem.Float64: cuda.TensorFloat64,
}

// tensorMap returns a kernel's parameter for a tensor. The driver has the contiguous dimension
// first.
func (g *GPU) tensorMap(a *exec.Arg) (cuda.TensorMap, error) {
	if c := g.Capability(); c < 90 {
		return cuda.TensorMap{}, fmt.Errorf("a tensor map: the GPU has compute capability %d.%d, "+
			"and no copy engine for tensors before 9.0", c/10, c%10)
	}
	m := a.Map
	t := cuda.Tensor{At: a.Ptr, Type: tensorTypes[a.Type], Rank: len(m.Sizes), Swizzle: m.Swizzle}
	stride := uint64(a.Type.Size())
	for i := range m.Sizes {
		from := len(m.Sizes) - 1 - i
		t.Sizes[i], t.Box[i] = uint64(m.Sizes[from]), uint32(m.Box[from])
		if i > 0 {
			t.Strides[i-1] = stride
		}
		stride *= t.Sizes[i]
	}
	return g.Dev.TensorMap(&t)
}

// library hands a call to the library.
func (q *Queue) library(c *exec.Command, work unsafe.Pointer) error {
	defer clear(c.Args) // not to be kept alive by it
	err := c.Library.Device(q, c.Args, work, c.N)
	if of, ok := err.(*ccall.Error); ok { // which has its place in front of the name
		named := *of
		named.Op = c.Library.Name + ": " + named.Op
		return &named
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.Library.Name, err)
	}
	return nil
}

// hostFunc enqueues fn. Its failure fails the stream, and later commands still run.
func (q *Queue) hostFunc(fn func() error) error {
	seq := q.tail.Load() + 1
	site := ccall.At()
	var c *cuda.Callback
	var g *graph // whose command it is, on whatever stream it is replayed
	if q.lane.Load() != nil {
		g = q.lane.Load().Track.(*builder).g
	}
	once := g == nil
	c = cuda.NewCallback(func() {
		on := []exec.Point{{Q: q, Seq: seq}}
		if once {
			defer c.Close()
		} else {
			on = g.replaying()
		}
		if slices.ContainsFunc(on, func(p exec.Point) bool { return p.Failure() != nil }) {
			return
		}
		if err := exec.HostFuncApart(fn); err != nil {
			for _, p := range on {
				o := p.Q.(*Queue)
				o.failed(fmt.Errorf("stream %q, command enqueued at %s: %w", o.name, site, err), p.Seq)
			}
		}
	})
	if !once {
		g.callbacks = append(g.callbacks, c)
	}
	err := q.h.HostFunc(c)
	if err != nil && once {
		c.Close()
	}
	return err
}
