package nccl

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// Each call of these tests is a group of its own.

func (c *Comm) one(s *cuda.Stream, x GroupCall) error { return c.Group(s, []GroupCall{x}) }

func (c *Comm) AllReduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.one(s, GroupCall{Kind: AllReduce, Type: t, Op: op, Dst: dst, Src: src, N: n})
}

func (c *Comm) Reduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	return c.one(s, GroupCall{Kind: Reduce, Type: t, Op: op, Peer: peer(root), Dst: dst, Src: src, N: n})
}

func (c *Comm) Broadcast(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.one(s, GroupCall{Kind: Broadcast, Type: t, Peer: peer(root), Dst: dst, Src: src, N: n})
}

func (c *Comm) AllGather(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return c.one(s, GroupCall{Kind: AllGather, Type: t, Dst: dst, Src: src, N: n})
}

func (c *Comm) ReduceScatter(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.one(s, GroupCall{Kind: ReduceScatter, Type: t, Op: op, Dst: dst, Src: src, N: n})
}

func (c *Comm) AllToAll(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return c.one(s, GroupCall{Kind: AllToAll, Type: t, Dst: dst, Src: src, N: n})
}

func (c *Comm) Gather(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.one(s, GroupCall{Kind: Gather, Type: t, Peer: peer(root), Dst: dst, Src: src, N: n})
}

func (c *Comm) Scatter(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.one(s, GroupCall{Kind: Scatter, Type: t, Peer: peer(root), Dst: dst, Src: src, N: n})
}

func (c *Comm) Send(s *cuda.Stream, src unsafe.Pointer, n int, t elem.Type, to int) error {
	return c.one(s, GroupCall{Kind: Send, Type: t, Peer: peer(to), Src: src, N: n})
}

func (c *Comm) Recv(s *cuda.Stream, dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return c.one(s, GroupCall{Kind: Recv, Type: t, Peer: peer(from), Dst: dst, N: n})
}

// peer keeps a rank that no int32 holds from looking like another.
func peer(r int) int32 {
	if int(int32(r)) != r {
		return -1
	}
	return int32(r)
}
