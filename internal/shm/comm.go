// Package shm carries collectives and messages through memory that ranks of a node share. Its Comm is one of package cudampi
// in which small calls take that way.
package shm

import (
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/elem"
)

// Comm is a cudampi.Comm whose small calls go through shared memory, where the ranks share some.
type Comm struct{ *cudampi.Comm }

// Share returns c with shared memory, see cudampi.Comm.ShareMemory. After an error the Comm works without.
//
// Collective; it blocks.
func Share(c *cudampi.Comm) (*Comm, error) { return &Comm{c}, c.ShareMemory() }

// P2P is a group of messages on Comms, see cudampi.P2P.
type P2P struct{ group cudampi.P2P }

// Send adds the sending of n elements to rank to.
func (p *P2P) Send(c *Comm, src unsafe.Pointer, n int, t elem.Type, to int) error {
	return p.group.Send(c.Comm, src, n, t, to)
}

// Recv adds the receiving of n elements from rank from.
func (p *P2P) Recv(c *Comm, dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return p.group.Recv(c.Comm, dst, n, t, from)
}

// Wait starts all messages of the group, blocks until they are done, and empties the group.
func (p *P2P) Wait() error { return p.group.Wait() }
