package spmd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/peer"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
)

// courier makes the calls that carry GPU memory through MPI, one after the other, in the
// order in which they were issued: MPI knows no streams, so somebody on the host has to
// wait for the stream, make the call, and let the stream go on.
type courier struct {
	mu    sync.Mutex
	cond  sync.Cond
	calls []delivery
	over  bool
	ended chan struct{}
}

// delivery is a call whose stream waits for it.
type delivery struct {
	run  func(at cudampi.Point) error
	comm *commState
	at   cudampi.Point
	turn uint64
	q    *gpuQueue
	seq  uint64
	what call
	site ccall.Site
}

func newCourier() *courier {
	l := &courier{ended: make(chan struct{})}
	l.cond.L = &l.mu
	go l.work()
	return l
}

func (l *courier) push(c delivery) {
	l.mu.Lock()
	l.calls = append(l.calls, c)
	l.mu.Unlock()
	l.cond.Signal()
}

// close ends the courier when it has made its calls.
func (l *courier) close() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.cond.Signal()
	<-l.ended
}

func (l *courier) work() {
	defer close(l.ended)
	for {
		l.mu.Lock()
		for len(l.calls) == 0 && !l.over {
			l.cond.Wait()
		}
		if len(l.calls) == 0 {
			l.mu.Unlock()
			return
		}
		c := l.calls[0]
		l.calls[0] = delivery{}
		if l.calls = l.calls[1:]; len(l.calls) == 0 {
			l.calls = nil
		}
		l.mu.Unlock()
		c.make()
	}
}

// make makes the call in its turn. After a failure it lets the stream go on all the same:
// nobody may wait for what will not come.
func (c *delivery) make() {
	err := mpiOrder.Enter(c.turn)
	if err != nil {
		c.q.broken(c.comm.dev.Release(c.at))
		return
	}
	err = c.run(c.at)
	mpiOrder.Leave()
	if err != nil {
		c.q.failed(fmt.Errorf("stream %q, %v enqueued at %s: %w", c.q.s.name, &c.what, &c.site, err), c.seq)
	}
}

// chooseCarrier settles on all ranks alike what carries GPU memory: MPI where that is
// asked for, or where a rank has no NCCL and nobody insists on it; else NCCL. It comes
// before the GPU is opened.
//
// Collective over all ranks.
func (w *World) chooseCarrier() error {
	if w.Size() == 1 {
		return nil
	}
	if _, w.byMPI = w.cfg.mpiPath(); !w.byMPI {
		lacking, err := w.firstFailure(nccl.Load())
		switch {
		case err != nil || lacking == nil:
			return err
		case w.cfg.Collectives == "nccl":
			w.agreed = true
			return Usage(fmt.Errorf("--collectives nccl: %w", lacking))
		}
		w.byMPI, w.fellBack = true, true
		w.why = fmt.Sprintf("NCCL is not used: %v", lacking)
	}
	// A stream that waits for the host must not hold up others, which share few queues of the device unless told.
	return os.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", cmp.Or(os.Getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32"))
}

// startMPI has MPI carry GPU memory, and says why on which way.
//
// Collective over all ranks.
func (w *World) startMPI() error {
	world := w.Comm.st
	err := w.mustAgree(world.openDevice())
	if err == nil {
		err = w.mustAgree(w.NodeComm.st.openDevice())
	}
	path, asked := w.cfg.mpiPath()
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
		if path == cudampi.Auto {
			return err
		}
		return Usage(fmt.Errorf("--collectives %s: %w", w.cfg.Collectives, err))
	}
	w.courier = newCourier()
	how := ": "
	if path == cudampi.AwareMPI {
		said, err := cudampi.CUDAAware()
		if err != nil {
			return err
		}
		if !said.Yes {
			how, w.fellBack = ", though ", true
		}
	}
	if asked {
		w.why += "; --collectives " + w.cfg.Collectives + how + world.dev.Reason()
	} else {
		w.why += "; " + world.dev.Reason()
	}
	return nil
}

