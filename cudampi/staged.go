package cudampi

import (
	"errors"
	"unsafe"

	"lockstep/cuda"
)

// relay is the collectives through pinned memory of this rank alone and MPI's own collectives on it: what is left where
// the ranks do not share memory. Two slots take turns: the device copies step k+1 in and step k-1 out while MPI has step k.
type relay struct {
	c      *Comm
	dev    *cuda.Device
	mem    unsafe.Pointer
	chunk  int
	here   [2]*cuda.Event
	gone   [2]*cuda.Event
	counts [2][]int
}

var relayBytes = 4 << 20 // of a slot; tests lower it

// openRelay allocates. Collective only in that all ranks need one.
func openRelay(c *Comm, d *cuda.Device) (*relay, error) {
	y := &relay{c: c, dev: d, chunk: relayBytes}
	var err error
	if y.mem, err = d.MallocHost(4 * y.chunk); err != nil {
		return nil, err
	}
	for i := range y.here {
		y.counts[i] = make([]int, c.size)
		if y.here[i], err = d.NewEvent(false); err == nil {
			y.gone[i], err = d.NewEvent(false)
		}
		if err != nil {
			return nil, errors.Join(err, y.close())
		}
	}
	return y, nil
}

func (y *relay) close() error {
	err := y.dev.FreeHost(y.mem)
	y.mem = nil
	for i := range y.here {
		for _, e := range []*cuda.Event{y.here[i], y.gone[i]} {
			if e != nil {
				err = errors.Join(err, e.Close())
			}
		}
	}
	return err
}

// from and to are the memory that MPI reads in step k, and that it writes.
func (y *relay) from(k int) unsafe.Pointer { return unsafe.Add(y.mem, k%2*y.chunk) }
func (y *relay) to(k int) unsafe.Pointer   { return unsafe.Add(y.mem, (2+k%2)*y.chunk) }

// carryOut does a transfer as that of segment does.
func (y *relay) carryOut(x *transfer, in, out *cuda.Stream, agreed bool) error {
	if !agreed {
		if err := y.c.agree(x); err != nil {
			return err
		}
	}
	x.cut(y.chunk, true)
	if err := y.copyIn(x, 0, in); err != nil {
		return err
	}
	for k := range x.steps() {
		if k+1 < x.steps() {
			if err := y.copyIn(x, k+1, in); err != nil {
				return err
			}
		}
		if err := y.c.WaitEvent(y.here[k%2]); err != nil {
			return err
		}
		if err := y.c.WaitEvent(y.gone[k%2]); err != nil {
			return err
		}
		if err := y.communicate(x, k); err != nil {
			return err
		}
		if err := y.copyOut(x, k, out); err != nil {
			return err
		}
	}
	return nil
}

func (y *relay) copyIn(x *transfer, k int, s *cuda.Stream) error {
	to := y.from(k)
	for _, p := range x.out(k) {
		if !x.stays(p) {
			if err := s.Copy(to, p.at, p.n*x.t.Size()); err != nil {
				return err
			}
		}
		to = unsafe.Add(to, p.n*x.t.Size())
	}
	return y.here[k%2].Record(s)
}

func (y *relay) copyOut(x *transfer, k int, s *cuda.Stream) error {
	from := y.to(k)
	for _, p := range x.in(k) {
		if p.peer != y.c.rank || x.isReduction() {
			if err := s.Copy(p.at, from, p.n*x.t.Size()); err != nil {
				return err
			}
		}
		from = unsafe.Add(from, p.n*x.t.Size())
	}
	return y.gone[k%2].Record(s)
}

// communicate does step k on the host. The pieces are packed in the order of the ranks.
func (y *relay) communicate(x *transfer, k int) error {
	c, to, from := y.c, y.to(k), y.from(k)
	spans := func(i int, p parts) []int {
		for r := range c.size {
			_, y.counts[i][r] = x.span(k, p.len(r))
		}
		return y.counts[i]
	}
	_, whole := x.span(k, x.n)
	switch x.what {
	case allReduce:
		return c.AllReduce(to, from, whole, x.t, x.op)
	case reduce:
		return c.Reduce(to, from, whole, x.t, x.op, x.root)
	case broadcast:
		if c.rank == x.root {
			to = from
		}
		return c.Broadcast(to, whole, x.t, x.root)
	case allGather:
		return c.AllGatherV(to, from, spans(0, x.recv), x.t)
	case gather:
		return c.GatherV(to, from, spans(0, x.recv), x.t, x.root)
	case reduceScatter:
		return c.ReduceScatterV(to, from, spans(0, x.send), x.t, x.op)
	case scatter:
		return c.ScatterV(to, from, spans(0, x.send), x.t, x.root)
	default:
		return c.AllToAllV(to, spans(0, x.recv), from, spans(1, x.send), x.t)
	}
}
