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
	if err := node.Free(); err != nil {
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
	if err := c.sameOnAll(err); err != nil {
		return nil, err
	}
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(mine), int(unsafe.Sizeof(*mine)), elem.Uint8); err != nil {
		return nil, err
	}
	if err := c.sameOnAll(w.open(mem, all)); err != nil {
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

// Of device.cu.
const (
	peerBlocks  = 64
	inboxOffset = 4*peerBlocks + 4*peerBlocks*peerRanks // after the epochs of the blocks and their flags
)

// PeersAtOnce is the most bytes of an all-reduce of Peers that is one kernel, in which each rank writes to all others.
const PeersAtOnce = peerBlocks * smallBlock

var (
	peersAtOnce  = PeersAtOnce // tests lower it
	controlBytes = inboxOffset + inboxBytes(PeersAtOnce)
)

// peerRoom is the default of OpenPeers; tests lower it.
var peerRoom = 16 << 20

// Peers are the ranks of a Comm on one node whose devices reach each other's memory: collectives by copies and kernels
// that the host only enqueues. Calls follow each other in the order of their streams, the same on every rank, and nothing
// of one begins before the one before is over. AllReduce and Barrier may be captured in a graph: what orders the ranks is
// counted on the devices. Ranks that bring other lengths than the others wait for ever, as with NCCL.
//
// An all-reduce of up to PeersAtOnce bytes is one kernel in which each rank writes to all others once: up to 16 KiB about 4 us. A larger one takes 4 n bytes of each device's memory and 2 (p-1)/p n of its link in each direction, twice: with 4 ranks,
// 64 MiB and 350 GB/s about 0.4 ms. Of the others each is a copy to scratch memory, a meeting, copies from the others'
// scratch memory, and a meeting.
type Peers struct {
	c      *Comm
	dev    *cuda.Device
	k      *kernels
	mem    unsafe.Pointer
	room   int
	blocks int
	win    *Window
	order  sequence
}

// OpenPeers allocates device memory for collectives between the devices, room bytes for what goes out and as much for
// what comes in (0 stands for 16 MiB), and opens it to all. It fails where Share does, or where the kernels cannot be
// compiled. Collective; it blocks.
func (c *Comm) OpenPeers(d *cuda.Device, room int) (*Peers, error) {
	if c.size > peerRanks {
		return nil, fmt.Errorf("cudampi: %d ranks, at most %d reach each other's memory", c.size, peerRanks)
	}
	if room <= 0 {
		room = peerRoom
	}
	p := &Peers{c: c, dev: d, room: (room + 4095) / 4096 * 4096}
	blocks := new(int64)
	*blocks = int64(min(peerBlocks, d.Multiprocessors()))
	if err := c.AllReduce(unsafe.Pointer(blocks), unsafe.Pointer(blocks), 1, elem.Int64, elem.Min); err != nil {
		return nil, err
	}
	p.blocks = int(*blocks)
	err := p.alloc()
	if err := c.sameOnAll(err); err != nil {
		return nil, errors.Join(err, p.free())
	}
	if p.win, err = c.Share(d, p.mem, controlBytes+2*p.room); err != nil {
		return nil, errors.Join(err, p.free())
	}
	if p.k, err = c.loadKernels(d); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Peers) alloc() (err error) {
	if p.mem, err = p.dev.Malloc(controlBytes + 2*p.room); err != nil {
		return err
	}
	if p.order.done, err = p.dev.NewEvent(false); err != nil {
		return err
	}
	return onStream(p.dev, func(s *cuda.Stream) error { return s.Fill(p.mem, 4, 0, controlBytes/4) })
}

func (p *Peers) free() error {
	err := errors.Join(p.dev.Free(p.mem), p.k.close())
	if p.order.done != nil {
		err = errors.Join(err, p.order.done.Close())
	}
	p.mem, p.k, p.order = nil, nil, sequence{}
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
	return p.order.next(s, func() error { return p.barrier(s) })
}

func (p *Peers) barrier(s *cuda.Stream) error {
	args := [...]uint64{p.table(), uint64(p.c.rank), uint64(p.c.size)}
	return s.Launch(p.k.barrier, [3]int{1, 1, 1}, [3]int{barrierThreads, 1, 1}, 0, args[:])
}

func (p *Peers) table() uint64 { return uint64(uintptr(p.win.table)) }

// AllReduce enqueues on s what Comm.AllReduce does, on device memory. In place: dst is src.
func (p *Peers) AllReduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	const name = "AllReduce"
	if err := p.c.ready(name, n, t, dst, src); err != nil {
		return err
	}
	if err := p.c.checkOp(name, op); err != nil {
		return err
	}
	return p.order.next(s, func() error {
		limit := p.room / t.Size()
		for lo := 0; lo < n; lo += limit {
			if err := p.allReduce(s, at(dst, lo, t), at(src, lo, t), min(limit, n-lo), t, op); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *Peers) allReduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	bytes := n * t.Size()
	if bytes <= peersAtOnce {
		return p.k.smallOn(s, p.c.rank, p.c.size, dst, src, n, t, op, p.win.table, p.c.size, inboxOffset, PeersAtOnce, p.mem)
	}
	args := [...]uint64{uint64(uintptr(dst)), uint64(uintptr(src)), uint64(bytes), uint64(t), uint64(op), p.table(),
		uint64(p.c.rank), uint64(p.c.size), uint64(controlBytes), uint64(p.room)}
	const each = 16 * allReduceThreads
	blocks := min(p.blocks, (bytes/p.c.size+each-1)/each)
	return s.Launch(p.k.peerAllReduce, [3]int{max(blocks, 1), 1, 1}, [3]int{allReduceThreads, 1, 1}, 0, args[:])
}

// carryOut enqueues a transfer on s.
func (p *Peers) carryOut(x *transfer, s *cuda.Stream) error {
	if x.what == allReduce {
		return p.AllReduce(s, x.dst, x.src, x.n, x.t, x.op)
	}
	if x.what == allToAll && x.recv.counts != nil { // only here the ranks do not know each other's counts
		n := new(int64)
		*n = int64(x.n)
		if err := p.c.AllReduce(unsafe.Pointer(n), unsafe.Pointer(n), 1, elem.Int64, elem.Max); err != nil {
			return err
		}
		x.n = int(*n)
	}
	return p.order.next(s, func() error {
		x.cut(p.room, false)
		for k := range x.steps() {
			if err := p.step(x, k, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *Peers) step(x *transfer, k int, s *cuda.Stream) error {
	size := x.t.Size()
	stride := (x.window*size + 15) / 16 * 16
	for _, o := range x.out(k) {
		if x.stays(o) {
			continue
		}
		if err := s.Copy(unsafe.Add(p.mem, controlBytes+o.slot*stride), o.at, o.n*size); err != nil {
			return err
		}
	}
	if err := p.barrier(s); err != nil {
		return err
	}
	for _, i := range x.in(k) {
		var err error
		if offset := controlBytes + i.slot*stride; x.isReduction() {
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
