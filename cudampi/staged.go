package cudampi

import (
	"errors"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/transfer"
)

// relay does collectives through pinned memory of this rank, on which MPI does its own: the way that is left where the ranks do
// not share memory. Two slots take turns. The device copies step k+1 in and step k-1 out while MPI has step k.
type relay struct {
	c      *Comm
	dev    *cuda.Device
	mem    unsafe.Pointer
	chunk  int
	here   [2]*cuda.Event
	gone   [2]*cuda.Event
	counts [2][]int
}

// openRelay allocates the memory. All ranks need one.
func openRelay(c *Comm, d *cuda.Device) (*relay, error) {
	y := &relay{c: c, dev: d, chunk: transfer.Sizes.Relay}
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

// carryOut does a transfer: in is for copies from the device, out for copies to it. On return the last of these may still be
// under way.
func (y *relay) carryOut(x *transfer.Transfer, in, out *cuda.Stream, agreed bool) error {
	if !agreed {
		if err := y.c.agree(x); err != nil {
			return err
		}
	}
	x.Cut(y.chunk, true)
	if err := y.copyIn(x, 0, in); err != nil {
		return err
	}
	for k := range x.Steps() {
		if k+1 < x.Steps() {
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

func (y *relay) copyIn(x *transfer.Transfer, k int, s *cuda.Stream) error {
	to := y.from(k)
	for _, p := range x.Out(k) {
		if !x.Stays(p) {
			if err := s.Copy(to, p.At, p.N*x.Type.Size()); err != nil {
				return err
			}
		}
		to = unsafe.Add(to, p.N*x.Type.Size())
	}
	return y.here[k%2].Record(s)
}

func (y *relay) copyOut(x *transfer.Transfer, k int, s *cuda.Stream) error {
	from := y.to(k)
	for _, p := range x.In(k) {
		if p.Peer != y.c.rank || x.IsReduction() {
			if err := s.Copy(p.At, from, p.N*x.Type.Size()); err != nil {
				return err
			}
		}
		from = unsafe.Add(from, p.N*x.Type.Size())
	}
	return y.gone[k%2].Record(s)
}

// communicate does step k on the host. The pieces are packed in the order of the ranks.
func (y *relay) communicate(x *transfer.Transfer, k int) error {
	c, to, from := y.c, y.to(k), y.from(k)
	spans := func(i int, p transfer.Parts) []int {
		for r := range c.size {
			_, y.counts[i][r] = x.Span(k, p.Len(r))
		}
		return y.counts[i]
	}
	_, whole := x.Span(k, x.N)
	switch x.What {
	case transfer.AllReduce:
		return c.AllReduce(to, from, whole, x.Type, x.Op)
	case transfer.Reduce:
		return c.Reduce(to, from, whole, x.Type, x.Op, x.Root)
	case transfer.Broadcast:
		if c.rank == x.Root {
			to = from
		}
		return c.Broadcast(to, whole, x.Type, x.Root)
	case transfer.AllGather:
		return c.AllGatherV(to, from, spans(0, x.Recv), x.Type)
	case transfer.Gather:
		return c.GatherV(to, from, spans(0, x.Recv), x.Type, x.Root)
	case transfer.ReduceScatter:
		return c.ReduceScatterV(to, from, spans(0, x.Send), x.Type, x.Op)
	case transfer.Scatter:
		return c.ScatterV(to, from, spans(0, x.Send), x.Type, x.Root)
	default:
		return c.AllToAllV(to, spans(0, x.Recv), from, spans(1, x.Send), x.Type)
	}
}
