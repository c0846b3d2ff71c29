package route

import (
	"errors"
	"fmt"
	"strings"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/carriers"
)

// OpenWorld has the communicators of all ranks and of the node carry calls on device memory by the
// backend of their Env. agreed says that all ranks have learned of the error. Else they may be
// waiting in the backend for a rank that failed.
//
// Collective over all ranks, in the caller's turn.
func OpenWorld(world, node *Router) (agreed bool, err error) {
	env := world.env
	if !env.Backend.Joins() {
		return agree(world.host, world.open(env.Backend), func() error { return node.open(env.Backend) })
	}
	if err := world.open(env.Backend); err != nil {
		return false, fmt.Errorf("%w; --collectives %s does without %s",
			err, carriers.StagedBackend.Name(), strings.ToUpper(env.Backend.Name()))
	}
	defer env.Begin(env.Backend.Name())()
	if env.Nodes == 1 {
		node.shareDevice(world)
		return false, nil
	}
	return false, node.Split(world, env.Node, node.rank)
}

// agree returns an error on every rank if one has failed; next comes if none has.
func agree(h control.Exchange, mine error, next func() error) (agreed bool, err error) {
	for {
		f, err := control.First(h, mine)
		if err != nil {
			return false, err
		}
		if f != nil {
			return true, f.Or(mine)
		}
		if next == nil {
			return false, nil
		}
		mine, next = next(), nil
	}
}

// open has the communicator carry calls on device memory between its ranks by a backend.
// Collective, in the caller's turn.
func (r *Router) open(b transport.Backend) error {
	if !r.needsBackend() {
		return nil
	}
	t, err := r.openBy(b)
	if err != nil {
		return err
	}
	r.use(t)
	if p := t.Peers(); p != nil {
		r.lent = true
		return r.usePeers(p)
	}
	if t.Linked() && r.env.Symmetric == "auto" {
		defer r.env.Begin("peers")()
		return r.openPeers()
	}
	return nil
}

// needsBackend reports whether there is a device, and another rank.
func (r *Router) needsBackend() bool { return r.device != nil && r.size > 1 }

// openBy opens a transport of a backend.
func (r *Router) openBy(b transport.Backend) (transport.Opened, error) {
	if err := r.env.Quiesce(); err != nil { // it allocates
		return nil, err
	}
	g := r.env.GPU
	return b.Open(transport.Site{Host: r.host, Dev: g.Dev, Word: g.Word(), Nodes: r.env.Nodes, Log: r.env.Log,
		Begin: r.env.Begin})
}

// use has a transport carry all calls that no other one carries.
func (r *Router) use(t transport.Opened) {
	r.opened, r.device, r.owns = t, t, true
	if g, ok := t.(transport.Registrar); ok && g.Registers() {
		r.registrar = g
	}
	if t, ok := t.(transport.Splitter); ok {
		r.env.GPU.Watch(t, t.Failure)
	}
}

// Split has the communicator, which is the part of parent's that color and key make, carry calls on
// device memory. That of a rank which is in no part is a zero Router. One rank needs no transport.
//
// Collective over parent, in the caller's turn.
func (r *Router) Split(parent *Router, color, key int) error {
	env := parent.env
	whole, splits := parent.opened.(transport.Splitter)
	switch {
	case parent.opened == nil:
		return nil
	case !splits:
		return r.open(env.Backend)
	}
	if err := env.Quiesce(); err != nil { // the backend allocates
		return err
	}
	if r.size == 1 {
		color = -1 // it has nobody to talk to
	}
	t, err := whole.Split(color, key)
	if t == nil || err != nil {
		return err
	}
	r.use(t)
	if env.First.peers != nil {
		return r.openPeers()
	}
	return nil
}

// Why returns why the communicator's transport carries calls as it does, as transport.Opened has
// it.
func (r *Router) Why() (why string, doubtful bool, err error) {
	if r.opened == nil {
		return "", false, nil
	}
	return r.opened.Why()
}

// Close gives back all that carries calls on device memory. No graph may hold any of it any more.
// Collective, in the caller's turn.
func (r *Router) Close() error {
	switch t := r.opened; {
	case t == nil:
		return nil
	case r.owns:
		return r.closeOpened(t)
	}
	r.opened, r.registrar, r.windows, r.peers = nil, nil, nil, nil
	r.UseDevice()
	return nil
}

// closeOpened closes the communicator's own transport, and what came with it.
func (r *Router) closeOpened(t transport.Opened) error {
	err := r.closeWindows()
	if r.lent {
		r.leavePeers() // t closes them
	} else {
		err = errors.Join(err, r.closePeers())
	}
	for i := range r.known {
		err = errors.Join(err, r.known[i].plain.Close())
	}
	r.opened, r.registrar, r.known, r.lent = nil, nil, nil, false
	r.UseDevice()
	r.env.GPU.Forget(t)
	r.env.GPU.Unwatch(t)
	return errors.Join(err, t.Close())
}