// openDevice has the communicator carry GPU memory through MPI, instead of NCCL or to
// be compared with it. Collective, in the caller's turn.
func (st *commState) openDevice() error {
	w := st.w
	if w.gpu == nil || st.size < 2 || !w.byMPI && w.cross == nil {
		return nil
	}
	if err := w.quiet(); err != nil { // it allocates
		return err
	}
	path, _ := w.cfg.mpiPath()
	dev, peers, err := peer.OnDevice(st.mpi.Comm, w.gpu.dev, cudampi.DeviceConfig{Path: path})
	if !w.byMPI {
		st.mirror = dev
		return err
	}
	st.dev = dev
	if err != nil || peers == nil {
		return err
	}
	st.usePeers(peers)
	return st.startPeers()
}

// closeDevice undoes openDevice. Collective, in the caller's turn.
func (st *commState) closeDevice() error {
	if st.mirror != nil {
		err := st.mirror.Close()
		st.mirror = nil
		return err
	}
	if st.dev == nil {
		return nil
	}
	st.w.gpu.forget(st.dev)
	if st.peers != nil {
		st.leavePeers()
	}
	err := st.dev.Close()
	st.dev = nil
	return err
}

// throughMPI enqueues a call of a communicator whose memory goes through MPI. The caller
// holds g.issue and q.mu. c is a copy, so that calls which go elsewhere stay on their
// callers' stacks.
func (q *gpuQueue) throughMPI(c call) error {
	q.g.entered = true
	whole := call{}
	whole.copyFrom(&c)
	for _, run := range whole.steps(q.g.word) {
		if err := q.hand(whole, run); err != nil {
			return err
		}
	}
	return nil // a group is the courier's now
}

// hand has the courier make a call, or part of it, for which the stream waits. whole is a copy, as above.
func (q *gpuQueue) hand(whole call, run func(at cudampi.Point) error) error {
	st := whole.comm
	if q.s.cap != nil {
		return fmt.Errorf("%v cannot be captured where %v carries it: a graph has no host that could call MPI", &whole, st.dev.Path())
	}
	var site ccall.Site
	site.Here(6) // from where the stream was given the call
	turn := mpiOrder.Take(1)
	at, err := st.dev.Hold(q.h)
	if err != nil {
		q.s.w.fail(err) // the turn is lost
		return err
	}
	q.s.w.courier.push(delivery{run: run, comm: st, at: at, turn: turn, q: q, seq: q.tail.Load() + 1, what: whole, site: site})
	return nil
}

// blocks says whether the goroutine that issues a call on a stream has to make it: a CUDA-aware MPI may wait for all
// streams of the device, so none may wait for the host meanwhile.
func (c *call) blocks() bool {
	return c.comm.dev != nil && c.comm.dev.Path() == cudampi.AwareMPI
}

// atOnce is submit for a call that blocks; a stream that is captured has none.
func (q *gpuQueue) atOnce(c *call) (done bool, err error) {
	q.mu.Lock()
	err, captured := q.ready(), q.s.cap != nil
	q.mu.Unlock()
	if captured {
		return false, nil
	}
	if err == nil {
		err = c.onDeviceNow(q)
	}
	q.mu.Lock()
	q.tail.Add(1) // what may still run on the device
	q.mu.Unlock()
	return true, err
}

// onDeviceNow makes a call from the goroutine that issues it, on a stream of its, or on that of the calls that block, for
// which it then waits.
func (c *call) onDeviceNow(q *gpuQueue) error {
	st, g := c.comm, c.comm.w.gpu
	now := *c
	g.issue.Lock()
	turn := mpiOrder.Take(1)
	err := g.orderAfterOthers(q, lastOf(q, &command{kind: cmdCall, call: now}))
	g.issue.Unlock()
	if e := mpiOrder.Enter(turn); e != nil {
		return e
	}
	defer mpiOrder.Leave()
	if err != nil {
		return err
	}
	p := st.recorder.Begin(&c.Call, c.group)
	defer st.recorder.Leave()
	if err := now.verify(); err != nil {
		return err
	}
	st.recorder.Note(p, &c.Call, c.group, c.memory(), nil)
	for _, run := range now.steps(g.word) {
		if err := run(cudampi.At(q.h)); err != nil {
			return err
		}
	}
	if c.Kind == coll.Group {
		st.recycle(c.group)
	}
	if q != st.w.blocking.dev {
		return nil
	}
	return st.mpi.WaitStream(q.h)
}

