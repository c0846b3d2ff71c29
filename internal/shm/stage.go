package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/transfer"
)

// Stage does collectives of device memory through pinned host memory that all ranks of a node share. Each rank copies its
// pieces to its own part of that memory. The others copy them from there to their devices. Before that they reduce them,
// where it is a reduction, each a slice. MPI takes no part: the ranks tell each other by counters in the same memory.
//
// Three slots take turns. The device copies step k+1 in, the cores reduce step k, and the device copies step k-1 out, all at
// the same time. So a large transfer takes as long as its slowest part. That is the bus, over which a rank copies n bytes
// each way, or the memory of the node: an all-reduce of n bytes on p ranks moves 3 p n + n there. With 4 ranks, 50 GB/s for
// the bus and 200 GB/s for the memory this is 1.3 ms and 4.4 ms for 64 MiB. A few bytes cost two copies and the exchange of
// two cache lines, and the host waits for one of the copies. For small all-reduces package peer has a kernel, which is faster.
type Stage struct {
	c     *cudampi.Comm
	dev   *cuda.Device
	rank  int
	size  int
	mem   []byte
	fixed bool               // the memory is pinned
	parts []*stagePart       // the control words of each rank
	data  [][]byte           // the slots of each rank
	chunk int                // bytes of a slot, and of the result beside it
	calls uint64             // transfers so far
	steps uint64             // steps of all of them
	done  uint64             // steps whose copies to the device are over
	begun uint64             // steps whose copies to the device are enqueued
	bare  [slots]bool        // the step in the slot has no such copies
	here  [slots]*cuda.Event // after the copies from the device
	gone  [slots]*cuda.Event // after the copies to it
}

const (
	slots     = 3
	foldGrain = 256 << 10 // bytes of each source that are worth a goroutine: it takes time to wake up
)

// stagePart is what a rank tells the others. Each word has a cache line of its own. The counters count steps since the start.
// They are Go's atomics: what a rank read and wrote before it counts, and what its device wrote before an event that it saw, is
// over for a rank that sees the count, on processors with a weak order of memory too.
type stagePart struct {
	published atomic.Uint64 // pieces are in the slot
	_         [56]byte
	folded    atomic.Uint64 // the slice is reduced
	_         [56]byte
	fetched   atomic.Uint64 // what others put out is no longer needed
	_         [56]byte
	headers   [2]header // for odd and even calls: all have read one before anybody writes it again
}

const partBytes = 4096

var _ [partBytes - unsafe.Sizeof(stagePart{})]byte // it fits

// header says which call a rank makes.
type header struct {
	call uint64 // written last
	transfer.Signature
	send, recv [mostRanks]int64 // elements for and from each rank, of an AllToAll
}

// OpenStage makes the stage, or says why there is none. Collective; it blocks.
func OpenStage(c *cudampi.Comm, d *cuda.Device) (*Stage, string, error) {
	node, err := c.SplitShared()
	if err != nil {
		return nil, "", err
	}
	size := node.Size()
	if err := node.Close(); err != nil {
		return nil, "", err
	}
	together, err := c.All(size == c.Size())
	switch {
	case err != nil:
		return nil, "", err
	case !together:
		return nil, "the ranks are on several nodes", nil
	case c.Size() > mostRanks:
		return nil, fmt.Sprintf("there are %d ranks, more than %d", c.Size(), mostRanks), nil
	}
	g := &Stage{c: c, dev: d, rank: c.Rank(), size: c.Size(), chunk: transfer.Sizes.Chunk}
	each := partBytes + slots*2*g.chunk
	g.mem, err = Map(c, c.Size()*each)
	for r := range c.Size() {
		if err != nil {
			break
		}
		own := g.mem[r*each : (r+1)*each]
		g.parts = append(g.parts, (*stagePart)(unsafe.Pointer(&own[0])))
		g.data = append(g.data, own[partBytes:])
	}
	if err == nil {
		clear(g.data[c.Rank()]) // so that the memory is near the rank that writes it
	}
	if ok, e := c.All(err == nil); e != nil {
		return nil, "", e
	} else if ok {
		err = g.open()
	}
	return agreed(g, err)
}

// agreed gives up the stage unless all ranks have theirs. Collective.
func agreed(g *Stage, mine error) (*Stage, string, error) {
	ok, err := g.c.All(mine == nil)
	if ok && err == nil {
		return g, "", nil
	}
	if mine == nil {
		mine = errors.New("another rank cannot share memory")
	}
	return nil, mine.Error(), errors.Join(err, g.Close())
}

