package cudampi

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cuda"
	"lockstep/host"
	"lockstep/internal/elem"
)

// segment is pinned host memory that all ranks of a Comm on one node share, and the collectives through it. Each rank has
// a part of it, which it copies its pieces to; the others copy them from there to their devices, or reduce them first,
// each a slice. No piece goes through MPI, and between the ranks there are only counters in shared memory.
//
// Every step has a slot, and there are three: while the device copies step k+1 in, the cores reduce step k, and the device
// copies step k-1 out. So a large transfer takes as long as its slowest part: the copies of a rank, 2 n/b with b the rate
// of the bus in each direction, halved since they overlap; or the memory of the node, which for an all-reduce of n bytes
// on p ranks moves 3 p n + n. With 4 ranks, 50 GB/s and 200 GB/s that is 1.3 ms and 4.4 ms for 64 MiB. A few bytes cost two
// copies, one of which the host waits for, and the exchange of two cache lines: of all-reduces, oneShot does better.
type segment struct {
	c     *Comm
	dev   *cuda.Device
	mem   []byte
	fixed bool        // the memory is pinned
	parts []*part     // the control words of each rank
	data  [][]byte    // and its memory
	chunk int         // bytes of a slot, and of the result beside it
	calls uint64      // transfers so far
	steps uint64      // of all of them
	done  uint64      // steps whose copies to the device have been passed
	begun uint64      // steps whose copies to the device are enqueued
	bare  [slots]bool // those steps that had none
	here  [slots]*cuda.Event
	gone  [slots]*cuda.Event
}

const (
	slots        = 3
	segmentRanks = 64
	foldGrain    = 256 << 10 // bytes of each source that are worth a goroutine, which may take as long to wake up as some of these take to add
)

// Tests lower these.
var (
	chunkBytes = 2 << 20
	smallBytes = 16 << 10 // of an all-reduce that every rank does for itself
	mostShared = segmentRanks
)

// part holds what a rank tells the others, each word in a cache line of its own. Counters count steps, since the start.
type part struct {
	published atomic.Uint64 // pieces are in the slot
	_         [56]byte
	folded    atomic.Uint64 // the slice is reduced
	_         [56]byte
	fetched   atomic.Uint64 // what others put out is no longer needed
	_         [56]byte
	headers   [2]header // of odd and even calls: nobody begins the next but one before all have read this one
}

const partBytes = 4096

var _ [partBytes - unsafe.Sizeof(part{})]byte // it fits

// header says which call a rank makes.
type header struct {
	call uint64 // written last
	contract
	send, recv [segmentRanks]int64 // elements for and from each rank, of an AllToAll
}

// contract is what all ranks must agree on.
type contract struct {
	what, t, op, root int64
	n                 int64  // of the longest part
	hash              uint64 // of all parts
}

func (x *transfer) contract() contract {
	k := contract{what: int64(x.what), t: int64(x.t), n: int64(x.n)}
	if x.isReduction() {
		k.op = int64(x.op)
	}
	if x.isRooted() {
		k.root = int64(x.root)
	}
	if x.what != allToAll { // whose counts differ from rank to rank
		for _, p := range [...]parts{x.send, x.recv} {
			for _, n := range p.counts {
				k.hash = (k.hash ^ uint64(n)) * 1099511628211
			}
		}
	}
	return k
}

// tell sets send and recv to the counts of an AllToAll.
func (x *transfer) tell(send, recv []int64) {
	for r := range send {
		send[r], recv[r] = int64(x.send.len(r)), int64(x.recv.len(r))
	}
}

// unmatched is the error of an AllToAll in which some rank sends another than that one expects; counts are what each
// rank told.
func (c *Comm) unmatched(x *transfer, counts func(rank int) (send, recv []int64)) error {
	for from := range c.size {
		send, _ := counts(from)
		for to := range c.size {
			if _, recv := counts(to); send[to] != recv[from] {
				return c.Errorf(collectiveNames[allToAll], ErrCount, "rank %d sends %d %v elements to rank %d, which expects %d",
					from, send[to], x.t, to, recv[from])
			}
		}
	}
	return nil
}

