package spmd

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
)

// Messages between two ranks go by a kernel between peers where they are short, be they Send, Recv, or parts of a
// collective that is made of them, alone or in a group: it depends on nothing but their length, which both ends know.

// exchange enqueues what divide has listed: the short messages by peers. work is device memory for the list of the short messages.
func (q *handing) exchange(to *route.Route, work unsafe.Pointer) error {
	w := q.comm.w
	p, peers := &w.parts, q.comm.routes.Peers()
	switch {
	case len(p.short) == 0:
		return to.By.Group(q, p.together, nil)
	case len(p.together) == 0:
		return peers.Group(q, p.short, work)
	}
	// What the one waits for may come only after another rank has got the other: they run at the same time. The others are
	// issued first, since NCCL connects ranks at their first message, and for that may wait for all that runs on the device.
	return w.gpu.GPU.OnBoth(q.Stream(), func() error { return to.By.Group(q, p.together, nil) },
		func(beside *cuda.Stream) error { return peers.Group(transport.Bare{S: beside}, p.short, work) })
}