// open pins the memory, all of it.
func (g *Stage) open() (err error) {
	if err := g.dev.RegisterHost(unsafe.Pointer(&g.mem[0]), len(g.mem)); err != nil {
		return err
	}
	g.fixed = true
	for i := range slots {
		if g.here[i], err = g.dev.NewEvent(false); err != nil {
			return err
		}
		if g.gone[i], err = g.dev.NewEvent(false); err != nil {
			return err
		}
	}
	return nil
}

// Close gives the memory back, once this rank's copies are over.
func (g *Stage) Close() error {
	var err error
	for i := range slots {
		for _, e := range []*cuda.Event{g.here[i], g.gone[i]} {
			if e != nil {
				err = errors.Join(err, e.Close())
			}
		}
	}
	if g.fixed {
		g.fixed = false
		err = errors.Join(err, g.dev.UnregisterHost(unsafe.Pointer(&g.mem[0])))
	}
	if g.mem != nil {
		err = errors.Join(err, unix.Munmap(g.mem))
		g.mem = nil
	}
	return err
}

// slot and result are the memory of a rank for a step.
func (g *Stage) slot(r int, step uint64) unsafe.Pointer {
	return unsafe.Pointer(&g.data[r][int(step%slots)*2*g.chunk])
}
func (g *Stage) result(r int, step uint64) unsafe.Pointer {
	return unsafe.Add(g.slot(r, step), g.chunk)
}

// Collective is that of a cudampi.Carrier. On return the copies of out may still be under way.
func (g *Stage) Collective(x *transfer.Transfer, in, out *cuda.Stream, agreed bool) error {
	x.Cut(g.chunk, false)
	first := g.steps
	begun := uint64(0) // steps whose copies from the device are enqueued
	start := func() error {
		step := first + begun
		if step >= g.least(fetched)+slots {
			return nil
		}
		begun++
		return g.copyIn(x, int(begun-1), step, in)
	}
	if err := g.settle(); err != nil {
		return err
	}
	if err := start(); err != nil { // while the others come
		return err
	}
	if !agreed {
		if err := g.Agree(x); err != nil {
			return errors.Join(err, g.c.WaitEvent(g.here[first%slots]))
		}
	}
	steps := uint64(x.Steps())
	mine := g.parts[g.rank]
	published, foldedTo, begunOut := uint64(0), uint64(0), uint64(0)
	for idle := 0; published < steps || begunOut < steps; idle++ {
		if err := g.settle(); err != nil {
			return err
		}
		before := begun + published + foldedTo + begunOut
		if begun < steps {
			if err := start(); err != nil {
				return err
			}
		}
		if published < min(begun, steps) {
			done := !x.Sends(g.rank)
			if !done {
				var err error
				if done, err = g.here[(first+published)%slots].Query(); err != nil {
					return err
				}
			}
			if done {
				published++
				mine.published.Store(first + published)
			}
		}
		if foldedTo < published && g.least(arrived) > first+foldedTo {
			g.fold(x, int(foldedTo), first+foldedTo)
			foldedTo++
			mine.folded.Store(first + foldedTo)
		}
		if begunOut < foldedTo && (!g.inSlices(x) || g.least(folded) > first+begunOut) {
			if err := g.copyOut(x, int(begunOut), first+begunOut, out); err != nil {
				return err
			}
			begunOut++
		}
		if begun+published+foldedTo+begunOut > before {
			idle = 0
		} else if err := g.c.Pause(idle); err != nil {
			return err
		}
	}
	g.steps = first + steps
	return nil
}

type counter uint8

const (
	arrived counter = iota
	folded
	fetched
)

// least returns the counter of the rank that is furthest behind.
func (g *Stage) least(c counter) uint64 {
	n := ^uint64(0)
	for _, p := range g.parts {
		switch c {
		case arrived:
			n = min(n, p.published.Load())
		case folded:
			n = min(n, p.folded.Load())
		default:
			n = min(n, p.fetched.Load())
		}
	}
	return n
}

// settle tells the others which copies to this rank's device are over.
func (g *Stage) settle() error {
	for g.done < g.begun {
		if i := g.done % slots; !g.bare[i] {
			if done, err := g.gone[i].Query(); !done || err != nil {
				return err
			}
		}
		g.done++
		g.parts[g.rank].fetched.Store(g.done)
	}
	return nil
}

