package transport

import (
	"errors"
	"runtime"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// make calls Make with a call that stays on its caller's stack: Make keeps nothing of it.
func (r *Member) make(call *coll.Call) error {
	err := r.Make(call.Hidden())
	runtime.KeepAlive(call)
	return err
}

var _ Transport = (*Member)(nil)

func (r *Member) Do(_ Issuer, call coll.Call) error { return r.make(&call) }

// Scratch implements Transport: the host needs none.
func (*Member) Scratch(int) int { return 0 }

func (r *Member) AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return r.make(&coll.Call{Kind: coll.AllReduce, Dst: dst, Src: src, N: n, Type: t, Op: op})
}

func (r *Member) Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return r.make(&coll.Call{Kind: coll.Broadcast, Dst: buf, N: n, Type: t, Root: int32(root)})
}

var _ Host = (*Member)(nil)

func (r *Member) BroadcastID(id *[128]byte, root int) error {
	return r.Broadcast(unsafe.Pointer(id), len(id), elem.Uint8, root)
}

func (r *Member) AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error {
	return r.make(&coll.Call{Kind: coll.AllGather, Dst: dst, Src: src, N: n, Type: t})
}

func (r *Member) AllGatherV(dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	return r.make(&coll.Call{Kind: coll.AllGatherV, Dst: dst, Src: src, Counts: counts, Type: t})
}

func (r *Member) Send(src unsafe.Pointer, n int, t elem.Type, to int) error {
	return r.make(&coll.Call{Kind: coll.Send, Src: src, N: n, Type: t, Root: int32(to)})
}

func (r *Member) Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return r.make(&coll.Call{Kind: coll.Recv, Dst: dst, N: n, Type: t, Root: int32(from)})
}

// Slow implements Host: goroutines have one way.
func (*Member) Slow() error { return nil }

// Close implements Host. It waits for nobody.
func (*Member) Close() error { return nil }

// failed returns the error of a call on this rank.
func (r *Member) failed(c *coll.Call, err error) error {
	return c.Failed(r.rank, err)
}

// checkPeer refuses a message with no rank.
func (r *Member) checkPeer(m *coll.Call) error {
	if uint(m.Root) >= uint(r.size) {
		return r.failed(m, errors.New("there is no such rank"))
	}
	return nil
}
