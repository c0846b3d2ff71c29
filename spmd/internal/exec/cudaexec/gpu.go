// Package cudaexec runs commands on GPUs. A queue is a stream of CUDA, to which commands go when
// they are enqueued, and a graph is one of the driver.
package cudaexec

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/spmd/internal/exec"
)

// GPU is a GPU that this process works on. The worlds that work on it share it.
type GPU struct {
	Dev   *cuda.Device
	users int // worlds; under openMu

	issue  sync.Mutex // the order of collectives
	last   issued
	beside *cuda.Stream   // see Beside
	word   unsafe.Pointer // see Word
	pinned unsafe.Pointer // of words

	mu        sync.Mutex
	words     []*uint32 // for the progress of streams
	spare     []*Mark
	functions atomic.Pointer[[]*function] // by the ID of their kernels; written under mu
	modules   map[string]*module          // by the keys of their sources
	checks    []check                     // see Watch
	checked   time.Time                   // when health was last asked
}

// The GPUs that are open, by their index.
var (
	openMu sync.Mutex
	open   = map[int]*GPU{}
)

// Open opens the GPU with an index, for one more world. Close ends that.
func Open(index int) (*GPU, error) {
	openMu.Lock()
	defer openMu.Unlock()
	if g := open[index]; g != nil {
		g.users++
		return g, nil
	}
	dev, err := cuda.Open(index)
	if err != nil {
		return nil, err
	}
	g := &GPU{Dev: dev, users: 1, modules: map[string]*module{}}
	if g.word, err = dev.Malloc(exec.Alignment); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	if g.pinned, err = dev.MallocHost(signBytes); err != nil {
		return nil, errors.Join(err, dev.Free(g.word), dev.Close())
	}
	g.words = splitWords(g.pinned)
	open[index] = g
	return g, nil
}

// Close gives up one use. Everything of the caller's world is gone already.
func (g *GPU) Close() error {
	openMu.Lock()
	defer openMu.Unlock()
	if g.users--; g.users > 0 {
		return nil
	}
	delete(open, g.Dev.Index())
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
	err = errors.Join(err, g.Dev.Free(g.word), g.Dev.FreeHost(g.pinned))
	return errors.Join(err, g.Dev.Close())
}

// Word returns a word of device memory that is never read.
func (g *GPU) Word() unsafe.Pointer { return g.word }

// Capability returns the GPU's compute capability, major*10 + minor.
func (g *GPU) Capability() int {
	major, minor := g.Dev.Capability()
	return 10*major + minor
}

// mark returns a mark that nobody uses, with an event without timing.
func (g *GPU) mark() (*Mark, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.spare); n > 0 {
		m := g.spare[n-1]
		g.spare = g.spare[:n-1]
		return m, nil
	}
	e, err := g.Dev.NewEvent()
	return &Mark{event: e}, err
}

func (g *GPU) recycle(m *Mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m.gone = false
	g.spare = append(g.spare, m)
}

// check asks for failures of something that works on the GPU.
type check struct {
	of      any
	failure func() error
}

// Watch has hosts that wait for the GPU ask for failures of something that no call returns, until
// Unwatch.
func (g *GPU) Watch(of any, failure func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.checks = append(g.checks, check{of, failure})
}

// Unwatch ends Watch.
func (g *GPU) Unwatch(of any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.checks = slices.DeleteFunc(g.checks, func(c check) bool { return c.of == of })
}

// health asks for failures that no call has returned: a peer that died, a network that broke, a
// message of another length than its Recv.
func (g *GPU) health() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.checked) < healthEvery/2 {
		return nil // several streams wait
	}
	g.checked = time.Now()
	for _, c := range g.checks {
		if err := c.failure(); err != nil {
			return err
		}
	}
	return nil
}

// OpenBeside makes the stream for OnBoth.
func (g *GPU) OpenBeside() (err error) {
	if g.beside == nil {
		_, greatest := g.Dev.Priorities()
		g.beside, err = g.Dev.NewStream(greatest)
	}
	return err
}

// OnBoth has two parts of a call run at the same time: it enqueues first on h, and then second on a
// stream of its own. Later work on h waits for both. The caller is enqueueing a call.
func (g *GPU) OnBoth(h *cuda.Stream, first func() error, second func(beside *cuda.Stream) error) error {
	m, err := g.mark()
	if err != nil {
		return err
	}
	defer g.recycle(m)
	if err := errors.Join(m.event.Record(h), g.beside.Wait(m.event)); err != nil {
		return err
	}
	if err = first(); err == nil {
		err = second(g.beside)
	}
	return errors.Join(err, m.event.Record(g.beside), h.Wait(m.event)) // a capture has to be joined in any case
}
