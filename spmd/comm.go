package spmd

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	hostexec "lockstep/spmd/internal/exec/host"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// Comm is a communicator: a group of ranks and the channel between them. It is a
// small value. A collective on it is finished when the call returns; on what On
// returns, it is only enqueued.
type Comm struct {
	st *commState
	s  *Stream
}

// commState is what all copies of a Comm share.
type commState struct {
	w        *World
	id       string // the same on all its ranks
	splits   int    // made of it so far
	recorder *verify.Recorder
	checker  *verify.Checker // for --check; else nil
	trace    *trace.Comm     // for --summary and --trace; else nil
	rank     int             // in it; -1 where this process is not
	size     int
	host     transport.Host
	routes   route.Router
	open     *group // between the start and the end of Group
	freed    bool
	mu       sync.Mutex
	spare    []*group // for reuse
	work     []uint64 // see hostWork
}

// Rank returns this process's number in the communicator, from 0; -1 where it is
// not in it.
func (c Comm) Rank() int {
	if c.st == nil {
		return -1
	}
	return c.st.rank
}

// Size returns the number of ranks in the communicator; 0 where this process is
// not in it.
func (c Comm) Size() int {
	if c.st == nil {
		return 0
	}
	return c.st.size
}

// On returns the same communicator for use in stream order: collectives on it
// are enqueued on s and return at once. Their input must be valid in s, their
// result is valid for later work in s, and for the host after s.Synchronize.
func (c Comm) On(s *Stream) Comm { return Comm{c.st, s} }

// Capturable returns nil where a Graph can hold collectives of c, else why it cannot:
// where MPI carries GPU memory, but not between GPUs that reach each other, a replay
// would have no host to call MPI.
func (c Comm) Capturable() error {
	if c.st == nil {
		return nil
	}
	return c.st.routes.NoGraph()
}

// Split divides the communicator: ranks that give the same color are in one new
// communicator, ordered by key, then by their present rank. A negative color
// takes part in the call and gets a Comm without ranks (Size 0).
//
// Collective, blocking.
func (c Comm) Split(color, key int) (Comm, error) {
	if err := c.check("Split"); err != nil {
		return Comm{}, err
	}
	var part Comm
	err := c.st.Pass(control.Split, func() (err error) {
		part, err = c.split(color, key)
		return err
	})
	return part, err
}

// split is Split in its turn.
func (c Comm) split(color, key int) (Comm, error) {
	w := c.st.w
	m, err := c.st.host.Split(color, key)
	if err != nil {
		return Comm{}, err
	}
	c.st.splits++
	st := &commState{w: w, rank: -1}
	if m != nil {
		part, err := w.addComm(m, fmt.Sprintf("%s/%d:%d", c.st.id, c.st.splits, color))
		if err != nil {
			return Comm{}, err
		}
		st = part.st
	}
	if err := st.routes.Split(&c.st.routes, color, key); err != nil {
		return Comm{}, err
	}
	return Comm{st: st}, w.knowSymmetric(st)
}

// Close gives up a communicator that Split made; the world closes what is left.
// Work enqueued on it must have finished. A second Close does nothing.
//
// Collective over its ranks, blocking.
func (c Comm) Close() error {
	st := c.st
	if st == nil || st.host == nil || st.freed {
		return nil
	}
	if st == st.w.all.st || st == st.w.near.st {
		return fmt.Errorf("%s: Close: the communicator belongs to the world", ccall.At())
	}
	return st.Pass(control.CloseComm, func() error {
		st.freed = true
		err := errors.Join(st.w.dropGraphs(st), st.free())
		st.w.mu.Lock()
		defer st.w.mu.Unlock()
		st.w.comms = slices.DeleteFunc(st.w.comms, func(o *commState) bool { return o == st })
		return err
	})
}

// free gives back what the communicator has. Collective, in the caller's turn.
func (st *commState) free() error {
	err := st.routes.Close()
	if st.checker != nil {
		err = errors.Join(err, st.checker.Close())
	}
	return errors.Join(err, st.host.Close())
}

