package cudampi

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// Window is device memory of every rank of a Comm on one node, which all of these ranks reach at an address of their own:
// copies and kernels read and write it over the link between the devices. Nothing orders the ranks but what they do
// themselves, as by Peers.Barrier.
type Window struct {
	c       *Comm
	dev     *cuda.Device
	base    []unsafe.Pointer
	foreign []*cuda.Foreign
	table   unsafe.Pointer
}

// windowInfo is what a rank tells the others of its memory.
type windowInfo struct {
	handle cuda.IPCHandle
	bytes  int
	uuid   [48]byte
}

// Share opens a window on memory that each rank has from cuda.Malloc, or on a place in it; it may be of another size on
// every rank, and nil with no bytes. It fails, on all ranks and with the reason of the first that failed, where the ranks
// are on several nodes, or where the device of one does not reach that of another: without peer access between them, or
// where the other is not visible to the process.
//
// Collective; it blocks. The memory must not be freed before Close. Source: cuda.h, cuIpcGetMemHandle, cuIpcOpenMemHandle.
func (c *Comm) Share(d *cuda.Device, mem unsafe.Pointer, bytes int) (*Window, error) {
	node, err := c.SplitShared()
	if err != nil {
		return nil, err
	}
	here := node.Size()
	if err := node.Close(); err != nil {
		return nil, err
	}
	if here != c.size {
		err = fmt.Errorf("cudampi: device memory is shared within a node, and %d of %d ranks are on this one", here, c.size)
	}
	w := &Window{c: c, dev: d, base: make([]unsafe.Pointer, c.size), foreign: make([]*cuda.Foreign, c.size)}
	all := make([]windowInfo, c.size+1)
	mine := &all[c.size]
	mine.bytes = bytes
	copy(mine.uuid[:], d.UUID())
	if bytes > 0 && err == nil && c.size > 1 {
		mine.handle, err = d.IPCHandle(mem)
	}
	if err := c.FirstFailure(err); err != nil {
		return nil, err
	}
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(mine), int(unsafe.Sizeof(*mine)), elem.Uint8); err != nil {
		return nil, err
	}
	if err := c.FirstFailure(w.open(mem, all)); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *Window) open(mem unsafe.Pointer, all []windowInfo) error {
	for r, info := range all[:w.c.size] {
		switch {
		case info.bytes == 0:
			continue
		case r == w.c.rank:
			w.base[r] = mem
			continue
		}
		ok, why, err := w.dev.CanAccess(strings.TrimRight(string(info.uuid[:]), "\x00"))
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("cudampi: memory of rank %d: %s", r, why)
		}
		if w.foreign[r], err = w.dev.OpenIPC(info.handle); err != nil {
			return err
		}
		w.base[r] = w.foreign[r].Addr()
	}
	return w.tabulate()
}

// tabulate puts the addresses into device memory.
func (w *Window) tabulate() error {
	bytes := len(w.base) * int(unsafe.Sizeof(w.base[0]))
	host, err := w.dev.MallocHost(bytes)
	if err != nil {
		return err
	}
	copy(unsafe.Slice((*unsafe.Pointer)(host), len(w.base)), w.base)
	w.table, err = w.dev.Malloc(bytes)
	if err == nil {
		err = onStream(w.dev, func(s *cuda.Stream) error { return s.Copy(w.table, host, bytes) })
	}
	return errors.Join(err, w.dev.FreeHost(host))
}

// onStream has fn enqueue work and waits for it.
func onStream(d *cuda.Device, fn func(s *cuda.Stream) error) error {
	s, err := d.NewStream(0)
	if err != nil {
		return err
	}
	if err = fn(s); err == nil {
		err = s.Synchronize()
	}
	return errors.Join(err, s.Close())
}

// At returns the address, on this rank's device, of the memory of a rank; nil where it has none.
func (w *Window) At(rank int) unsafe.Pointer { return w.base[rank] }

// Table returns an array in device memory of the addresses of all ranks, for kernels.
func (w *Window) Table() unsafe.Pointer { return w.table }

// Close unmaps the memory of the others. Afterwards each rank may free its own. A second Close does nothing.
//
// Collective; it blocks until all ranks have called it. Each rank calls it when its own work on the window is over.
func (w *Window) Close() error {
	if w.base == nil {
		return nil
	}
	err := w.c.Barrier()
	return errors.Join(err, w.close(), w.c.Barrier())
}

