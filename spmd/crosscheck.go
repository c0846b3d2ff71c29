package spmd

import (
	"fmt"
	"sync"
	"unsafe"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// ErrDiffer is what a collective of --check both returns, on every rank, when NCCL and
// MPI have come to different results; a message, on the rank that has received it.
var ErrDiffer = verify.ErrDiffer

// nothingToCompare is added to the start line where --check both finds one path only.
const nothingToCompare = "; --check both has nothing to compare without NCCL: it is as --check on"

// crossCheck is --check both on streams: see verify.Reference. What is captured is not compared, since a graph holds no host
// that could.
type crossCheck struct {
	w      *World
	ref    *verify.Reference
	warned sync.Once
}

// openCross starts to compare. The communicators of the world have NCCL. Collective
// over all ranks, in the caller's turn.
func (w *World) openCross() error {
	self, err := w.control.st.host.Split(w.Rank(), 0)
	if err != nil {
		return err
	}
	alone, err := w.addComm(self, "check")
	if err != nil {
		return err
	}
	s, err := w.NewStream("check")
	if err != nil {
		return err
	}
	w.cross = &crossCheck{w: w, ref: verify.NewReference(transport.Bare{S: onGPU(s.q).Stream()}, poolMemory{w}, alone.st.host)}
	if err := w.mustAgree(route.OpenSecond(&w.all.st.routes, &w.near.st.routes)); err != nil {
		return fmt.Errorf("--check both: %w", err)
	}
	return nil
}

// submit has NCCL carry out c, which communicates, then MPI, and compares.
func (x *crossCheck) submit(s *Stream, c *call) error {
	st := c.comm
	captured := s.q.Lane() != nil
	if captured {
		x.warned.Do(func() {
			x.w.Log().Warn().Msg("--check both does not compare what is captured: a graph holds no host that could")
		})
	}
	second, compared := st.routes.Second()
	if captured || !compared || c.Kind == coll.Barrier {
		return s.enqueue(c)
	}
	made := verify.Pack(&c.Call, c.group) // a group is gone once it is issued
	run, err := x.ref.Begin(second, st.host, st.recorder, &c.Call, c.group, s.copyBytes)
	if err != nil {
		return err
	}
	if err := s.enqueue(c); err != nil {
		return err
	}
	if err := s.q.End().Wait(); err != nil {
		return err
	}
	if err := x.w.order.Enter(x.w.order.Take(1)); err != nil {
		return err
	}
	defer x.w.order.Leave()
	st.recorder.Enter(made)
	defer st.recorder.Leave()
	if err := run.Compare(); err != nil {
		return err
	}
	run.Free()
	return nil
}

// copyBytes enqueues a copy within the memory of the device.
func (s *Stream) copyBytes(dst, src unsafe.Pointer, bytes int) error {
	c, err := s.q.Begin(exec.DoCopy)
	if err != nil {
		return err
	}
	c.Dst, c.Src, c.N = dst, src, bytes
	return s.q.Enqueue(c)
}

// poolMemory is the pool of a world as verify needs it.
type poolMemory struct{ w *World }

func (m poolMemory) Alloc(bytes int) (unsafe.Pointer, func(), error) {
	b, err := m.w.block(m.w.dev.Pools().Device, bytes)
	if err != nil {
		return nil, nil, err
	}
	return b.Ptr, func() { b.Pool.Release(b, nil) }, nil
}

func (m poolMemory) Local(q transport.Queue, s coll.Call) error { return m.w.local(q, s) }

func (m poolMemory) Fetch(dst, src unsafe.Pointer, bytes int) error {
	return m.w.dev.ToHost(dst, src, bytes)
}