// addComm takes a communicator into the world, in the caller's turn. Collective over it.
func (w *World) addComm(h transport.Host, id string) (Comm, error) {
	slow := h.Slow()
	st := &commState{w: w, id: id, rank: h.Rank(), size: h.Size(), host: h, routes: route.New(&w.env, h)}
	st.recorder = verify.NewRecorder(id, st.rank, st.size)
	st.recorder.Place = st.place
	st.trace = w.trace.Comm(id, st.rank, st.size)
	if id != control.ID && st.size > 1 && w.cfg.Check != "off" {
		own, err := h.Dup()
		if err != nil {
			return Comm{}, err
		}
		st.checker = verify.NewChecker(own, st.recorder)
		slow = errors.Join(slow, own.Slow())
	}
	if slow != nil {
		w.Log().Warn().Err(slow).Msg("small collectives go through messages, not through shared memory")
	}
	if !w.OnHost() {
		st.onGPU()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.comms = append(w.comms, st)
	return Comm{st: st}, nil
}

// group is the commands between the start and the end of Comm.Group.
type group struct {
	s    *Stream // that all of it is enqueued on; nil for a blocking group
	cmds []call
	list []coll.Call // those of them that start together
	keep bool        // a graph owns it
}

// Group runs fn, which issues collectives and point to point on this same c, and
// starts them together when fn returns: sends and receives between the same ranks in any
// order do not block each other. On a Comm with a stream the group is one unit of
// work of that stream; else it is finished when Group returns. Calls in fn on
// another communicator are not part of the group.
//
// Every rank that a call in the group concerns must issue the matching call in a
// group too. If fn fails, nothing of the group is done and its error returned.
func (c Comm) Group(fn func() error) error {
	if err := c.check("Group"); err != nil {
		return err
	}
	st := c.st
	if st.open != nil {
		return fn() // inner groups belong to the outermost
	}
	g := st.newGroup()
	g.s, st.open = c.s, g
	err := exec.Guard(fn)
	st.open = nil
	if err != nil || len(g.cmds) == 0 {
		st.recycle(g)
		return err
	}
	g.keep = c.s != nil && c.s.q.Lane() != nil
	return c.do(&call{Call: coll.Call{Kind: coll.Group}, comm: st, group: g})
}

func (st *commState) newGroup() *group {
	st.mu.Lock()
	defer st.mu.Unlock()
	if n := len(st.spare); n > 0 {
		g := st.spare[n-1]
		st.spare = st.spare[:n-1]
		return g
	}
	return &group{}
}

func (st *commState) recycle(g *group) {
	if g.keep {
		return
	}
	st.recorder.Forget(g)
	st.mu.Lock()
	defer st.mu.Unlock()
	g.cmds = g.cmds[:0]
	st.spare = append(st.spare, g)
}

// add copies a call into the group, reusing the slices of earlier ones.
func (g *group) add(c *call) {
	if len(g.cmds) < cap(g.cmds) {
		g.cmds = g.cmds[:len(g.cmds)+1]
	} else {
		g.cmds = append(g.cmds, call{})
	}
	g.cmds[len(g.cmds)-1].copyFrom(c)
}

// plain returns the communicator in host memory where a message between this rank and peer is
// nothing but a blocking call with nothing to refuse, and nil otherwise. A message
// costs little more than a call from Go to C: for it the way through do is long.
func (c Comm) plain(b *block, peer int) transport.Host {
	st := c.st
	if c.s != nil || st == nil || st.checker != nil || st.open != nil || st.freed || uint(peer) >= uint(st.size) || b == nil || b.Owner != st.w ||
		b.Freed.Load() || st.routes.OnDevice() || st.w.capturing.Load() != 0 {
		return nil
	}
	return st.host
}

// do runs, enqueues or groups a call.
func (c Comm) do(cmd *call) error {
	st := c.st
	if st.open != nil {
		if c.s != st.open.s {
			return fmt.Errorf("%s: a call in a Group on another stream than the group's", ccall.At())
		}
		if err := st.w.checkBlocks(cmd); err != nil {
			return err
		}
		st.routes.ChooseMember(&cmd.route, &cmd.Call, cmd.memory())
		st.open.add(cmd)
		return nil
	}
	if st.routes.WholeOnHost(cmd.Kind) { // as nearly every call on the host
		cmd.route.By, cmd.route.Host, cmd.route.Whole = st.host, true, true
	} else {
		cmd.choose(c.s != nil)
	}
	if c.s != nil {
		return c.s.submit(cmd)
	}
	if err := st.w.checkBlocks(cmd); err != nil {
		return err
	}
	if st.w.capturing.Load() != 0 {
		return fmt.Errorf("%s: a collective that blocks in the middle of a capture: use comm.On(stream)", ccall.At())
	}
	if !cmd.route.Host {
		if cmd.route.By.Caps().Now {
			return cmd.onDeviceNow(onGPU(st.w.blocking.q))
		}
		if err := st.w.blocking.submit(cmd); err != nil {
			return err
		}
		return st.w.blocking.Synchronize()
	}
	turn := st.w.order.Take(1)
	err := cmd.communicate(st.w.calls, turn)
	// A program that does nothing but call is one that computes in C without a pause. Not with a GPU: its core is idle most
	// of the time, and the other ranks would wait for the pause.
	if !st.routes.OnDevice() && turn%32 == 0 && st.w.pause.TryLock() {
		st.w.yielder.Yield()
		st.w.pause.Unlock()
	}
	return err
}

// communicate enters MPI in its turn, and notes the call among the events of on.
func (c *call) communicate(on *trace.Thread, turn uint64) error {
	order := c.comm.w.order
	if err := order.Enter(turn); err != nil {
		return err
	}
	r := c.comm.recorder
	p := r.Begin(&c.Call, c.group)
	c.comm.trace.Begin(on, &c.Call, c.group)
	err := c.verify()
	if err == nil {
		r.Note(p, &c.Call, c.group, c.memory(), c.site)
		if c.route.Whole {
			err = transport.MakeOnHost(c.comm.host, &c.Call)
		} else {
			err = c.make(nil, c.comm.hostWork(route.Bytes(c.route.Work)))
		}
	}
	c.comm.trace.End()
	r.Leave()
	order.Leave()
	return err
}

// make has the transports of its route make the call, whose result is then valid, or enqueue it on q, which is a bare
// queue, or nil on the host. A group is its collectives, one after the other, and then its messages together. work is
// memory of the route's bytes.
func (c *call) make(q transport.Queue, work unsafe.Pointer) error {
	if c.route.Whole {
		return c.route.By.Do(q, c.Call)
	}
	if c.Kind != coll.Group {
		return transport.Make(c.route.By, q, &c.Call, c.comm.rank, c.comm.size, work, c.comm.w.local)
	}
	g := c.group
	g.list = g.list[:0]
	for i := range g.cmds {
		m := &g.cmds[i]
		if m.Kind.Traits().Message {
			g.list = append(g.list, m.Call)
			continue
		}
		if err := m.make(q, work); err != nil {
			return err
		}
		work = unsafe.Add(work, route.Bytes(m.route.Work))
	}
	if err := c.route.By.Group(q, g.list, nil); err != nil {
		return err // messages may still be on their way
	}
	c.comm.recycle(g)
	return nil
}

// local does a step that concerns this rank alone, on the host or on a stream of the GPU.
func (w *World) local(q transport.Queue, s coll.Call) error {
	if q != nil {
		return w.onStream(q.Stream(), &s)
	}
	if s.Kind == coll.Fill {
		hostexec.FillAs(s.Type, s.Dst, s.N, coll.Identity(s.Op, s.Type))
		return nil
	}
	n := s.N * s.Type.Size()
	copy(unsafe.Slice((*byte)(s.Dst), n), unsafe.Slice((*byte)(s.Src), n))
	return nil
}

// onStream enqueues a step that concerns this rank alone.
func (w *World) onStream(h *cuda.Stream, s *coll.Call) error {
	if s.Kind == coll.Fill {
		return w.gpu.Fill(h, s.Type, s.Dst, s.N, coll.Identity(s.Op, s.Type))
	}
	return h.Copy(s.Dst, s.Src, s.N*s.Type.Size())
}

// hostWork returns memory of n bytes for a call on the host, in its turn in MPI.
func (st *commState) hostWork(n int) unsafe.Pointer {
	if n == 0 {
		return nil
	}
	const keep = 16 << 20 // what is larger goes after the call
	if n > keep {
		return unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))
	}
	if len(st.work) < n/8 {
		st.work = make([]uint64, n/8)
	}
	return unsafe.Pointer(unsafe.SliceData(st.work))
}

// overlaps says whether [a, a+n) and [b, b+m) share a byte.
func overlaps(a unsafe.Pointer, n int, b unsafe.Pointer, m int) bool {
	x, y := uintptr(a), uintptr(b)
	return n > 0 && m > 0 && x < y+uintptr(m) && y < x+uintptr(n)
}
