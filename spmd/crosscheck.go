package spmd

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/verify"
)

// ErrDiffer is what a collective of --check both returns, on every rank, when NCCL and
// MPI have come to different results; a message, on the rank that has received it.
var ErrDiffer = errors.New("NCCL and MPI give different results")

// nothingToCompare is added to the start line where --check both finds one path only.
const nothingToCompare = "; --check both has nothing to compare without NCCL: it is as --check on"

// crossCheck is --check both: NCCL carries out each call, and then MPI does with copies
// of what it reads, into memory of its own. The host waits for both and compares. What
// is captured is not compared, since a graph holds no host that could.
type crossCheck struct {
	w      *World
	s      *Stream   // of MPI's part
	self   *shm.Comm // of this rank alone: to compare in
	part   [2][]byte // of two results, in host memory
	warned sync.Once
}

// crossPart is how much is compared at a time.
const crossPart = 4 << 20

// openCross starts to compare. The communicators of the world have NCCL. Collective
// over all ranks, in the caller's turn.
func (w *World) openCross() error {
	x := &crossCheck{w: w}
	self, err := w.control.st.mpi.Split(w.Rank(), 0)
	if err != nil {
		return err
	}
	alone, err := w.addComm(self, "check")
	if err != nil {
		return err
	}
	x.self = alone.st.mpi
	if x.s, err = w.NewStream("check"); err != nil {
		return err
	}
	for i := range x.part {
		x.part[i] = make([]byte, crossPart)
	}
	w.cross = x
	if err := w.mustAgree(errors.Join(w.Comm.st.openDevice(), w.NodeComm.st.openDevice())); err != nil {
		return fmt.Errorf("--check both: %w", err)
	}
	return nil
}

// shadow is a call as MPI will make it.
type shadow struct {
	c          call // on the memory that NCCL has
	in, out    *block
	reads      int // elements
	writes     int
	everywhere bool // every rank makes it, else it is a message
}

// submit has NCCL carry out c, which communicates, then MPI, and compares.
func (x *crossCheck) submit(q *gpuQueue, c *command) error {
	st := c.comm
	if q.s.cap != nil {
		x.warned.Do(func() {
			x.w.Log.Warn().Msg("--check both does not compare what is captured: a graph holds no host that could")
		})
	}
	if q.s.cap != nil || st.mirror == nil || c.Kind == coll.Barrier {
		return q.submit(c, nil)
	}
	made := verify.Pack(&c.Call, c.group) // a group is gone once it is issued
	var list []shadow
	if c.Kind == coll.Group {
		for i := range c.group.cmds {
			list = append(list, newShadow(&c.group.cmds[i]))
		}
	} else {
		list = append(list, newShadow(&c.call))
	}
	for i := range list {
		if err := list[i].prepare(q.s); err != nil {
			return fmt.Errorf("%s: --check both: %w", ccall.At(), err)
		}
	}
	if err := q.submit(c, nil); err != nil {
		return err
	}
	if err := q.end().Wait(); err != nil {
		return err
	}
	turn := mpiOrder.Take(1)
	if err := mpiOrder.Enter(turn); err != nil {
		return err
	}
	defer mpiOrder.Leave()
	st.recorder.Enter(made)
	defer st.recorder.Leave()
	if err := x.compare(st, list); err != nil {
		return err
	}
	for _, s := range list {
		for _, b := range []*block{s.in, s.out} {
			if b != nil {
				b.Pool.Release(&b.Block, nil) // nothing is under way
			}
		}
	}
	return nil
}

func newShadow(c *call) shadow {
	s := shadow{everywhere: !c.Kind.Traits().Message}
	s.c.copyFrom(c)
	s.writes, s.reads = c.Extents(c.comm.rank, c.comm.size)
	return s
}

// prepare copies what the call reads, in the order of the stream, before NCCL may
// overwrite it, and gets memory for MPI's result.
func (s *shadow) prepare(on *Stream) (err error) {
	w, size := on.w, s.c.Type.Size()
	save := func(dst *block, src unsafe.Pointer, n int) error {
		c := command{kind: cmdCopy, call: call{Call: coll.Call{Dst: dst.Ptr, Src: src, N: n * size}}}
		return on.submit(&c, nil)
	}
	if s.reads > 0 {
		if s.in, err = w.block(&w.pool, s.reads*size); err != nil {
			return err
		}
		if err := save(s.in, s.c.Src, s.reads); err != nil {
			return err
		}
	}
	if s.writes > 0 {
		if s.out, err = w.block(&w.pool, s.writes*size); err != nil {
			return err
		}
		if s.c.Kind == coll.Broadcast {
			return save(s.out, s.c.Dst, s.writes)
		}
	}
	return nil
}