// steps are the calls that c is made of: a group is its collectives, and then its
// messages together.
func (c *call) steps(word unsafe.Pointer) []func(at cudampi.Point) error {
	dev := c.comm.dev
	if c.Kind != coll.Group {
		return []func(at cudampi.Point) error{func(at cudampi.Point) error { return c.onDevice(dev, at, word) }}
	}
	var steps []func(at cudampi.Point) error
	var messages []cudampi.Message
	for i := range c.group.cmds {
		m := &c.group.cmds[i]
		if m.Kind.Traits().Message {
			messages = m.appendMessages(messages)
			continue
		}
		steps = append(steps, func(at cudampi.Point) error { return m.onDevice(dev, at, word) })
	}
	if len(messages) > 0 {
		steps = append(steps, func(at cudampi.Point) error { return dev.Exchange(at, messages...) })
	}
	return steps
}

// appendMessages appends what a call between two ranks is made of.
func (c *call) appendMessages(to []cudampi.Message) []cudampi.Message {
	c.Messages(func(m coll.Call) bool {
		to = append(to, messageOf(&m))
		return true
	})
	return to
}

// messageOf is a Send or Recv as package cudampi has it.
func messageOf(m *coll.Call) cudampi.Message {
	if m.Kind == coll.Recv {
		return cudampi.Message{Buf: m.Dst, N: m.N, Type: m.Type, Peer: int(m.Root), Recv: true}
	}
	return cudampi.Message{Buf: m.Src, N: m.N, Type: m.Type, Peer: int(m.Root)}
}

// onDevice makes the call, which is no group.
func (c *call) onDevice(k *cudampi.DeviceComm, at cudampi.Point, word unsafe.Pointer) error {
	switch c.Kind {
	case coll.AllReduce:
		return k.AllReduce(at, c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.Reduce:
		return k.Reduce(at, c.Dst, c.Src, c.N, c.Type, c.Op, int(c.Root))
	case coll.Broadcast:
		return k.Broadcast(at, c.Dst, c.N, c.Type, int(c.Root))
	case coll.AllGather:
		return k.AllGather(at, c.Dst, c.Src, c.N, c.Type)
	case coll.ReduceScatter:
		return k.ReduceScatter(at, c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.AllToAll:
		return k.AllToAll(at, c.Dst, c.Src, c.N, c.Type)
	case coll.Gather:
		return k.Gather(at, c.Dst, c.Src, c.N, c.Type, int(c.Root))
	case coll.Scatter:
		return k.Scatter(at, c.Dst, c.Src, c.N, c.Type, int(c.Root))
	case coll.AllGatherV:
		return k.AllGatherV(at, c.Dst, c.Src, c.Counts, c.Type)
	case coll.ReduceScatterV:
		return k.ReduceScatterV(at, c.Dst, c.Src, c.Counts, c.Type, c.Op)
	case coll.GatherV:
		return k.GatherV(at, c.Dst, c.Src, c.Counts, c.Type, int(c.Root))
	case coll.ScatterV:
		return k.ScatterV(at, c.Dst, c.Src, c.Counts, c.Type, int(c.Root))
	case coll.AllToAllV:
		return k.AllToAllV(at, c.Dst, c.RecvCounts, c.Src, c.Counts, c.Type)
	case coll.Send:
		return k.Send(at, c.Src, c.N, c.Type, int(c.Root))
	case coll.Recv:
		return k.Recv(at, c.Dst, c.N, c.Type, int(c.Root))
	case coll.SendRecv:
		return k.SendRecv(at, c.Dst, c.RecvN, int(c.From), c.Src, c.N, int(c.Root), c.Type)
	default: // a barrier that the stream sees
		return k.AllReduce(at, word, word, 1, elem.Int32, Sum)
	}
}
