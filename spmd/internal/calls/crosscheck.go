package calls

import (
	"cmp"
	"errors"
	"sync"
	"unsafe"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// crossCheck is --check both on streams: see verify.Reference. It does not compare what is
// captured, since a graph holds no host that could.
type crossCheck struct {
	r      *Rank
	ref    *verify.Reference
	warned sync.Once
}

// OpenCross starts to compare. The communicators of the world have NCCL, and OpenSecond follows.
// Collective over all ranks, in the caller's turn.
func (r *Rank) OpenCross() error {
	self, err := r.Control.host.Split(r.All.rank, 0)
	if err != nil {
		return err
	}
	alone, err := r.AddComm(self, "check")
	if err != nil {
		return err
	}
	q, err := r.NewQueue("check", exec.Normal)
	if err != nil {
		return err
	}
	on := transport.Bare{S: q.(exec.Direct).Stream()}
	r.cross = &crossCheck{r: r, ref: verify.NewReference(on, poolMemory{r}, alone.host)}
	return nil
}

// OpenSecond has MPI make the calls again. A rank may fail alone. Collective over all ranks, in the
// caller's turn.
func (r *Rank) OpenSecond() error { return route.OpenSecond(&r.All.routes, &r.Node.routes) }

// submit has NCCL carry out c, then MPI, and compares.
func (x *crossCheck) submit(q exec.Queue, c *Call) error {
	on := c.comm
	captured := q.Lane() != nil
	if captured {
		x.warned.Do(func() {
			x.r.Log.Warn().Msg("--check both does not compare what is captured: a graph holds no host that could")
		})
	}
	second, compared := on.routes.Second()
	if captured || !compared || c.Kind == coll.Barrier {
		return c.enqueue(q)
	}
	made := verify.Pack(&c.Call, c.group) // a group is gone once it is issued
	run, err := x.ref.Begin(second, on.host, on.recorder, &c.Call, c.group, copyOn(q))
	if err == nil {
		err = c.enqueue(q)
	}
	copied := q.End().Wait()
	if err != nil && copied == nil {
		run.Free()
	}
	if err = cmp.Or(err, copied); err != nil {
		return err
	}
	if err := x.r.Order.Enter(x.r.Order.Take(1)); err != nil {
		return err
	}
	defer x.r.Order.Leave()
	on.recorder.Enter(made)
	defer on.recorder.Leave()
	if err = run.Compare(); err == nil || errors.Is(err, verify.ErrDiffer) {
		run.Free() // else MPI may still have it, and the job ends
	}
	return err
}

// copyOn returns what enqueues copies within the memory of the device.
func copyOn(q exec.Queue) func(dst, src unsafe.Pointer, bytes int) error {
	return func(dst, src unsafe.Pointer, bytes int) error {
		c, err := q.Begin(exec.DoCopy)
		if err != nil {
			return err
		}
		c.Dst, c.Src, c.N = dst, src, bytes
		return q.Enqueue(c)
	}
}

// poolMemory is the pool of a world as verify needs it.
type poolMemory struct{ r *Rank }

func (m poolMemory) Alloc(bytes int) (unsafe.Pointer, func(), error) {
	b, err := m.r.Block(m.r.Dev.Pools().Device, bytes)
	if err != nil {
		return nil, nil, err
	}
	return b.Ptr, func() { b.Pool.Release(b, nil) }, nil
}

func (m poolMemory) Local(q transport.Queue, s coll.Call) error { return m.r.local(q, s) }

func (m poolMemory) Fetch(dst, src unsafe.Pointer, bytes int) error {
	return m.r.Dev.ToHost(dst, src, bytes)
}
