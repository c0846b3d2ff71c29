package spmd

import (
	"errors"
	"unsafe"

	"lockstep/spmd/internal/transport"
	peert "lockstep/spmd/internal/transport/peer"
)

// Messages between two ranks go by a kernel between peers where they are short, be they Send, Recv, or parts of a
// collective that is made of them, alone or in a group: it depends on nothing but their length, which both ends know.

// exchange enqueues what divide has listed: the short messages by peers. work is device memory for the list of the short messages.
func (q *gpuQueue) exchange(peers *peert.Transport, to *route, work unsafe.Pointer) error {
	g := q.g
	switch {
	case len(g.short) == 0:
		return to.by.Group(q, g.together, nil)
	case len(g.together) == 0:
		return peers.Group(q, g.short, work)
	}
	// What the one waits for may come only after another rank has got the other: they run at the same time. The others are
	// issued first, since NCCL connects ranks at their first message, and for that may wait for all that runs on the device.
	m, err := g.mark()
	if err != nil {
		return err
	}
	defer g.recycle(m)
	if err := errors.Join(m.event.Record(q.h), g.beside.Wait(m.event)); err != nil {
		return err
	}
	err = to.by.Group(q, g.together, nil)
	if err == nil {
		err = peers.Group(transport.Bare{S: g.beside}, g.short, work)
	}
	return errors.Join(err, m.event.Record(g.beside), q.h.Wait(m.event)) // a capture has to be joined in any case
}

// openBeside makes the stream for what kernels between peers carry of a group.
func (g *gpu) openBeside() (err error) {
	if g.beside == nil {
		_, greatest := g.dev.Priorities()
		g.beside, err = g.dev.NewStream(greatest)
	}
	return err
}
