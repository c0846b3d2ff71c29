package route

import (
	"fmt"

	"github.com/rs/zerolog"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/cudaexec"
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/carriers"
)

// Router has the transports of a communicator, and decides which of them carries a call.
type Router struct {
	env        *Env
	rank, size int
	host       transport.Host
	hostKinds  coll.Set              // that host has itself
	device     transport.Transport   // carries what no other does on device memory; nil on the host
	opened     transport.Opened      // the device's transport; nil on the host, and for one rank
	owns       bool                  // opened is not the world's
	registrar  transport.Registrar   // opened, where that takes memory; else nil
	peers      *carriers.PeerKernels // of ranks whose GPUs reach each other, if it is opened; else nil
	lent       bool                  // peers are those of opened
	windows    transport.Registrar   // has symmetric kernels; nil if no call takes them
	spans      *spans                // what windows carry
	asked      bool                  // whether there are windows has been found
	known      []known               // memory that registrar, if it is its own, and windows have registered
}

// Route says what carries a call. It is decided when the call is issued, be it for now or for a
// graph: transports add up in another order, and a graph is to have the bits of what was
// captured. Every rank finds the same: symmetric memory is the same on all of them, and both ends
// of a message know its length.
type Route struct {
	By    transport.Transport
	Host  bool  // By carries host memory
	Whole bool  // By makes the call as it is
	Short bool  // peers carry the short messages of the call, at the same time
	Mixed bool  // of a group: other transports carry some of it
	Fills bool  // it needs the kernel that fills memory with values of 8 or 16 bytes
	List  int32 // units of device memory that peers need for that
	Work  int32 // and those for copies of operands
}

// Order returns the transport whose own order the call has among calls of it; nil if that is
// none's.
func (r *Route) Order() transport.Transport {
	if r.Short || r.Mixed || !r.By.Caps().Ordered {
		return nil
	}
	return r.By
}

// Units returns a number of bytes in units of exec.Alignment.
func Units(bytes int) int32 { return int32((bytes + exec.Alignment - 1) / exec.Alignment) }

// Bytes returns the bytes of some units.
func Bytes(units int32) int { return int(units) * exec.Alignment }

// Group is calls that start together.
type Group interface {
	Len() int
	// Member returns a call of the group and its route.
	Member(i int) (*coll.Call, *Route)
}

// Env has the values that the routers of a rank share.
type Env struct {
	GPU         *cudaexec.GPU
	Log         *zerolog.Logger
	Begin       func(part string) (done func()) // of the start, for the log
	Quiesce     func() error                    // returns when no collective is in flight
	Symmetric   string                          // --symmetric
	Backend     transport.Backend               // carries calls between ranks; nil if there is one
	Node, Nodes int
	First       *Router // the world's
}

// New returns the router of a communicator. It carries host memory; UseDevice adds the memory of a
// device.
func New(env *Env, h transport.Host) Router {
	return Router{env: env, host: h, hostKinds: h.Caps().Kinds, rank: h.Rank(), size: h.Size()}
}

// UseDevice has the router carry calls on device memory, at first of one rank alone.
func (r *Router) UseDevice() { r.device = transport.Self{} }

// Choose decides what carries a call that is not in a group; g is its calls if it is one. memory is
// what the call does with memory. enqueued says that the call is: the barrier of the hosts
// themselves is MPI's.
func (r *Router) Choose(to *Route, c *coll.Call, g Group, memory transport.Memory, enqueued bool) {
	if r.device == nil || c.Kind == coll.Barrier && !enqueued {
		to.By, to.Host, to.Whole = r.host, true, r.hostKinds.Has(c.Kind)
		if !to.Whole {
			r.routeOnHost(to, c, g)
		}
		return
	}
	*to = Route{By: r.device}
	if c.Kind == coll.Group {
		r.routeGroup(to, g)
	} else if by := r.chosen(c, memory); by != nil {
		to.By, to.Whole = by, true
	} else {
		to.By = r.better(c)
		r.split(to, r.take(to, c))
		to.Whole = to.Work == 0 && !to.Short && to.By.Caps().Kinds.Has(c.Kind)
	}
}

// OnDevice reports whether there is a device.
func (r *Router) OnDevice() bool { return r.device != nil }

// Peers are kernels between GPUs that reach each other, where a Route has Short.
func (r *Router) Peers() transport.Transport { return r.peers }

// Short reports whether Peers carry a message, where a Route has Short.
func (r *Router) Short(m *coll.Call) bool { return r.peers.Short(m) }