func (w *Window) close() error {
	var err error
	for _, f := range w.foreign {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	err = errors.Join(err, w.dev.Free(w.table))
	w.base, w.foreign, w.table = nil, nil, nil
	return err
}

// Of peers.cu.
const (
	smallBlocks = 256
	peerBlocks  = 64                                     // that meet
	inboxOffset = 4*smallBlocks + 4*peerBlocks*peerRanks // after the epochs of the blocks and their flags
)

// peersAtOnce is the most bytes that a rank sends all others in a collective that is one kernel; tests lower it.
var peersAtOnce = smallBlocks * smallBlock

// peerRoom is the default of OpenPeers; tests lower it.
var peerRoom = 16 << 20

// Peers are the ranks of a Comm on one node whose devices reach each other's memory: collectives by copies and kernels
// that the host only enqueues. Calls follow each other in the order of their streams, the same on every rank, and nothing
// of one begins before the one before is over. They may be captured in a graph, where the caller sees to that: what orders
// the ranks is counted on the devices. Ranks that bring other lengths than the others wait for ever, as with NCCL.
//
// A collective whose messages from one rank to another have up to AtOnce bytes is one kernel, in which each rank writes to
// all others once: up to 16 KiB about 3 us. Where its parts are of different lengths, it is messages, which are one kernel,
// too. A larger all-reduce takes 4 n bytes of each device's memory and 2 (p-1)/p n of its link in each direction, twice:
// with 4 ranks, 64 MiB and 350 GB/s about 0.4 ms. Of the others each is a copy to scratch memory, a meeting, copies from
// the others' scratch memory, and a meeting.
type Peers struct {
	// Ordered says that the caller has all calls follow each other, also those on different streams and in graphs, so
	// that none has to be recorded for the next.
	Ordered bool

	c      *Comm
	dev    *cuda.Device
	k      *kernels
	mem    unsafe.Pointer
	room   int // of the scratch memory, which lies behind the inbox
	atOnce int
	apart  bool // every rank has a device of its own
	inbox  place
	wrong  unsafe.Pointer // in host memory, four words for each rank, of which exchange says what is wrong
	blocks int
	win    *Window
	order  sequence
	x      transfer
}

// OpenPeers allocates device memory for collectives between the devices, room bytes for what goes out and as much for
// what comes in (0 stands for 16 MiB), beside 2 to 4 MiB for small collectives and 2 MiB for each rank for messages, and
// opens it to all. It fails where Share does, or where the kernels cannot be compiled. Collective; it blocks.
func (c *Comm) OpenPeers(d *cuda.Device, room int) (*Peers, error) {
	if c.size > peerRanks {
		return nil, fmt.Errorf("cudampi: %d ranks, at most %d reach each other's memory", c.size, peerRanks)
	}
	if room <= 0 {
		room = peerRoom
	}
	apart, err := c.apart(d)
	if err != nil {
		return nil, err
	}
	p := &Peers{c: c, dev: d, apart: apart, room: (room + 4095) / 4096 * 4096}
	most := smallBlocks * smallBlock / max(1, c.size-1) / smallBlock * smallBlock
	p.atOnce = min(most, peersAtOnce/max(1, c.size-1))
	p.inbox = place{copies: c.size, offset: inboxOffset, room: most}
	blocks := new(int64)
	*blocks = int64(min(peerBlocks, d.Multiprocessors()))
	if err := c.AllReduce(unsafe.Pointer(blocks), unsafe.Pointer(blocks), 1, elem.Int64, elem.Min); err != nil {
		return nil, err
	}
	p.blocks = int(*blocks)
	if err := c.FirstFailure(p.alloc()); err != nil {
		return nil, errors.Join(err, p.free())
	}
	if p.win, err = c.Share(d, p.mem, p.scratch()+2*p.room); err != nil {
		return nil, errors.Join(err, p.free())
	}
	if p.k, err = c.loadKernels(d); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.inbox.table, p.inbox.epochs = p.win.table, p.mem
	return p, nil
}

// lanes is where the memory for messages begins, scratch where the scratch memory does.
func (p *Peers) lanes() int   { return inboxOffset + inboxBytes(p.c.size, p.inbox.room) }
func (p *Peers) scratch() int { return p.lanes() + lanesBytes(p.c.size) }

// AtOnce is the most bytes of a message from one rank to another in a collective that is one kernel: 512 KiB of 2 ranks,
// and 512 KiB / (p - 1) of p, in whole 2 KiB.
func (p *Peers) AtOnce() int { return p.atOnce }

func (p *Peers) alloc() (err error) {
	if p.mem, err = p.dev.Malloc(p.scratch() + 2*p.room); err != nil {
		return err
	}
	if p.wrong, err = p.dev.MallocHost(wrongBytes * p.c.size); err != nil {
		return err
	}
	clear(p.complaints())
	if p.order.done, err = p.dev.NewEvent(false); err != nil {
		return err
	}
	return onStream(p.dev, func(s *cuda.Stream) error { return s.Fill(p.mem, 4, 0, p.scratch()/4) })
}

func (p *Peers) free() error {
	err := errors.Join(p.dev.Free(p.mem), p.dev.FreeHost(p.wrong), p.k.close())
	if p.order.done != nil {
		err = errors.Join(err, p.order.done.Close())
	}
	p.mem, p.wrong, p.k, p.order = nil, nil, nil, sequence{}
	return err
}

// Close gives the memory back; a second Close does nothing. Collective; it blocks. Work of this rank must have finished,
// and no graph that holds calls may be launched any more.
func (p *Peers) Close() error {
	if p.mem == nil {
		return nil
	}
	return errors.Join(p.win.Close(), p.free())
}

// Barrier enqueues on s a wait of the device until all ranks have come to it.
func (p *Peers) Barrier(s *cuda.Stream) error {
	return p.next(s, func() error { return p.barrier(s) })
}

func (p *Peers) barrier(s *cuda.Stream) error {
	args := [...]uint64{p.table(), uint64(p.c.rank), uint64(p.c.size)}
	return s.Launch(p.k.barrier, [3]int{1, 1, 1}, [3]int{barrierThreads, 1, 1}, 0, args[:])
}

// next does fn on s after the call before.
func (p *Peers) next(s *cuda.Stream, fn func() error) error {
	if p.Ordered {
		return fn()
	}
	return p.order.next(s, fn)
}

func (p *Peers) table() uint64 { return uint64(uintptr(p.win.table)) }

// AllReduce enqueues on s what Comm.AllReduce does, on device memory, as the others do. In place: dst is src.
func (p *Peers) AllReduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return p.do(s, p.x.whole(p.c, allReduce, dst, src, n, t, op, 0))
}

