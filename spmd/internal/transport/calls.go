package transport

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
)

// Calls has what of a Host follows from its Make, for a communicator of goroutines to embed. The framework itself calls these.
// Calls of programs go to Make.
type Calls struct {
	Of interface{ Make(c *coll.Call) error }
}

// make has Make make a call, which stays on its caller's stack: Make keeps nothing of it.
func (c Calls) make(call *coll.Call) error {
	err := c.Of.Make(call.Hidden())
	runtime.KeepAlive(call)
	return err
}

// Do implements Transport.
func (c Calls) Do(_ Queue, call coll.Call) error { return c.make(&call) }

// Scratch implements Transport: the host needs none.
func (Calls) Scratch(int) int { return 0 }

// AllReduce implements control.Comm.
func (c Calls) AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.make(&coll.Call{Kind: coll.AllReduce, Dst: dst, Src: src, N: n, Type: t, Op: op})
}

// Broadcast implements control.Comm.
func (c Calls) Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.make(&coll.Call{Kind: coll.Broadcast, Dst: buf, N: n, Type: t, Root: int32(root)})
}

// BroadcastID implements Host.
func (c Calls) BroadcastID(id *[128]byte, root int) error {
	return c.Broadcast(unsafe.Pointer(id), len(id), elem.Uint8, root)
}

// AllGather implements control.Comm.
func (c Calls) AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error {
	return c.make(&coll.Call{Kind: coll.AllGather, Dst: dst, Src: src, N: n, Type: t})
}

// AllGatherV implements control.Comm.
func (c Calls) AllGatherV(dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	return c.make(&coll.Call{Kind: coll.AllGatherV, Dst: dst, Src: src, Counts: counts, Type: t})
}

// Send implements Host.
func (c Calls) Send(src unsafe.Pointer, n int, t elem.Type, to int) error {
	return c.make(&coll.Call{Kind: coll.Send, Src: src, N: n, Type: t, Root: int32(to)})
}

// Recv implements Host.
func (c Calls) Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return c.make(&coll.Call{Kind: coll.Recv, Dst: dst, N: n, Type: t, Root: int32(from)})
}

// Slow implements Host: goroutines have one way.
func (Calls) Slow() error { return nil }

// Close implements Host. It waits for nobody.
func (Calls) Close() error { return nil }

// WaitStream implements Host.
func (Calls) WaitStream(s *cuda.Stream) error {
	for {
		if done, err := s.Query(); done || err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// Failed is the error of a call on a rank.
func Failed(c *coll.Call, rank int, err error) error {
	return &ccall.Error{Op: c.String(), Rank: rank, At: ccall.At(), Err: err}
}

// CheckPeer refuses a message with no rank.
func CheckPeer(m *coll.Call, rank, size int) error {
	if uint(m.Root) >= uint(size) {
		return Failed(m, rank, errors.New("there is no such rank"))
	}
	return nil
}

// What is what ranks that meet have to have called alike: kind, type, operation and root.
func What(c *coll.Call) uint64 {
	return uint64(c.Kind) | uint64(c.Type)<<8 | uint64(c.Op)<<16 | uint64(uint32(c.Root))<<32
}

// Alike is a number that ranks that meet have to bring alike: the elements of a part, or one that stands for all counts.
func Alike(c *coll.Call) int {
	if len(c.Counts) == 0 {
		return c.N
	}
	h := uint64(0)
	for _, k := range c.Counts {
		h = mix.Bits(h + uint64(k) + 1) // counts that differ give another number, but for accidents
	}
	return int(h)
}

// Differs is ccall.ErrMismatch, with what a rank has brought: What and the number of its call.
func Differs(rank int, what uint64, n int) error {
	its := coll.Call{Kind: coll.Kind(what), Type: elem.Type(what >> 8), Op: elem.Op(what >> 16), Root: int32(what >> 32), N: n}
	other := ""
	if its.Kind.Traits().Lengths == coll.Shared {
		other = ", or other counts, which --check names"
	}
	return fmt.Errorf("%w: rank %d brought %v%s", ccall.ErrMismatch, rank, &its, other)
}

// AppendMessages appends the messages of calls to a list.
func AppendMessages(list, calls []coll.Call) []coll.Call {
	for i := range calls {
		calls[i].Messages(func(m coll.Call) bool {
			list = append(list, m)
			return true
		})
	}
	return list
}