// differs says what rank r brought, where that is not what this rank did.
func (c *Comm) differs(mine, other contract, r int) error {
	if mine.what == int64(allToAll) {
		mine.n, other.n = 0, 0
	}
	if mine == other {
		return nil
	}
	say := func(k contract) string {
		return fmt.Sprintf("%s of %d %v, op %v, root %d", collectiveNames[k.what], k.n, elem.Type(k.t), elem.Op(k.op), k.root)
	}
	here, there := say(mine), say(other)
	if here == there {
		there = "other counts"
	}
	return c.Errorf(collectiveNames[mine.what], ErrCount, "%s here, but rank %d brought %s", here, r, there)
}

// openSegment makes the segment, or says why there is none. Collective.
func (c *Comm) openSegment(d *cuda.Device) (*segment, string, error) {
	node, err := c.SplitShared()
	if err != nil {
		return nil, "", err
	}
	size := node.Size()
	if err := node.Close(); err != nil {
		return nil, "", err
	}
	together, err := c.All(size == c.size)
	switch {
	case err != nil:
		return nil, "", err
	case !together:
		return nil, "the ranks are on several nodes", nil
	case c.size > mostShared:
		return nil, fmt.Sprintf("there are %d ranks, more than %d", c.size, mostShared), nil
	}
	g := &segment{c: c, dev: d, chunk: chunkBytes}
	each := partBytes + slots*2*g.chunk
	err = c.shareFile(c.size*each, &g.mem)
	for r := range c.size {
		if err != nil {
			break
		}
		own := g.mem[r*each : (r+1)*each]
		g.parts = append(g.parts, (*part)(unsafe.Pointer(&own[0])))
		g.data = append(g.data, own[partBytes:])
	}
	if err == nil {
		clear(g.data[c.rank]) // so that the memory is near the rank that writes it
	}
	if ok, e := c.All(err == nil); e != nil {
		return nil, "", e
	} else if ok {
		err = g.open()
	}
	return c.agreed(g, err)
}

// agreed gives up the segment unless all ranks have theirs. Collective.
func (c *Comm) agreed(g *segment, mine error) (*segment, string, error) {
	ok, err := c.All(mine == nil)
	if ok && err == nil {
		return g, "", nil
	}
	if mine == nil {
		mine = errors.New("another rank cannot share memory")
	}
	return nil, mine.Error(), errors.Join(err, g.close())
}

