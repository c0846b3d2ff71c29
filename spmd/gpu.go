package spmd

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/ccall"
	"lockstep/internal/peer"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
)

// gpu is the GPU of this process, shared by its worlds.
type gpu struct {
	dev   *cuda.Device
	users int // worlds; under processMu

	issue    sync.Mutex // the order of NCCL calls
	last     lastIssue
	entered  bool           // the command being issued entered NCCL
	together []coll.Call    // of the call being issued: what starts together
	short    []coll.Call    // and short messages, which peers carry
	handed   coll.Call      // that call, for who makes it on the host
	site     ccall.Site     // where it was enqueued
	beside   *cuda.Stream   // for these, beside others; nil where there are no peers
	word     unsafe.Pointer // for barriers
	pinned   unsafe.Pointer // of words

	mu      sync.Mutex
	words   []*uint32 // for the progress of streams
	spare   []*mark
	modules map[string]*module // by the keys of their sources
	comms   []*nccl.Comm
	peers   []*peer.Comm
	checked time.Time // when health was last asked
}

// processGPU is the GPU of this process, under processMu; nil where none is open.
var (
	processMu  sync.Mutex
	processGPU *gpu
)

const stageBytes = 2 << 20 // of each half of the staging buffer

// openGPU opens the device with an index.
func openGPU(index int) (*gpu, error) {
	processMu.Lock()
	defer processMu.Unlock()
	if processGPU != nil {
		if processGPU.dev.Index() != index {
			return nil, fmt.Errorf("this process works on GPU %d already", processGPU.dev.Index())
		}
		processGPU.users++
		return processGPU, nil
	}
	dev, err := cuda.Open(index)
	if err != nil {
		return nil, err
	}
	g := &gpu{dev: dev, users: 1, modules: map[string]*module{}}
	if g.word, err = dev.Malloc(exec.Alignment); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	if g.pinned, err = dev.MallocHost(signBytes); err != nil {
		return nil, errors.Join(err, dev.Free(g.word), dev.Close())
	}
	g.words = splitWords(g.pinned)
	processGPU = g
	return g, nil
}

// close gives up one use. Everything of the caller's world is gone already.
func (g *gpu) close() error {
	processMu.Lock()
	defer processMu.Unlock()
	if g.users--; g.users > 0 {
		return nil
	}
	processGPU = nil
	var err error
	if g.beside != nil {
		err = g.beside.Close()
	}
	for _, m := range g.spare {
		err = errors.Join(err, m.event.Close())
	}
	for _, m := range g.modules {
		err = errors.Join(err, m.Close())
	}
	forgetFunctions(g)
	err = errors.Join(err, g.dev.Free(g.word), g.dev.FreeHost(g.pinned))
	return errors.Join(err, g.dev.Close())
}

// mark returns a mark that nobody uses, with an event without timing.
func (g *gpu) mark() (*mark, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.spare); n > 0 {
		m := g.spare[n-1]
		g.spare = g.spare[:n-1]
		return m, nil
	}
	e, err := g.dev.NewEvent(false)
	return &mark{event: e}, err
}

func (g *gpu) recycle(m *mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m.gone = false
	g.spare = append(g.spare, m)
}

// health asks NCCL, and kernels between peers, for failures that no call has returned: a
// peer that died, a network that broke, a message of another length than its Recv.
func (g *gpu) health() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.checked) < healthEvery/2 {
		return nil // several streams wait
	}
	g.checked = time.Now()
	for _, c := range g.comms {
		if err := c.AsyncError(); err != nil {
			return err
		}
	}
	for _, p := range g.peers {
		if err := p.Failure(); err != nil {
			return err
		}
	}
	return nil
}

// gpuFunc is a kernel on this process's GPU.
type gpuFunc struct {
	g      *gpu
	f      *cuda.Function
	mu     sync.Mutex
	shared atomic.Int64 // dynamic shared memory that launches may ask for
	params []int        // their sizes in bytes
	known  bool         // params is all of them
}

func (f *gpuFunc) raise(bytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int64(bytes) <= f.shared.Load() {
		return nil
	}
	if err := f.f.SetMaxShared(bytes); err != nil {
		return err
	}
	f.shared.Store(int64(bytes))
	return nil
}

