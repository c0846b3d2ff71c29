package attention

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lockstep/cuda"
	"lockstep/cuda/cudnn"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
	"lockstep/spmd/library"
)

// cudnnLibrary is cuDNN opened for the world's GPU.
type cudnnLibrary struct {
	h      *cudnn.Handle
	d      *cuda.Device
	choice cudnn.Choice // of engines, for all shapes
	timed  string       // that this was found out now, for Why
}

// openCuDNN returns why there is no cuDNN, or "".
func (f *family[T]) openCuDNN() string {
	switch {
	case library.GPU(f.w) == nil:
		return "host"
	case !isHalf[T]():
		return "float32"
	case f.o.Path != pathAuto && f.o.Path != pathCuDNN:
		return "not asked for"
	}
	if err := library.Quiet(f.w); err != nil {
		return err.Error()
	}
	h, err := cudnn.Open(library.GPU(f.w))
	if err != nil {
		return err.Error()
	}
	f.lib = &cudnnLibrary{h: h, d: library.GPU(f.w)}
	return ""
}

func (l *cudnnLibrary) close() error {
	if l == nil {
		return nil
	}
	return l.h.Close()
}

// choose returns the engines that are fastest for a shape, from the cache folder or, the first
// time, by timing them. Without memory for that it returns the library's first choice.
func (l *cudnnLibrary) choose(s Shape, deterministic bool) (c cudnn.Choice, err error) {
	cache := nvrtc.DefaultCache()
	name := fmt.Sprintf("cuDNN %s on %s: attention of %v, deterministic %v", cudnn.Version(), l.d.Name(),
		s, deterministic)
	if data, ok := cache.Get(name); ok && json.Unmarshal(data, &c) == nil {
		return c, nil
	}
	defer cache.Making(name)()
	began := time.Now()
	c, err = l.h.TuneAttention(shapeOf(s), deterministic)
	switch {
	case errors.Is(err, cuda.ErrOutOfMemory):
		l.timed = ", its engines not timed for lack of memory"
		return cudnn.Choice{}, nil
	case err != nil:
		return c, err
	}
	l.timed = fmt.Sprintf(", its engines timed in %.1f s", time.Since(began).Seconds())
	if data, err := json.Marshal(c); err == nil {
		_ = cache.Put(name, data) // the world has said why the folder keeps nothing
	}
	return c, nil
}

func shapeOf(s Shape) cudnn.Shape {
	return cudnn.Shape{Batch: s.Batch, Tokens: s.Tokens, Heads: s.Heads, Size: s.Size, Type: elem.BFloat16}
}

// cudnnPath is attention of one shape by cuDNN, as commands of streams.
type cudnnPath struct {
	a                 *cudnn.Attention
	forward, backward *library.Function
	version           string
}

// notSupported reports whether cuDNN has nothing for a shape.
func notSupported(err error) bool { return errors.Is(err, cudnn.ErrNotSupported) }

func (l *cudnnLibrary) plan(s Shape, deterministic bool) (*cudnnPath, error) {
	a, err := l.h.NewAttention(shapeOf(s), deterministic, l.choice)
	if err != nil {
		return nil, err
	}
	return &cudnnPath{
		a: a,
		forward: library.New("attention forward", func(c library.Call) error {
			return a.Forward(c.Stream, c.Pointer(0), c.Pointer(1), c.Pointer(2), c.Pointer(3),
				a.ForwardWorkspace())
		}, nil).Writes(0b1011),
		backward: library.New("attention backward", func(c library.Call) error {
			return a.Backward(c.Stream, c.Pointer(0), c.Pointer(1), c.Pointer(2), c.Pointer(3),
				c.Pointer(4), c.Pointer(5), a.BackwardWorkspace())
		}, nil).Writes(0b100001),
		version: cudnn.Version(),
	}, nil
}

func (p *cudnnPath) close() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.forward.Close(), p.backward.Close(), p.a.Close())
}
