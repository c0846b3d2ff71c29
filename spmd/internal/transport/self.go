package transport

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
)

// Self is one rank alone.
type Self struct{}

var selfKinds = coll.SetOf(coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.ReduceScatter,
	coll.AllToAll,
	coll.Gather, coll.Scatter, coll.AllGatherV, coll.ReduceScatterV, coll.GatherV, coll.ScatterV, coll.AllToAllV,
	coll.Send, coll.Recv, coll.SendRecv, coll.Scan, coll.ExScan, coll.Barrier)

var selfCaps = Caps{Library: coll.Library{Kinds: selfKinds}, Alone: true, Ordered: true}

// Name implements Transport: there is nobody to talk to.
func (Self) Name() string { return "none" }

var _ Transport = (*Self)(nil)

func (Self) Caps() *Caps { return &selfCaps }

func (Self) Scratch(int) int { return 0 }

// Do implements Transport: a call is a copy, or nothing. Avg, like the other operations,
// leaves one rank's values as they are.
func (Self) Do(q Issuer, c coll.Call) error {
	switch c.Kind {
	case coll.Barrier, coll.Broadcast:
		return nil
	case coll.Send, coll.Recv:
		return fmt.Errorf("%s: a message to oneself outside a Group would wait for ever", ccall.At())
	case coll.SendRecv:
		if c.N != c.RecvN {
			return fmt.Errorf("%s: SendRecv with oneself: src has %d elements, dst %d", ccall.At(), c.N, c.RecvN)
		}
	}
	n, _ := c.Extents(0, 1)
	return copyOwn(q, &c, c.Dst, c.Src, n)
}

func copyOwn(q Issuer, c *coll.Call, dst, src unsafe.Pointer, n int) error {
	if n == 0 || dst == src {
		return nil
	}
	return q.Stream().Copy(dst, src, n*c.Type.Size())
}

// Group implements Transport: it pairs the sends and receives in their order.
func (t Self) Group(q Issuer, cs []coll.Call, _ unsafe.Pointer) error {
	sends, recvs := 0, 0
	for i := range cs {
		switch c := &cs[i]; c.Kind {
		case coll.Send:
			sends++
		case coll.Recv:
			recvs++
		default:
			if err := t.Do(q, *c); err != nil {
				return err
			}
		}
	}
	if sends != recvs {
		return fmt.Errorf("%s: a Group of one rank with %d Send and %d Recv", ccall.At(), sends, recvs)
	}
	j := 0
	for i := range cs {
		out := &cs[i]
		if out.Kind != coll.Send {
			continue
		}
		for cs[j].Kind != coll.Recv {
			j++
		}
		in := &cs[j]
		j++
		if out.N != in.N || out.Type != in.Type {
			return fmt.Errorf("%s: message to oneself: Send has %d %v elements, Recv %d %v", ccall.At(), out.N,
				out.Type, in.N, in.Type)
		}
		if err := copyOwn(q, out, in.Dst, out.Src, out.N); err != nil {
			return err
		}
	}
	return nil
}