// Agree is that of a cudampi.Carrier: it tells the others which call this is, waits for theirs, and sets what only all of
// them know.
func (g *Stage) Agree(x *transfer.Transfer) error {
	g.calls++
	me, k := g.rank, x.Signature()
	h := &g.parts[me].headers[g.calls%2]
	h.Signature = k
	if x.What == transfer.AllToAll {
		x.Tell(h.send[:g.size], h.recv[:g.size])
	}
	atomic.StoreUint64(&h.call, g.calls)
	var failure error
	for r, p := range g.parts {
		h := &p.headers[g.calls%2]
		for idle := 0; atomic.LoadUint64(&h.call) != g.calls; idle++ {
			if err := g.settle(); err != nil {
				return err
			}
			if err := g.c.Pause(idle); err != nil {
				return err
			}
		}
		if failure == nil {
			failure = g.mismatch(x, k.Differs(h.Signature, r))
		}
		x.N = max(x.N, int(h.N))
	}
	if failure == nil && x.What == transfer.AllToAll {
		failure = g.mismatch(x, x.Unmatched(func(r int) (send, recv []int64) {
			h := &g.parts[r].headers[g.calls%2]
			return h.send[:], h.recv[:]
		}))
	}
	return failure
}

// mismatch is the error of a call about which text says something.
func (g *Stage) mismatch(x *transfer.Transfer, text string) error {
	if text == "" {
		return nil
	}
	return g.c.Mismatch(x.What, text)
}

// inSlices says whether a reduction is shared out, so that each rank needs what the others have reduced.
func (g *Stage) inSlices(x *transfer.Transfer) bool {
	return (x.What == transfer.AllReduce || x.What == transfer.Reduce) && x.N*x.Type.Size() > transfer.Sizes.Small
}

// fold reduces this rank's share of a step.
func (g *Stage) fold(x *transfer.Transfer, k int, step uint64) {
	if !x.IsReduction() || !g.inSlices(x) && !x.Receives(g.rank) {
		return
	}
	size, off, m := x.Type.Size(), 0, 0
	to := g.result(g.rank, step)
	switch {
	case x.What == transfer.ReduceScatter:
		_, m = x.Span(k, x.Send.Len(g.rank))
		off = g.rank * x.Window * size
	case g.inSlices(x):
		_, whole := x.Span(k, x.N)
		each := (whole + g.size - 1) / g.size
		lo := min(g.rank*each, whole)
		m, off = min(whole-lo, each), lo*size
		to = unsafe.Add(g.result(int(step%uint64(g.size)), step), off)
	default:
		_, m = x.Span(k, x.N)
	}
	host.Parallel(m, foldGrain/size, func(lo, hi int) {
		var src [mostRanks]uintptr
		for r := range g.size {
			src[r] = ccall.Address(g.slot(r, step)) + uintptr(off+lo*size)
		}
		Reduce(unsafe.Add(to, lo*size), src[:g.size], hi-lo, x.Type, x.Op)
	})
}

// copyIn enqueues the copies from the device of a step.
func (g *Stage) copyIn(x *transfer.Transfer, k int, step uint64, s *cuda.Stream) error {
	if !x.Sends(g.rank) {
		return nil
	}
	size := x.Type.Size()
	to := g.slot(g.rank, step)
	for _, p := range x.Out(k) {
		if x.Stays(p) {
			continue
		}
		if err := s.Copy(unsafe.Add(to, p.Slot*x.Window*size), p.At, p.N*size); err != nil {
			return err
		}
	}
	return g.here[step%slots].Record(s)
}

// copyOut enqueues the copies to the device of a step.
func (g *Stage) copyOut(x *transfer.Transfer, k int, step uint64, s *cuda.Stream) error {
	size := x.Type.Size()
	list := x.In(k)
	for _, p := range list {
		if p.Peer == g.rank && !x.IsReduction() {
			continue
		}
		from := unsafe.Add(g.slot(p.Peer, step), p.Slot*x.Window*size)
		switch {
		case g.inSlices(x):
			from = g.result(int(step%uint64(g.size)), step)
		case x.IsReduction():
			from = g.result(g.rank, step)
		}
		if err := s.Copy(p.At, from, p.N*size); err != nil {
			return err
		}
	}
	g.begun++
	g.bare[step%slots] = len(list) == 0
	if len(list) == 0 {
		return nil
	}
	return g.gone[step%slots].Record(s)
}