// fits says whether arguments are what the source of k has as parameters.
func (f *gpuFunc) fits(k *Kernel, args []Arg) error {
	if !f.known {
		return nil
	}
	if len(args) != len(f.params) {
		return fmt.Errorf("kernel %s: %d arguments, but its CUDA source has %d parameters", k.name, len(args), len(f.params))
	}
	for i := range args {
		if n := args[i].bytes(); n != f.params[i] {
			text := args[i].String()
			if args[i].kind != structArg {
				text = fmt.Sprintf("%s, of %d bytes", text, n)
			}
			return fmt.Errorf("kernel %s: argument %d is %s, but the parameter of its CUDA source has %d", k.name, i, text, f.params[i])
		}
	}
	return nil
}

// withFunctions are the kernels that hold a function of processGPU.
var withFunctions struct {
	mu   sync.Mutex
	list []*Kernel
}

func forgetFunctions(g *gpu) {
	withFunctions.mu.Lock()
	defer withFunctions.mu.Unlock()
	for _, k := range withFunctions.list {
		k.gpu.Store(nil)
	}
	withFunctions.list = nil
}

// function returns k on the GPU. A kernel that was declared after the world was
// opened is compiled now, by each rank.
func (g *gpu) function(k *Kernel) (*gpuFunc, error) {
	if f := k.on(g); f != nil {
		return f, nil
	}
	if k.source.Text == "" {
		return nil, fmt.Errorf("%s: kernel %s has no CUDA source: it runs on the host only", ccall.At(), k.name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	f, err := g.functionOf(k)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ccall.At(), err)
	}
	fn := &gpuFunc{g: g, f: f}
	if fn.params, fn.known, err = f.Params(); err != nil {
		return nil, fmt.Errorf("%s: kernel %s: %w", ccall.At(), k.name, err)
	}
	fn.shared.Store(defaultShared)
	k.gpu.Store(fn)
	withFunctions.mu.Lock()
	withFunctions.list = append(withFunctions.list, k)
	withFunctions.mu.Unlock()
	return fn, nil
}

// functionOf finds k in its program, which it compiles if need be. The caller holds g.mu.
func (g *gpu) functionOf(k *Kernel) (*cuda.Function, error) {
	m := g.modules[k.source.Key()]
	if m != nil && !m.has(k.name) {
		// An instance of a template that the program was compiled without.
		key := k.source.Key() + "\x00" + k.name
		if m = g.modules[key]; m == nil {
			return g.compileOne(k, key)
		}
	}
	if m == nil {
		return g.compileOne(k, k.source.Key())
	}
	return m.function(k.name)
}

// compileOne compiles the source of k for k alone. The caller holds g.mu.
func (g *gpu) compileOne(k *Kernel, key string) (*cuda.Function, error) {
	image, err := compileSource(nvrtc.DefaultCache(), &k.source, g.capability())
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", k.name, err)
	}
	m, err := g.load(key, k.name, image)
	if err != nil {
		return nil, err
	}
	return m.function(k.name)
}

// prepare opens what c is the first to need, before any lock is taken.
func (g *gpu) prepare(w *World, c *command) error {
	k := c.kernel
	if c.kind == cmdFill && c.Type.Size() == 8 || c.route.fills {
		k = fillKernel
	}
	var open func() error
	switch {
	case k != nil && k.on(g) == nil:
		open = func() error { _, err := g.function(k); return err }
	case c.kind == cmdLibrary && c.lib.ready.Load() != g:
		open = func() error { return c.lib.open(g) }
	default:
		return nil
	}
	if err := w.quiet(); err != nil {
		return err
	}
	return open()
}

// on returns k on the GPU; nil where it is not there yet.
func (k *Kernel) on(g *gpu) *gpuFunc {
	if f := k.gpu.Load(); f != nil && f.g == g {
		return f
	}
	return nil
}

// defaultShared is the dynamic shared memory that every kernel may have unasked.
const defaultShared = 48 << 10