// mirrored is the call on MPI's memory.
func (s *shadow) mirrored() call {
	c := s.c
	c.Dst, c.Src = nil, nil
	if s.out != nil {
		c.Dst = s.out.Ptr
	}
	if s.in != nil {
		c.Src = s.in.Ptr
	}
	return c
}

// compare has MPI make the calls: collectives one after the other, then all messages
// together, as it makes a group. It returns the first difference. The caller is in its
// turn.
func (x *crossCheck) compare(st *commState, list []shadow) error {
	on := transport.Bare{S: x.s.dev.h}
	var messages []coll.Call
	for i := range list {
		s := &list[i]
		c := s.mirrored()
		switch {
		case c.Kind == coll.Barrier:
		case !s.everywhere:
			messages = append(messages, c.Call)
		default:
			err := st.mirror.Do(on, c.Call)
			if err == nil {
				err = st.mpi.WaitStream(x.s.dev.h)
			}
			bound := cudampi.Bound(nil)
			if err == nil {
				bound, err = x.bound(st, s)
			}
			if err != nil {
				return x.failed(st, s, err)
			}
			// Every rank has its own part of the result: the first that is wrong speaks for all.
			wrong, err := control.First(st.mpi, x.difference(s, bound))
			switch {
			case err != nil:
				return x.failed(st, s, err)
			case wrong != nil:
				return x.failed(st, s, fmt.Errorf("%w: %w", ErrDiffer, wrong))
			}
		}
	}
	if len(messages) == 0 {
		return nil
	}
	err := st.mirror.Group(on, messages, nil)
	if err == nil {
		err = st.mpi.WaitStream(x.s.dev.h)
	}
	if err != nil {
		return fmt.Errorf("%s: --check both: %w", ccall.At(), err)
	}
	for i := range list {
		if s := &list[i]; !s.everywhere {
			if err := x.difference(s, nil); err != nil {
				return x.failed(st, s, fmt.Errorf("%w: rank %d: %w", ErrDiffer, st.rank, err))
			}
		}
	}
	return nil
}

// failed adds which call it was.
func (x *crossCheck) failed(st *commState, s *shadow, err error) error {
	return fmt.Errorf("%s: %v: %w (%s, %d ranks)", ccall.At(), &s.c, err, st.id, st.size)
}

// bound says how far the two results may be apart; nil where they must be the same.
func (x *crossCheck) bound(st *commState, s *shadow) (cudampi.Bound, error) {
	c := &s.c
	if !c.Kind.Traits().Reduces {
		return nil, nil
	}
	if cudampi.ReductionBound(c.Type, c.Op, st.size, 1) == nil {
		return func(float64) float64 { return 0 }, nil // of integers, of minima and maxima, in which -0 is 0
	}
	most := new(float64)
	err := x.inParts(s.reads, c.Type.Size(), func(off, n int) error {
		if err := x.fetch(0, s.in.Ptr, off, n, c.Type.Size()); err != nil {
			return err
		}
		largest, err := x.self.Largest(unsafe.Pointer(&x.part[0][0]), n, c.Type)
		*most = max(*most, largest)
		return err
	})
	if err == nil {
		err = st.mpi.AllReduce(unsafe.Pointer(most), unsafe.Pointer(most), 1, elem.Float64, Max)
	}
	return cudampi.ReductionBound(c.Type, c.Op, st.size, *most), err
}

// difference compares this rank's two results of a call.
func (x *crossCheck) difference(s *shadow, bound cudampi.Bound) error {
	size := s.c.Type.Size()
	return x.inParts(s.writes, size, func(off, n int) error {
		if err := errors.Join(x.fetch(0, s.c.Dst, off, n, size), x.fetch(1, s.out.Ptr, off, n, size)); err != nil {
			return err
		}
		err := x.self.Compare(unsafe.Pointer(&x.part[0][0]), unsafe.Pointer(&x.part[1][0]), n, s.c.Type, bound)
		var d *cudampi.Difference
		if !errors.As(err, &d) {
			return err
		}
		within := ""
		if d.Bound > 0 {
			within = fmt.Sprintf(", and may differ by %.3g", d.Bound)
		}
		return fmt.Errorf("element %d is %s by NCCL and %s by MPI (%v)%s", off+d.Index, d.Got, d.Want, s.c.comm.mirror.Path(), within)
	})
}

// inParts calls f for parts of n elements, until it fails.
func (x *crossCheck) inParts(n, size int, f func(off, n int) error) error {
	for off := 0; off < n; off += crossPart / size {
		if err := f(off, min(crossPart/size, n-off)); err != nil {
			return err
		}
	}
	return nil
}

// fetch copies elements of device memory to one of the parts.
func (x *crossCheck) fetch(part int, p unsafe.Pointer, off, n, size int) error {
	return x.w.stage.toHost(unsafe.Pointer(&x.part[part][0]), unsafe.Add(p, off*size), n*size)
}
