package spmd

import (
	"fmt"

	"github.com/rs/zerolog"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/devmpi"
	ncclt "lockstep/spmd/internal/transport/nccl"
	peert "lockstep/spmd/internal/transport/peer"
	"lockstep/spmd/internal/transport/self"
	"lockstep/spmd/internal/verify"
)

// router has the transports of a communicator, and decides which of them carries a call.
type router struct {
	rank, size int
	host       transport.Host
	hostKinds  coll.Set            // that host has itself
	device     transport.Transport // carries what no other does on device memory; nil on the host
	nccl       *ncclt.Transport    // nil on the host, and for one rank
	ownsNCCL   bool                // it is not the world's
	dev        *devmpi.Transport   // MPI on device memory; else nil
	peers      *peert.Transport    // of ranks whose GPUs reach each other, if it is opened; else nil
	atOnce     int                 // the most bytes of a message of a collective, of any memory, that peers carry
	sym        *symComm            // carries some collectives on symmetric memory; nil where there is none
	noSym      bool                // and there will be none
	known      []known             // memory that nccl, if it is its own, and sym have registered
	second     *devmpi.Transport   // MPI on device memory beside NCCL, where both are compared
}

// route says what carries a call. It is decided when the call is issued, be it for now or for a graph: transports add up
// in another order, and a graph is to have the bits of what was captured. Every rank finds the same: symmetric memory is
// the same on all of them, and both ends of a message know its length.
type route struct {
	by    transport.Transport
	host  bool  // by carries host memory
	whole bool  // by makes the call as it is
	short bool  // peers carry the short messages of the call, at the same time
	mixed bool  // of a group: other transports carry some of it
	fills bool  // it needs the kernel that fills memory with values of 8 bytes
	list  int32 // units of device memory that peers need for that
	work  int32 // and those for copies of operands
}

// order is the transport whose own order the call has among calls of it; nil where that is none's.
func (r *route) order() transport.Transport {
	if r.short || r.mixed || !r.by.Caps().Ordered {
		return nil
	}
	return r.by
}

// units is a number of bytes in units of exec.Alignment.
func units(bytes int) int32 { return int32((bytes + exec.Alignment - 1) / exec.Alignment) }

// inBytes is the bytes of some units.
func inBytes(units int32) int { return int(units) * exec.Alignment }

// onHost returns the router of a communicator on the host; useDevice makes it one on a GPU.
func onHost(h transport.Host) router {
	return router{host: h, hostKinds: h.Caps().Kinds, rank: h.Rank(), size: h.Size()}
}

// useDevice has the router carry calls on device memory, at first of one rank alone.
func (r *router) useDevice() { r.device = self.Transport{} }

// route decides what carries a call that is not in a group. stream says that it is enqueued: the barrier of the hosts
// themselves is MPI's.
func (r *router) route(c *call, stream bool) {
	if r.device != nil || !r.hostKinds.Has(c.Kind) {
		r.decide(c, stream)
		return
	}
	c.route.by, c.route.host, c.route.whole = r.host, true, true
}

// decide is route for a GPU, and for what MPI does not have.
func (r *router) decide(c *call, stream bool) {
	if r.device == nil || c.Kind == coll.Barrier && !stream {
		c.route.by, c.route.host, c.route.whole = r.host, true, r.hostKinds.Has(c.Kind)
		if !c.route.whole {
			r.routeOnHost(c)
		}
		return
	}
	c.route = route{by: r.device}
	if c.Kind == coll.Group {
		r.routeGroup(&c.route, c.group)
	} else if by := r.chosen(c); by != nil {
		c.route.by, c.route.whole = by, true
	} else {
		c.route.by = r.better(c)
		r.split(&c.route, r.take(&c.route, c))
		c.route.whole = c.route.work == 0 && !c.route.short && c.route.by.Caps().Kinds.Has(c.Kind)
	}
}

// routeOnHost notes the memory that a call, or a group, needs which MPI has only parts of.
func (r *router) routeOnHost(c *call) {
	c.route.work = units(c.Scratch(r.rank, r.size, &r.host.Caps().Library))
	if c.Kind == coll.Group {
		for i := range c.group.cmds {
			c.route.work += c.group.cmds[i].route.work
		}
	}
}

// better is what carries the steps of a call that the device's transport does not have: another, where all is one
// collective that this carries better.
func (r *router) better(c *call) transport.Transport {
	lib := &r.device.Caps().Library
	if lib.Kinds.Has(c.Kind) {
		return r.device
	}
	only, n := call{}, 0
	c.Steps(r.rank, r.size, lib, nil, func(s coll.Call) bool {
		if !s.Kind.Traits().Local {
			only.Call, n = s, n+1
		}
		return n < 2
	})
	if n == 1 {
		if by := r.chosen(&only); by != nil {
			return by
		}
	}
	return r.device
}