// routeOnHost notes the memory that a call, or a group, needs which MPI has only parts of.
func (r *Router) routeOnHost(to *Route, c *coll.Call, g Group) {
	to.Work = Units(c.Scratch(r.rank, r.size, &r.host.Caps().Library))
	if c.Kind == coll.Group {
		for i := range g.Len() {
			_, m := g.Member(i)
			to.Work += m.Work
		}
	}
}

// better returns the transport for the steps of a call that the device's transport does not have.
// Another transport takes them if they are a single collective which it carries better.
func (r *Router) better(c *coll.Call) transport.Transport {
	lib := &r.device.Caps().Library
	if lib.Kinds.Has(c.Kind) {
		return r.device
	}
	only, n := coll.Call{}, 0
	c.Steps(r.rank, r.size, lib, nil, func(s coll.Call) bool {
		if !s.Kind.Traits().Local {
			only, n = s, n+1
		}
		return n < 2
	})
	if n == 1 {
		if by := r.chosen(&only, 0); by != nil {
			return by
		}
	}
	return r.device
}

// ChooseMember decides what carries a call of a group.
func (r *Router) ChooseMember(to *Route, c *coll.Call, memory transport.Memory) {
	if r.device != nil && (r.device.Caps().Merges || c.Kind.Traits().Message) {
		*to = Route{By: r.device}
		return
	}
	const enqueued = true
	r.Choose(to, c, nil, memory, enqueued)
}

// routeGroup decides for a group, of whose calls that is known already.
func (r *Router) routeGroup(to *Route, g Group) {
	short := 0
	for i := range g.Len() {
		c, its := g.Member(i)
		if r.device.Caps().Merges || c.Kind.Traits().Message {
			short += r.take(to, c)
		} else {
			to.Mixed = to.Mixed || its.By != to.By
			to.Fills = to.Fills || its.Fills
			to.Work += its.Work
		}
	}
	r.split(to, short)
}

// take notes the memory for copies of a call that goes to the device's transport. It returns how
// many short messages there are in it that peers would carry.
func (r *Router) take(to *Route, c *coll.Call) (short int) {
	lib := &to.By.Caps().Library
	to.Work += Units(c.Scratch(r.rank, r.size, lib))
	if lib.Kinds.Has(c.Kind) && (r.peers == nil || !c.Kind.Traits().Message) {
		return 0
	}
	c.Steps(r.rank, r.size, lib, nil, func(m coll.Call) bool {
		switch {
		case m.Kind == coll.Fill && m.Type.Size() >= 8:
			to.Fills = true
		case r.peers != nil && m.Kind.Traits().Message && r.peers.Short(&m):
			short++
		}
		return true
	})
	return short
}

// split has peers carry the short messages of a call, if there are some.
func (r *Router) split(to *Route, short int) {
	if short > 0 {
		to.Short, to.List = true, Units(r.peers.Scratch(short))
	}
}

// chosen returns the transport that is better for a collective than the device's; nil if that is
// none.
func (r *Router) chosen(c *coll.Call, memory transport.Memory) transport.Transport {
	switch {
	case r.peers != nil && (r.lent && r.peers.Caps().Kinds.Has(c.Kind) || r.peers.AtOnce(c)):
		return r.peers
	case r.bySymmetric(c, memory):
		return r.windows
	}
	return nil
}

// shareDevice has a communicator of the same ranks as o use what carries device memory there.
func (r *Router) shareDevice(o *Router) {
	r.opened, r.registrar, r.device, r.peers = o.opened, o.registrar, o.device, o.peers
}

// Name returns the name of the transport which carries most calls.
func (r *Router) Name() string {
	if r.device == nil {
		return r.host.Name()
	}
	return r.device.Name()
}

// Describe adds to the start line the versions of the libraries that are loaded,
// and what carries short calls.
func (r *Router) Describe(line *zerolog.Event) {
	for _, b := range backends {
		if b, ok := b.(transport.Versioned); ok && r.OnDevice() && r.size > 1 && b.Version() != "" {
			line.Str(b.Name(), b.Version())
		}
	}
	if r.peers != nil {
		line.Str("small_collectives", fmt.Sprintf("kernels between peers, messages of up to %d bytes",
			r.peers.Comm.AtOnce(peer.AllReduce))).
			Str("small_messages", fmt.Sprintf("kernels between peers, up to %d bytes", r.peers.Comm.MessageMost()))
	}
}

// Handed reports whether the host makes calls on device memory. The memory may then hold other
// values for a while.
func (r *Router) Handed() bool { return r.device != nil && r.device.Caps().Hands }

// NoGraph returns why a graph cannot hold calls of the communicator; nil if it can.
func (r *Router) NoGraph() error {
	if r.device == nil {
		return nil
	}
	return r.device.Caps().NoGraph
}
