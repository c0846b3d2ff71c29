package shm

import (
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/elem"
)

// in and out are the rings from and to a rank; nil if MPI alone carries messages.
func (c *NodeComm) in(from int) *ringEnd {
	if c.s == nil || from == int(c.s.rank) || uint(from) >= uint(c.s.size) {
		return nil
	}
	return &c.s.in[from]
}

func (c *NodeComm) out(to int) *ringEnd {
	if c.s == nil || to == int(c.s.rank) || uint(to) >= uint(c.s.size) {
		return nil
	}
	return &c.s.out[to]
}

// Send is cudampi.Comm.Send. It may also block in a small message that follows many which
// the receiver has not taken.
func (c *NodeComm) Send(src unsafe.Pointer, n int, t elem.Type, to int) error {
	x := c.out(to)
	if x == nil {
		return c.Comm.Send(src, n, t, to)
	}
	const name = "MPI_Send"
	if err := c.Ready(name, n, t, src, src); err != nil {
		return err
	}
	if put(x, src, n*t.Size(), t) {
		return nil
	}
	return c.Check(name, sysRingSend(x, src, n, t, to))
}

// Recv is cudampi.Comm.Recv.
func (c *NodeComm) Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error {
	x := c.in(from)
	if x == nil {
		return c.Comm.Recv(dst, n, t, from)
	}
	const name = "MPI_Recv"
	if err := c.Ready(name, n, t, dst, dst); err != nil {
		return err
	}
	return c.receive(name, x, dst, n, t, from)
}

func (c *NodeComm) receive(op string, x *ringEnd, dst unsafe.Pointer, n int, t elem.Type, from int) error {
	if take(x, dst, n*t.Size(), t) {
		return nil
	}
	code, got := sysRingRecv(x, dst, n, t, from)
	return c.CheckMessage(op, code, got, n, t, from)
}

// SendRecv is cudampi.Comm.SendRecv.
func (c *NodeComm) SendRecv(dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type) error {
	in, out := c.in(from), c.out(to)
	if in == nil && out == nil {
		return c.Comm.SendRecv(dst, recvN, from, src, sendN, to, t)
	}
	const name = "MPI_Sendrecv"
	if err := c.CheckSendRecv(dst, recvN, from, src, sendN, to, t); err != nil {
		return err
	}
	if in != nil && out != nil && put(out, src, sendN*t.Size(), t) {
		return c.receive(name, in, dst, recvN, t, from)
	}
	by := cudampi.Carriers{In: unsafe.Pointer(in), Out: unsafe.Pointer(out)}
	return c.SendRecvBy(dst, recvN, from, src, sendN, to, t, by)
}

// P2P is cudampi.P2P for messages of a Comm and of others.
type P2P struct{ group cudampi.P2P }

// Send is cudampi.P2P.Send.
func (p *P2P) Send(c *NodeComm, src unsafe.Pointer, n int, t elem.Type, to int) error {
	return p.group.SendBy(c.Comm, src, n, t, to, unsafe.Pointer(c.out(to)))
}

// Recv is cudampi.P2P.Recv.
func (p *P2P) Recv(c *NodeComm, dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return p.group.RecvBy(c.Comm, dst, n, t, from, unsafe.Pointer(c.in(from)))
}

// Wait is cudampi.P2P.Wait.
func (p *P2P) Wait() error { return p.group.Wait() }
