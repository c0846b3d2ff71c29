package attention

import (
	"errors"

	"lockstep/cuda/cudnn"
	"lockstep/internal/elem"
	"lockstep/spmd"
)

// cudnnLibrary is cuDNN opened for the world's GPU.
type cudnnLibrary struct{ h *cudnn.Handle }

// openCuDNN returns why there is no cuDNN, "" where there is.
func (f *family[T]) openCuDNN() string {
	switch {
	case f.w.GPU() == nil:
		return "host"
	case !isHalf[T]():
		return "float32"
	case f.o.Path != pathAuto && f.o.Path != pathCuDNN:
		return "not asked for"
	}
	if err := f.w.Quiet(); err != nil {
		return err.Error()
	}
	h, err := cudnn.Open(f.w.GPU())
	if err != nil {
		return err.Error()
	}
	f.lib = &cudnnLibrary{h}
	return ""
}

func (l *cudnnLibrary) close() error {
	if l == nil {
		return nil
	}
	return l.h.Close()
}

// cudnnPath is attention of one shape by cuDNN, as commands of streams.
type cudnnPath struct {
	a                 *cudnn.Attention
	forward, backward *spmd.Library
	version           string
}

// notSupported says whether cuDNN has nothing for a shape.
func notSupported(err error) bool { return errors.Is(err, cudnn.ErrNotSupported) }

func (l *cudnnLibrary) plan(s Shape, deterministic bool) (*cudnnPath, error) {
	a, err := l.h.NewAttention(cudnn.Shape{Batch: s.Batch, Tokens: s.Tokens, Heads: s.Heads, Size: s.Size, Type: elem.BFloat16}, deterministic)
	if err != nil {
		return nil, err
	}
	return &cudnnPath{
		a: a,
		forward: spmd.NewLibrary("attention forward", func(c spmd.LibraryCall) error {
			return a.Forward(c.Stream, c.Pointer(0), c.Pointer(1), c.Pointer(2), c.Pointer(3), a.ForwardWorkspace())
		}, nil),
		backward: spmd.NewLibrary("attention backward", func(c spmd.LibraryCall) error {
			return a.Backward(c.Stream, c.Pointer(0), c.Pointer(1), c.Pointer(2), c.Pointer(3), c.Pointer(4), c.Pointer(5), a.BackwardWorkspace())
		}, nil),
		version: cudnn.Version(),
	}, nil
}

func (p *cudnnPath) close() error {
	if p == nil {
		return nil
	}
	p.forward.Close()
	p.backward.Close()
	return p.a.Close()
}