// routeMember decides what carries a call of a group.
func (r *router) routeMember(c *call) {
	if r.device != nil && (r.device.Caps().Merges || c.Kind.Traits().Message) {
		c.route = route{by: r.device}
		return
	}
	r.route(c, true)
}

// routeGroup decides for a group, of whose calls that is known already.
func (r *router) routeGroup(to *route, g *group) {
	short := 0
	for i := range g.cmds {
		c := &g.cmds[i]
		if r.device.Caps().Merges || c.Kind.Traits().Message {
			short += r.take(to, c)
		} else {
			to.mixed = to.mixed || c.route.by != to.by
			to.fills = to.fills || c.route.fills
			to.work += c.route.work
		}
	}
	r.split(to, short)
}

// take notes the memory for copies of a call that goes to the device's transport. It returns how many short messages
// there are in it that peers would carry.
func (r *router) take(to *route, c *call) (short int) {
	lib := &to.by.Caps().Library
	to.work += units(c.Scratch(r.rank, r.size, lib))
	if lib.Kinds.Has(c.Kind) && (r.atOnce == 0 || !c.Kind.Traits().Message) {
		return 0
	}
	c.Steps(r.rank, r.size, lib, nil, func(m coll.Call) bool {
		switch {
		case m.Kind == coll.Fill && m.Type.Size() == 8:
			to.fills = true
		case r.atOnce > 0 && m.Kind.Traits().Message && r.peers.Short(&m):
			short++
		}
		return true
	})
	return short
}

// split has peers carry the short messages of a call, where there are some.
func (r *router) split(to *route, short int) {
	if short > 0 {
		to.short, to.list = true, units(r.peers.Scratch(short))
	}
}

// chosen is the transport that is better for a collective than the device's; nil where that is none.
func (r *router) chosen(c *call) transport.Transport {
	if r.sym != nil {
		if by, ok := r.bySymmetric(c); ok {
			return by
		}
	}
	switch {
	case r.atOnce == 0:
		return nil
	case r.dev != nil && r.peers.Caps().Kinds.Has(c.Kind), peert.AtOnce(&c.Call, r.atOnce):
		return r.peers
	}
	return nil
}

// bySymmetric is what carries a call on symmetric memory, as was measured; not ok for what has no such choice.
func (r *router) bySymmetric(c *call) (by transport.Transport, ok bool) {
	way := plainWay
	switch c.memory() &^ verify.InPlace {
	case verify.FromSymmetric | verify.IntoSymmetric:
		way, ok = r.sym.paths.of(c, !c.hasSymmetricKernels())
	case verify.FromSymmetric | verify.IntoPinned:
		way, ok = r.sym.paths.of(c, true)
	}
	if way == peerWay && !peert.AtOnce(&c.Call, r.peers.Most()) { // a bit more than the size that was measured
		way = plainWay
	}
	return r.of(way), ok
}

// of is the transport of a way.
func (r *router) of(by way) transport.Transport {
	switch by {
	case symmetricWay:
		return r.sym.nccl
	case peerWay:
		return r.peers
	}
	return r.device
}

// onGPU has the communicator work on the GPU that its world has.
func (st *commState) onGPU() {
	st.recorder.OnDevice()
	st.useDevice()
}

// shareDevice has a communicator of the same ranks as o use what carries device memory there.
func (r *router) shareDevice(o *router) {
	r.nccl, r.device, r.peers, r.atOnce = o.nccl, o.device, o.peers, o.atOnce
}

// name is that of the transport which carries most calls.
func (r *router) name() string {
	if r.device == nil {
		return r.host.Name()
	}
	return r.device.Name()
}

// describe adds to the start line what carries short calls.
func (r *router) describe(line *zerolog.Event) {
	if r.atOnce > 0 {
		line.Str("small_collectives", fmt.Sprintf("kernels between peers, messages of up to %d bytes", r.atOnce)).
			Str("small_messages", fmt.Sprintf("kernels between peers, up to %d bytes", r.peers.Comm.MessageMost()))
	}
}

// handed reports whether the host makes calls on device memory, which then may hold for a while what is not the result.
func (r *router) handed() bool { return r.device != nil && r.device.Caps().Hands }

// noGraph is why a graph cannot hold calls of the communicator; nil where it can.
func (r *router) noGraph() error {
	if r.device == nil {
		return nil
	}
	return r.device.Caps().NoGraph
}