// open pins the memory, all of it.
func (g *segment) open() (err error) {
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

// close gives the memory back, once this rank's copies are over.
func (g *segment) close() error {
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

// shareFile maps the same memory on every rank: a file of rank 0 without a name, which the others open through /proc. So
// it needs no folder with room for it, and no process leaves it behind. Collective.
func (c *Comm) shareFile(bytes int, mem *[]byte) error {
	id := new([2]int64) // process and descriptor
	fd, err := -1, error(nil)
	if c.rank == 0 {
		if fd, err = unix.MemfdCreate("lockstep", unix.MFD_CLOEXEC); err == nil {
			err = unix.Ftruncate(fd, int64(bytes))
		}
		*id = [2]int64{int64(os.Getpid()), int64(fd)}
	}
	if e := c.Broadcast(unsafe.Pointer(id), 2, elem.Int64, 0); e != nil {
		return e
	}
	if c.rank != 0 {
		fd, err = unix.Open(fmt.Sprintf("/proc/%d/fd/%d", id[0], id[1]), unix.O_RDWR|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		*mem, err = unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	_, e := c.All(true) // all have opened it
	if fd >= 0 {
		err = errors.Join(err, unix.Close(fd))
	}
	return errors.Join(err, e)
}

// slot and result are the memory of a rank for a step.
func (g *segment) slot(r int, step uint64) unsafe.Pointer {
	return unsafe.Pointer(&g.data[r][int(step%slots)*2*g.chunk])
}
func (g *segment) result(r int, step uint64) unsafe.Pointer {
	return unsafe.Add(g.slot(r, step), g.chunk)
}

// carryOut does a transfer: in copies from the device, out to it; both are where the buffers may be used. On return the
// copies of out may still be under way. agreed says that agree has been called.
func (g *segment) carryOut(x *transfer, in, out *cuda.Stream, agreed bool) error {
	x.cut(g.chunk, false)
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
		if err := g.agree(x); err != nil {
			return errors.Join(err, g.c.WaitEvent(g.here[first%slots]))
		}
	}
	steps := uint64(x.steps())
	mine := g.parts[g.c.rank]
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
			done := !x.sends(g.c.rank)
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
func (g *segment) least(c counter) uint64 {
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
func (g *segment) settle() error {
	for g.done < g.begun {
		if i := g.done % slots; !g.bare[i] {
			if done, err := g.gone[i].Query(); !done || err != nil {
				return err
			}
		}
		g.done++
		g.parts[g.c.rank].fetched.Store(g.done)
	}
	return nil
}

// agree tells the others which call this is, waits for theirs, and sets what only all of them know.
func (g *segment) agree(x *transfer) error {
	g.calls++
	me, k := g.c.rank, x.contract()
	h := &g.parts[me].headers[g.calls%2]
	h.contract = k
	if x.what == allToAll {
		x.tell(h.send[:g.c.size], h.recv[:g.c.size])
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
			failure = g.c.differs(k, h.contract, r)
		}
		x.n = max(x.n, int(h.n))
	}
	if failure == nil && x.what == allToAll {
		failure = g.c.unmatched(x, func(r int) (send, recv []int64) {
			h := &g.parts[r].headers[g.calls%2]
			return h.send[:], h.recv[:]
		})
	}
	return failure
}

// inSlices says whether a reduction is shared out, so that each rank needs what the others have reduced.
func (g *segment) inSlices(x *transfer) bool {
	return (x.what == allReduce || x.what == reduce) && x.n*x.t.Size() > smallBytes
}

// fold reduces this rank's share of a step.
func (g *segment) fold(x *transfer, k int, step uint64) {
	if !x.isReduction() || !g.inSlices(x) && !x.receives(g.c.rank) {
		return
	}
	size, off, m := x.t.Size(), 0, 0
	to := g.result(g.c.rank, step)
	switch {
	case x.what == reduceScatter:
		_, m = x.span(k, x.send.len(g.c.rank))
		off = g.c.rank * x.window * size
	case g.inSlices(x):
		_, whole := x.span(k, x.n)
		each := (whole + g.c.size - 1) / g.c.size
		lo := min(g.c.rank*each, whole)
		m, off = min(whole-lo, each), lo*size
		to = unsafe.Add(g.result(int(step%uint64(g.c.size)), step), off)
	default:
		_, m = x.span(k, x.n)
	}
	host.Parallel(m, foldGrain/size, func(lo, hi int) {
		var src [segmentRanks]uintptr
		for r := range g.c.size {
			src[r] = uintptr(g.slot(r, step)) + uintptr(off+lo*size)
		}
		sysReduceMany(unsafe.Add(to, lo*size), src[:g.c.size], hi-lo, x.t, x.op)
	})
}

// copyIn enqueues the copies from the device of a step.
func (g *segment) copyIn(x *transfer, k int, step uint64, s *cuda.Stream) error {
	if !x.sends(g.c.rank) {
		return nil
	}
	size := x.t.Size()
	to := g.slot(g.c.rank, step)
	for _, p := range x.out(k) {
		if x.stays(p) {
			continue
		}
		if err := s.Copy(unsafe.Add(to, p.slot*x.window*size), p.at, p.n*size); err != nil {
			return err
		}
	}
	return g.here[step%slots].Record(s)
}

// copyOut enqueues the copies to the device of a step.
func (g *segment) copyOut(x *transfer, k int, step uint64, s *cuda.Stream) error {
	size := x.t.Size()
	list := x.in(k)
	for _, p := range list {
		if p.peer == g.c.rank && !x.isReduction() {
			continue
		}
		from := unsafe.Add(g.slot(p.peer, step), p.slot*x.window*size)
		switch {
		case g.inSlices(x):
			from = g.result(int(step%uint64(g.c.size)), step)
		case x.isReduction():
			from = g.result(g.c.rank, step)
		}
		if err := s.Copy(p.at, from, p.n*size); err != nil {
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
