package spmd

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/inside"
)

// What the packages on top of this one need of it, and applications do not.
func init() {
	inside.World = func(w *World) inside.Rank { return w.in.Inside() }
	inside.Comm = func(c Comm, op string) (*World, error) {
		if c.c == nil {
			return nil, c.c.Usable(op)
		}
		return worldOf(c.c.Of()), c.c.Usable(op)
	}
	inside.Fail = func(w *World, err error) { w.in.Fail(err) }
	inside.CheckBuffer = func(w *World, b any) error { return w.in.CheckBlock(b.(anyBuffer).memory()) }
	inside.Overlap = func(a, b any) bool {
		x, y := a.(anyBuffer).bytes(), b.(anyBuffer).bytes()
		return calls.Overlap(x.addr(), x.n, y.addr(), y.n)
	}
	inside.Join = func(a, b any) (any, bool) { return a.(anyBuffer).join(b) }
	inside.Await = func(s *Stream, b any) (mark func(), wait func() error, err error) {
		a, err := b.(anyBuffer).awaited(s)
		return a.Mark, func() error { return a.Wait(s.Synchronize) }, err
	}
	inside.Bytes = func(b any) Buffer[uint8] { return b.(anyBuffer).bytes() }
	inside.Explain = func(w *World, fn func() string) { w.in.Explain(fn) }
	inside.Scratch = func(s *Stream, t elem.Type, skip int) (Arg, error) {
		p, err := s.s.Q.Scratch((skip + 1) * t.Size())
		return Arg{exec.Arg{Ptr: unsafe.Add(p, skip*t.Size()), N: 1, Type: t, Kind: exec.BufferArg}}, err
	}
}

// anyBuffer is a Buffer of any type.
type anyBuffer interface {
	memory() *exec.Block
	bytes() Buffer[uint8] // the same memory, byte by byte
	join(any) (any, bool)
	awaited(*Stream) (exec.Await, error)
}

func (b Buffer[T]) memory() *exec.Block { return b.blk }

func (b Buffer[T]) bytes() Buffer[uint8] { return Buffer[uint8]{b.blk, b.off * sizeOf[T](), b.Bytes()} }

func (b Buffer[T]) join(other any) (any, bool) {
	o, ok := other.(Buffer[T])
	if !ok || b.blk != o.blk || o.off+o.n != b.off && b.off+b.n != o.off {
		return nil, false
	}
	return Buffer[T]{b.blk, min(b.off, o.off), b.n + o.n}, true
}