// Reduce is AllReduce with the result on root alone.
func (p *Peers) Reduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	return p.do(s, p.x.whole(p.c, reduce, dst, src, n, t, op, root))
}

// Broadcast copies n elements of root's buf to buf of every rank.
func (p *Peers) Broadcast(s *cuda.Stream, buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return p.do(s, p.x.whole(p.c, broadcast, buf, buf, n, t, 0, root))
}

// AllGather copies the n elements of src of every rank r to dst[r*n:]. In place: src is dst[rank*n:].
func (p *Peers) AllGather(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return p.do(s, p.x.inParts(p.c, allGather, dst, src, parts{}, parts{each: n}, t, 0, 0))
}

// AllGatherV is AllGather of counts[r] elements of rank r. counts is the same on every rank.
func (p *Peers) AllGatherV(s *cuda.Stream, dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	return p.do(s, p.x.inParts(p.c, allGather, dst, src, parts{}, parts{counts: counts}, t, 0, 0))
}

// Gather is AllGather with the result on root alone.
func (p *Peers) Gather(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return p.do(s, p.x.inParts(p.c, gather, dst, src, parts{}, parts{each: n}, t, 0, root))
}

// GatherV is AllGatherV with the result on root alone.
func (p *Peers) GatherV(s *cuda.Stream, dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return p.do(s, p.x.inParts(p.c, gather, dst, src, parts{}, parts{counts: counts}, t, 0, root))
}

// ReduceScatter leaves in dst of rank r the n elements src[r*n:], reduced over all ranks. In place: dst is src[rank*n:].
func (p *Peers) ReduceScatter(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return p.do(s, p.x.inParts(p.c, reduceScatter, dst, src, parts{each: n}, parts{}, t, op, 0))
}

// ReduceScatterV is ReduceScatter of counts[r] elements for rank r. counts is the same on every rank.
func (p *Peers) ReduceScatterV(s *cuda.Stream, dst, src unsafe.Pointer, counts []int, t elem.Type, op elem.Op) error {
	return p.do(s, p.x.inParts(p.c, reduceScatter, dst, src, parts{counts: counts}, parts{}, t, op, 0))
}

