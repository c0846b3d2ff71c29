package inproc

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/mix"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// make has Make make a call, which stays on its caller's stack: Make keeps nothing of it.
func (r *Comm) make(call *coll.Call) error {
	err := r.Make(call.Hidden())
	runtime.KeepAlive(call)
	return err
}

// Do implements transport.Transport.
func (r *Comm) Do(_ transport.Queue, call coll.Call) error { return r.make(&call) }

// Scratch implements transport.Transport: the host needs none.
func (*Comm) Scratch(int) int { return 0 }

// AllReduce implements control.Comm.
func (r *Comm) AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return r.make(&coll.Call{Kind: coll.AllReduce, Dst: dst, Src: src, N: n, Type: t, Op: op})
}

// Broadcast implements control.Comm.
func (r *Comm) Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return r.make(&coll.Call{Kind: coll.Broadcast, Dst: buf, N: n, Type: t, Root: int32(root)})
}

// BroadcastID implements transport.Host.
func (r *Comm) BroadcastID(id *[128]byte, root int) error {
	return r.Broadcast(unsafe.Pointer(id), len(id), elem.Uint8, root)
}

// AllGather implements control.Comm.
func (r *Comm) AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error {
	return r.make(&coll.Call{Kind: coll.AllGather, Dst: dst, Src: src, N: n, Type: t})
}

// AllGatherV implements control.Comm.
func (r *Comm) AllGatherV(dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	return r.make(&coll.Call{Kind: coll.AllGatherV, Dst: dst, Src: src, Counts: counts, Type: t})
}

// Send implements transport.Host.
func (r *Comm) Send(src unsafe.Pointer, n int, t elem.Type, to int) error {
	return r.make(&coll.Call{Kind: coll.Send, Src: src, N: n, Type: t, Root: int32(to)})
}

// Recv implements transport.Host.
func (r *Comm) Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return r.make(&coll.Call{Kind: coll.Recv, Dst: dst, N: n, Type: t, Root: int32(from)})
}

// Slow implements transport.Host: goroutines have one way.
func (*Comm) Slow() error { return nil }

// Close implements transport.Host. It waits for nobody.
func (*Comm) Close() error { return nil }

// WaitStream implements transport.Host.
func (*Comm) WaitStream(s *cuda.Stream) error {
	for {
		if done, err := s.Query(); done || err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// failed is the error of a call on this rank.
func (r *Comm) failed(c *coll.Call, err error) error {
	return &ccall.Error{Op: c.String(), Rank: r.rank, At: ccall.At(), Err: err}
}

// checkPeer refuses a message with no rank.
func (r *Comm) checkPeer(m *coll.Call) error {
	if uint(m.Root) >= uint(r.size) {
		return r.failed(m, errors.New("there is no such rank"))
	}
	return nil
}

// what is what ranks that meet have to have called alike: kind, type, operation and root.
func what(c *coll.Call) uint64 {
	return uint64(c.Kind) | uint64(c.Type)<<8 | uint64(c.Op)<<16 | uint64(uint32(c.Root))<<32
}

// alike is a number that ranks that meet have to bring alike: the elements of a part, or one that stands for all counts.
func alike(c *coll.Call) int {
	if len(c.Counts) == 0 {
		return c.N
	}
	h := uint64(0)
	for _, k := range c.Counts {
		h = mix.Bits(h + uint64(k) + 1) // counts that differ give another number, but for accidents
	}
	return int(h)
}

// errDiffers is ccall.ErrMismatch, with what a rank has brought: what it called, and the number.
func errDiffers(rank int, what uint64, n int) error {
	its := coll.Call{Kind: coll.Kind(what), Type: elem.Type(what >> 8), Op: elem.Op(what >> 16), Root: int32(what >> 32), N: n}
	other := ""
	if its.Kind.Traits().Lengths == coll.Shared {
		other = ", or other counts, which --check names"
	}
	return fmt.Errorf("%w: rank %d brought %v%s", ccall.ErrMismatch, rank, &its, other)
}
