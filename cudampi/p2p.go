package cudampi

import (
	"runtime"
	"unsafe"

	"lockstep/internal/elem"
)

// Send sends n elements to rank to; Recv, SendRecv or a P2P takes them there. Messages between two
// ranks arrive in the order in which they were sent.
//
// It blocks until src may change, for a large message until the receiver is there. A Send to
// oneself may never return: use P2P or SendRecv for that. Source: mpi.h, MPI_Send.
func (c *Comm) Send(src unsafe.Pointer, n int, t elem.Type, to int) error {
	const name = "MPI_Send"
	if err := c.Ready(name, n, t, src, src); err != nil {
		return err
	}
	if err := c.CheckRank(name, to); err != nil {
		return err
	}
	return c.send(src, n, t, to, tagUser)
}

func (c *Comm) send(src unsafe.Pointer, n int, t elem.Type, to, tag int) error {
	return c.Check("MPI_Send", sysSend(c, src, n, t, to, tag))
}

// Recv receives n elements from rank from. A message of any other length is an error that names
// both numbers: ErrTruncate if it is longer, ErrCount if it is shorter. The message is gone then,
// and the contents of dst are undefined.
//
// It blocks until the message is there. Source: mpi.h, MPI_Recv.
func (c *Comm) Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error {
	const name = "MPI_Recv"
	if err := c.Ready(name, n, t, dst, dst); err != nil {
		return err
	}
	if err := c.CheckRank(name, from); err != nil {
		return err
	}
	return c.recv(dst, n, t, from, tagUser)
}

func (c *Comm) recv(dst unsafe.Pointer, n int, t elem.Type, from, tag int) error {
	code, got := sysRecv(c, dst, n, t, from, tag)
	if code == success && got == Content(n*t.Size(), t) {
		return nil
	}
	return c.CheckMessage("MPI_Recv", code, got, n, t, from)
}

// SendRecv sends sendN elements at src to rank to while it receives recvN elements at dst from rank
// from; either may be this rank. The lengths are checked as in Recv. dst and src may not overlap.
//
// It blocks until both are done. Source: mpi.h, MPI_Sendrecv.
func (c *Comm) SendRecv(dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type) error {
	if err := c.CheckSendRecv(dst, recvN, from, src, sendN, to, t); err != nil {
		return err
	}
	code, got := sysSendRecv(c, dst, recvN, from, src, sendN, to, t)
	return c.CheckMessage(opSendRecv, code, got, recvN, t, from)
}

// Carriers has the carriers of a SendRecvBy, each as by of P2P.SendBy.
type Carriers struct{ In, Out unsafe.Pointer }

// SendRecvBy is SendRecv after CheckSendRecv, by way of carriers.
func (c *Comm) SendRecvBy(
	dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type, by Carriers,
) error {
	code, got := by.sysSendRecv(c, dst, recvN, from, src, sendN, to, t)
	return c.CheckMessage(opSendRecv, code, got, recvN, t, from)
}

// P2P is a group of sends and receives that Wait starts together and completes, so that no order
// among them can deadlock: as between ncclGroupStart and ncclGroupEnd. Messages between two ranks
// match in the order of the calls. The zero value is an empty group. It is reusable, and allocates
// only to grow. One goroutine at a time calls its methods.
type P2P struct {
	Stream Stream // of its messages; set while it is empty
	group  group
	comms  []*Comm
	pins   runtime.Pinner
}

// Send adds the sending of n elements to rank to. Nothing is sent before Wait; src must not change
// until Wait returns. A refused message (a bad count, type or rank) is not added.
func (p *P2P) Send(c *Comm, src unsafe.Pointer, n int, t elem.Type, to int) error {
	return p.SendBy(c, src, n, t, to, nil)
}

// SendBy is Send by way of a carrier. by is a struct carrier (calls.h) in memory of C, to which the
// message goes first; it is nil if MPI carries it.
func (p *P2P) SendBy(c *Comm, src unsafe.Pointer, n int, t elem.Type, to int, by unsafe.Pointer) error {
	const name = "MPI_Isend"
	if err := c.Ready(name, n, t, src, src); err != nil {
		return err
	}
	if err := c.CheckRank(name, to); err != nil {
		return err
	}
	p.add(c, src, n, t, to, int(p.Stream), outgoing, by)
	return nil
}

// Recv adds the receiving of n elements from rank from; dst is valid when Wait has returned. A
// refused message is not added.
func (p *P2P) Recv(c *Comm, dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return p.RecvBy(c, dst, n, t, from, nil)
}

// RecvBy is Recv by way of a carrier, as SendBy.
func (p *P2P) RecvBy(c *Comm, dst unsafe.Pointer, n int, t elem.Type, from int, by unsafe.Pointer) error {
	const name = "MPI_Irecv"
	if err := c.Ready(name, n, t, dst, dst); err != nil {
		return err
	}
	if err := c.CheckRank(name, from); err != nil {
		return err
	}
	p.add(c, dst, n, t, from, int(p.Stream), incoming, by)
	return nil
}

// The recv of a message.
const outgoing, incoming = false, true

func (p *P2P) add(c *Comm, buf unsafe.Pointer, n int, t elem.Type, peer, tag int, recv bool, by unsafe.Pointer) {
	if n == 0 {
		buf = nil // it may be the address just past an allocation
	} else {
		p.pins.Pin(buf) // which does nothing to memory that is not Go's
	}
	p.group.add(c, buf, n, t, peer, tag, recv, by)
	p.comms = append(p.comms, c)
}

// Wait starts all messages of the group, blocks until they are done, and empties the group.
//
// The error is the first failed message's; a received message of the wrong length fails as in Recv.
// After an error inside MPI other messages may be incomplete and their memory still in MPI's hands:
// end the job. Source: mpi.h, MPI_Irecv, MPI_Isend, MPI_Wait.
func (p *P2P) Wait() error {
	if len(p.comms) == 0 {
		return nil
	}
	index, code, got := p.group.run()
	var err error
	if index >= 0 {
		err = p.failure(index, code, got)
	}
	p.group.msgs = p.group.msgs[:0]
	clear(p.comms)
	p.comms = p.comms[:0]
	p.pins.Unpin()
	return err
}

func (p *P2P) failure(i, code, got int) error {
	n, t, peer, recv := p.group.message(i)
	if recv {
		return p.comms[i].CheckMessage("MPI_Irecv", code, got, n, t, peer)
	}
	return p.comms[i].Check("MPI_Isend", code)
}