// Scatter copies the n elements src[r*n:] of root to dst of rank r. In place on root: dst is src[root*n:].
func (p *Peers) Scatter(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return p.do(s, p.x.inParts(p.c, scatter, dst, src, parts{each: n}, parts{}, t, 0, root))
}

// ScatterV is Scatter of counts[r] elements to rank r. counts is the same on every rank.
func (p *Peers) ScatterV(s *cuda.Stream, dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return p.do(s, p.x.inParts(p.c, scatter, dst, src, parts{counts: counts}, parts{}, t, 0, root))
}

// AllToAll copies the n elements src[q*n:] of rank r to dst[r*n:] of rank q. In place: dst is src.
func (p *Peers) AllToAll(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return p.do(s, p.x.inParts(p.c, allToAll, dst, src, parts{each: n}, parts{each: n}, t, 0, 0))
}

func (p *Peers) do(s *cuda.Stream, err error) error {
	if err != nil {
		return err
	}
	return p.carryOut(&p.x, s)
}

// carryOut enqueues a transfer on s.
func (p *Peers) carryOut(x *transfer, s *cuda.Stream) error {
	switch m, ok := x.small(); {
	case ok && x.n == 0:
		return nil
	case ok && m.bytes <= p.atOnce:
		return p.next(s, func() error { return p.k.smallOn(s, p.c.rank, p.c.size, &m, &p.inbox) })
	case x.what == allReduce:
		return p.next(s, func() error { return p.allReduce(x, s) })
	case !ok && x.what != allToAll && !x.isReduction() && p.apart && x.n*x.t.Size() <= p.atOnce:
		return p.next(s, func() error { return p.exchangeParts(x, s) })
	}
	if x.what == allToAll && x.recv.counts != nil { // only here the ranks do not know each other's counts
		n := new(int64)
		*n = int64(x.n)
		if err := p.c.AllReduce(unsafe.Pointer(n), unsafe.Pointer(n), 1, elem.Int64, elem.Max); err != nil {
			return err
		}
		x.n = int(*n)
	}
	return p.next(s, func() error {
		if err := x.keep(s); err != nil {
			return err
		}
		x.cut(p.room, false)
		for k := range x.steps() {
			if err := p.step(x, k, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// allReduce is an all-reduce that is not small, as far as the scratch memory goes at a time.
func (p *Peers) allReduce(x *transfer, s *cuda.Stream) error {
	const each = 16 * allReduceThreads
	limit := p.room / x.t.Size()
	for lo := 0; lo < x.n; lo += limit {
		bytes := min(limit, x.n-lo) * x.t.Size()
		args := [...]uint64{uint64(uintptr(at(x.dst, lo, x.t))), uint64(uintptr(at(x.src, lo, x.t))), uint64(bytes), uint64(x.t), uint64(x.op), p.table(),
			uint64(p.c.rank), uint64(p.c.size), uint64(p.scratch()), uint64(p.room)}
		blocks := min(p.blocks, (bytes/p.c.size+each-1)/each)
		if err := s.Launch(p.k.peerAllReduce, [3]int{max(blocks, 1), 1, 1}, [3]int{allReduceThreads, 1, 1}, 0, args[:]); err != nil {
			return err
		}
	}
	return nil
}

func (p *Peers) step(x *transfer, k int, s *cuda.Stream) error {
	size := x.t.Size()
	stride := (x.window*size + 15) / 16 * 16
	for _, o := range x.out(k) {
		if x.stays(o) {
			continue
		}
		if err := s.Copy(unsafe.Add(p.mem, p.scratch()+o.slot*stride), o.at, o.n*size); err != nil {
			return err
		}
	}
	if err := p.barrier(s); err != nil {
		return err
	}
	for _, i := range x.in(k) {
		var err error
		if offset := p.scratch() + i.slot*stride; x.isReduction() {
			err = p.k.foldOn(s, i.at, p.win.table, offset, i.n, x.t, x.op, p.c.size)
		} else if i.peer != p.c.rank {
			err = s.Copy(i.at, unsafe.Add(p.win.base[i.peer], offset), i.n*size)
		}
		if err != nil {
			return err
		}
	}
	return p.barrier(s)
}