// openPools makes the world's pools of memory on the GPU.
func (w *World) openPools() {
	d := w.gpu.dev
	room := func() string {
		free, total, err := d.MemInfo()
		if err != nil {
			return "free unknown"
		}
		return fmt.Sprintf("%d of %d free on the device", free, total)
	}
	w.pool.Init(exec.Source{What: "device memory", SlabMax: 1 << 20, SlabSize: 32 << 20, Quiesce: w.quiet, Room: room,
		Get: d.Malloc, Put: func(p unsafe.Pointer, _ int) error { return d.Free(p) }})
	w.pinned, w.managed = &exec.Pool{}, &exec.Pool{}
	w.pinned.Init(exec.Source{What: "pinned host memory", Host: true, SlabMax: 1 << 18, SlabSize: 4 << 20, Quiesce: w.quiet,
		Get: d.MallocHost, Put: func(p unsafe.Pointer, _ int) error { return d.FreeHost(p) }})
	w.managed.Init(exec.Source{What: "managed memory", Host: true, SlabMax: 1 << 18, SlabSize: 4 << 20, Quiesce: w.quiet, Room: room,
		Get: d.MallocManaged, Put: func(p unsafe.Pointer, _ int) error { return d.Free(p) }})
}

// quiet waits, by looking and not by synchronising the device, until no collective
// of this world is in flight: the driver's allocator, and whatever loads code, may
// wait for kernels; and a kernel of NCCL waits for other ranks, which may be waiting
// for this one. Without a GPU there is nothing to wait for.
func (w *World) quiet() error {
	if w.gpu == nil {
		return nil
	}
	w.mu.Lock()
	streams := slices.Clone(w.streams)
	w.mu.Unlock()
	var ends []exec.Point
	for _, s := range streams {
		if end, ok := s.dev.inFlight(); ok {
			ends = append(ends, exec.Point{Q: s.dev, Seq: end})
		}
	}
	if err := exec.WaitFor(ends); err != nil {
		return fmt.Errorf("the driver is needed while collectives are in flight (allocate before they start): %w", err)
	}
	return nil
}

// inFlight returns the end of the queue's last collective, where it is not known
// to have run.
func (q *gpuQueue) inFlight() (uint64, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	coll := q.coll.Load()
	return coll, coll > q.known.Load() && !q.closed
}

// staging moves data between Go's memory and the GPU: through pinned memory, since
// C may not keep an address of Go's, in two halves that take turns.
type staging struct {
	mu   sync.Mutex
	s    *Stream
	half [2]*block
}

func (w *World) openStaging() error {
	var err error
	if w.stage.s, err = w.NewStreamPriority("copies", High); err != nil {
		return err
	}
	for i := range w.stage.half {
		if w.stage.half[i], err = w.block(w.pinned, stageBytes); err != nil {
			return err
		}
	}
	w.blocking, err = w.NewStreamPriority("blocking calls", High)
	return err
}

// toDevice copies n bytes at src, in Go's memory, to the device and returns when
// they are there.
func (st *staging) toDevice(dst, src unsafe.Pointer, n int) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	var sent [2]exec.Point
	for i, off := 0, 0; off < n; i, off = 1-i, off+stageBytes {
		if err := sent[i].Wait(); err != nil {
			return err
		}
		k := min(stageBytes, n-off)
		copy(unsafe.Slice((*byte)(st.half[i].Ptr), k), unsafe.Slice((*byte)(unsafe.Add(src, off)), k))
		if err := st.copy(unsafe.Add(dst, off), st.half[i].Ptr, k); err != nil {
			return err
		}
		sent[i] = st.s.q.end()
	}
	return st.s.Synchronize()
}

// toHost copies n bytes from the device to dst, in Go's memory.
func (st *staging) toHost(dst, src unsafe.Pointer, n int) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	var here [2]exec.Point
	fetch := func(i, off int) error {
		if off >= n {
			return nil
		}
		err := st.copy(st.half[i].Ptr, unsafe.Add(src, off), min(stageBytes, n-off))
		here[i] = st.s.q.end()
		return err
	}
	if err := fetch(0, 0); err != nil {
		return err
	}
	for i, off := 0, 0; off < n; i, off = 1-i, off+stageBytes {
		if err := fetch(1-i, off+stageBytes); err != nil {
			return err
		}
		if err := here[i].Wait(); err != nil {
			return err
		}
		k := min(stageBytes, n-off)
		copy(unsafe.Slice((*byte)(unsafe.Add(dst, off)), k), unsafe.Slice((*byte)(st.half[i].Ptr), k))
	}
	return nil
}

func (st *staging) copy(dst, src unsafe.Pointer, n int) error {
	c := command{kind: cmdCopy, call: call{Call: coll.Call{Dst: dst, Src: src, N: n}}}
	if err := st.s.submit(&c, nil); err != nil {
		return err
	}
	st.s.dev.marked() // here, not behind the next copy
	return nil
}
