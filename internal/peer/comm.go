// Package peer has the kernels by which the GPUs of a node exchange data, and opens to them the memory that they exchange it
// in: that of the other GPUs, where they reach it, else that of the host. A Comm does collectives and messages between GPUs that
// reach each other, without MPI. OnDevice makes a cudampi.DeviceComm that does without MPI on one node.
package peer

import (
	"errors"
	"fmt"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/transfer"
)

// Of peers.cu.
const (
	smallBlocks = 256
	peerBlocks  = 64                                     // that meet
	inboxOffset = 4*smallBlocks + 4*peerBlocks*peerRanks // after the epochs of the blocks and their flags
)

// peersAtOnce is the most bytes that a rank sends all others in a collective that is one kernel; tests lower it.
var peersAtOnce = smallBlocks * smallBlock

// peerRoom is the default of Open; tests lower it.
var peerRoom = 16 << 20

// Comm is ranks on one node whose devices reach each other's memory. Its calls are copies and kernels, which the host only
// enqueues. All ranks make the same calls in the same order. A call begins when the one before is over, also on another
// stream. In a graph the caller sees to that. Calls can be captured, since the devices themselves count what orders the ranks.
// Ranks that bring different lengths wait for ever, as with NCCL.
//
// A collective whose messages from one rank to another have up to AtOnce bytes is one kernel, in which each rank writes to all
// others once. Up to 16 KiB that takes about 3 us. A collective whose parts have different lengths is messages, and these are
// one kernel, too. A larger all-reduce of n bytes on p ranks moves 4 n bytes in the memory of each device, and 2 (p-1)/p n over
// its link in each direction: with 4 ranks, 64 MiB and 350 GB/s it takes about 0.4 ms. Each other collective is a copy to
// scratch memory, a barrier of the devices, copies from the others' scratch memory, and a barrier.
type Comm struct {
	// Ordered says that the caller has all calls follow each other, also those on different streams and in graphs. Then no
	// event is recorded after a call for the next one.
	Ordered bool

	c      Ranks
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
	x      transfer.Transfer
}

// Open allocates device memory for collectives, and opens it to all ranks: room bytes for what goes out and as much for what
// comes in (0 stands for 16 MiB), 2 to 4 MiB for small collectives, and 2 MiB for the messages of each rank. It fails where Share
// does, and where the kernels cannot be compiled.
//
// Collective; it blocks.
func Open(c Ranks, d *cuda.Device, room int) (*Comm, error) {
	if c.Size() > peerRanks {
		return nil, fmt.Errorf("peer: %d ranks, at most %d reach each other's memory", c.Size(), peerRanks)
	}
	if room <= 0 {
		room = peerRoom
	}
	apart, err := apart(c, d)
	if err != nil {
		return nil, err
	}
	p := &Comm{c: c, dev: d, apart: apart, room: (room + 4095) / 4096 * 4096}
	most := smallBlocks * smallBlock / max(1, c.Size()-1) / smallBlock * smallBlock
	p.atOnce = min(most, peersAtOnce/max(1, c.Size()-1))
	p.inbox = place{copies: c.Size(), offset: inboxOffset, room: most}
	blocks := new(int64)
	*blocks = int64(min(peerBlocks, d.Multiprocessors()))
	if err := c.AllReduce(unsafe.Pointer(blocks), unsafe.Pointer(blocks), 1, elem.Int64, elem.Min); err != nil {
		return nil, err
	}
	p.blocks = int(*blocks)
	if err := c.FirstFailure(p.alloc()); err != nil {
		return nil, errors.Join(err, p.free())
	}
	if p.win, err = Share(c, d, p.mem, p.scratch()+2*p.room); err != nil {
		return nil, errors.Join(err, p.free())
	}
	if p.k, err = loadKernels(c, d); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.inbox.table, p.inbox.epochs = p.win.table, p.mem
	return p, nil
}

// lanes is where the memory for messages begins, scratch where the scratch memory does.
func (p *Comm) lanes() int   { return inboxOffset + inboxBytes(p.c.Size(), p.inbox.room) }
func (p *Comm) scratch() int { return p.lanes() + lanesBytes(p.c.Size()) }

// AtOnce is the most bytes of a message from one rank to another in a collective that is one kernel: 512 KiB of 2 ranks,
// and 512 KiB / (p - 1) of p, in whole 2 KiB.
func (p *Comm) AtOnce() int { return p.atOnce }

func (p *Comm) alloc() (err error) {
	if p.mem, err = p.dev.Malloc(p.scratch() + 2*p.room); err != nil {
		return err
	}
	if p.wrong, err = p.dev.MallocHost(wrongBytes * p.c.Size()); err != nil {
		return err
	}
	clear(p.complaints())
	if p.order.done, err = p.dev.NewEvent(false); err != nil {
		return err
	}
	return onStream(p.dev, func(s *cuda.Stream) error { return s.Fill(p.mem, 4, 0, p.scratch()/4) })
}

func (p *Comm) free() error {
	err := errors.Join(p.dev.Free(p.mem), p.dev.FreeHost(p.wrong), p.k.close())
	if p.order.done != nil {
		err = errors.Join(err, p.order.done.Close())
	}
	p.mem, p.wrong, p.k, p.order = nil, nil, nil, sequence{}
	return err
}

// Close gives the memory back; a second Close does nothing. Collective; it blocks. Work of this rank must have finished,
// and no graph that holds calls may be launched any more.
func (p *Comm) Close() error {
	if p.mem == nil {
		return nil
	}
	return errors.Join(p.win.Close(), p.free())
}

// Barrier enqueues on s a wait of the device until all ranks have come to it.
func (p *Comm) Barrier(s *cuda.Stream) error {
	return p.next(s, func() error { return p.barrier(s) })
}

func (p *Comm) barrier(s *cuda.Stream) error {
	args := [...]uint64{p.table(), uint64(p.c.Rank()), uint64(p.c.Size())}
	return s.Launch(p.k.barrier, [3]int{1, 1, 1}, [3]int{barrierThreads, 1, 1}, 0, args[:])
}

// next does fn on s after the call before.
func (p *Comm) next(s *cuda.Stream, fn func() error) error {
	if p.Ordered {
		return fn()
	}
	return p.order.next(s, fn)
}

func (p *Comm) table() uint64 { return uint64(ccall.Address(p.win.table)) }

// AllReduce enqueues on s what cudampi.Comm.AllReduce does, on device memory, as the others do. In place: dst is src.
func (p *Comm) AllReduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return p.do(s, p.x.Whole(p.c, transfer.AllReduce, dst, src, n, t, op, 0))
}

// Reduce is AllReduce with the result on root alone.
func (p *Comm) Reduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	return p.do(s, p.x.Whole(p.c, transfer.Reduce, dst, src, n, t, op, root))
}

// Broadcast copies n elements of root's buf to buf of every rank.
func (p *Comm) Broadcast(s *cuda.Stream, buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return p.do(s, p.x.Whole(p.c, transfer.Broadcast, buf, buf, n, t, 0, root))
}

// AllGather copies the n elements of src of every rank r to dst[r*n:]. In place: src is dst[rank*n:].
func (p *Comm) AllGather(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return p.do(s, p.x.InParts(p.c, transfer.AllGather, dst, src, transfer.Parts{}, transfer.Parts{Each: n}, t, 0, 0))
}

// AllGatherV is AllGather of counts[r] elements of rank r. counts is the same on every rank.
func (p *Comm) AllGatherV(s *cuda.Stream, dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	return p.do(s, p.x.InParts(p.c, transfer.AllGather, dst, src, transfer.Parts{}, transfer.Parts{Counts: counts}, t, 0, 0))
}

// Gather is AllGather with the result on root alone.
func (p *Comm) Gather(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return p.do(s, p.x.InParts(p.c, transfer.Gather, dst, src, transfer.Parts{}, transfer.Parts{Each: n}, t, 0, root))
}

// GatherV is AllGatherV with the result on root alone.
func (p *Comm) GatherV(s *cuda.Stream, dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return p.do(s, p.x.InParts(p.c, transfer.Gather, dst, src, transfer.Parts{}, transfer.Parts{Counts: counts}, t, 0, root))
}

// ReduceScatter leaves in dst of rank r the n elements src[r*n:], reduced over all ranks. In place: dst is src[rank*n:].
func (p *Comm) ReduceScatter(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return p.do(s, p.x.InParts(p.c, transfer.ReduceScatter, dst, src, transfer.Parts{Each: n}, transfer.Parts{}, t, op, 0))
}

// ReduceScatterV is ReduceScatter of counts[r] elements for rank r. counts is the same on every rank.
func (p *Comm) ReduceScatterV(s *cuda.Stream, dst, src unsafe.Pointer, counts []int, t elem.Type, op elem.Op) error {
	return p.do(s, p.x.InParts(p.c, transfer.ReduceScatter, dst, src, transfer.Parts{Counts: counts}, transfer.Parts{}, t, op, 0))
}

// Scatter copies the n elements src[r*n:] of root to dst of rank r. In place on root: dst is src[root*n:].
func (p *Comm) Scatter(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return p.do(s, p.x.InParts(p.c, transfer.Scatter, dst, src, transfer.Parts{Each: n}, transfer.Parts{}, t, 0, root))
}

// ScatterV is Scatter of counts[r] elements to rank r. counts is the same on every rank.
func (p *Comm) ScatterV(s *cuda.Stream, dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return p.do(s, p.x.InParts(p.c, transfer.Scatter, dst, src, transfer.Parts{Counts: counts}, transfer.Parts{}, t, 0, root))
}

// AllToAll copies the n elements src[q*n:] of rank r to dst[r*n:] of rank q. In place: dst is src.
func (p *Comm) AllToAll(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return p.do(s, p.x.InParts(p.c, transfer.AllToAll, dst, src, transfer.Parts{Each: n}, transfer.Parts{Each: n}, t, 0, 0))
}

func (p *Comm) do(s *cuda.Stream, err error) error {
	if err != nil {
		return err
	}
	return p.carryOut(&p.x, s)
}

// carryOut enqueues a transfer on s.
func (p *Comm) carryOut(x *transfer.Transfer, s *cuda.Stream) error {
	switch m, ok := smallOf(x); {
	case ok && x.N == 0:
		return nil
	case ok && m.bytes <= p.atOnce:
		return p.next(s, func() error { return p.k.smallOn(s, p.c.Rank(), p.c.Size(), &m, &p.inbox) })
	case x.What == transfer.AllReduce:
		return p.next(s, func() error { return p.allReduce(x, s) })
	case !ok && x.What != transfer.AllToAll && !x.IsReduction() && p.apart && x.N*x.Type.Size() <= p.atOnce:
		return p.next(s, func() error { return p.exchangeParts(x, s) })
	}
	if x.What == transfer.AllToAll && x.Recv.Counts != nil { // only here the ranks do not know each other's counts
		n := new(int64)
		*n = int64(x.N)
		if err := p.c.AllReduce(unsafe.Pointer(n), unsafe.Pointer(n), 1, elem.Int64, elem.Max); err != nil {
			return err
		}
		x.N = int(*n)
	}
	return p.next(s, func() error {
		if err := x.Keep(s); err != nil {
			return err
		}
		x.Cut(p.room, false)
		for k := range x.Steps() {
			if err := p.step(x, k, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// allReduce is an all-reduce that is not small, as far as the scratch memory goes at a time.
func (p *Comm) allReduce(x *transfer.Transfer, s *cuda.Stream) error {
	const each = 16 * allReduceThreads
	limit := p.room / x.Type.Size()
	for lo := 0; lo < x.N; lo += limit {
		bytes := min(limit, x.N-lo) * x.Type.Size()
		dst, src := elem.At(x.Dst, lo, x.N-lo, x.Type), elem.At(x.Src, lo, x.N-lo, x.Type)
		args := [...]uint64{uint64(ccall.Address(dst)), uint64(ccall.Address(src)), uint64(bytes), uint64(x.Type), uint64(x.Op), p.table(),
			uint64(p.c.Rank()), uint64(p.c.Size()), uint64(p.scratch()), uint64(p.room)}
		blocks := min(p.blocks, (bytes/p.c.Size()+each-1)/each)
		if err := s.Launch(p.k.peerAllReduce, [3]int{max(blocks, 1), 1, 1}, [3]int{allReduceThreads, 1, 1}, 0, args[:]); err != nil {
			return err
		}
	}
	return nil
}

func (p *Comm) step(x *transfer.Transfer, k int, s *cuda.Stream) error {
	size := x.Type.Size()
	stride := (x.Window*size + 15) / 16 * 16
	for _, o := range x.Out(k) {
		if x.Stays(o) {
			continue
		}
		if err := s.Copy(unsafe.Add(p.mem, p.scratch()+o.Slot*stride), o.At, o.N*size); err != nil {
			return err
		}
	}
	if err := p.barrier(s); err != nil {
		return err
	}
	for _, i := range x.In(k) {
		var err error
		if offset := p.scratch() + i.Slot*stride; x.IsReduction() {
			err = p.k.Fold(s, i.At, p.win.table, offset, i.N, x.Type, x.Op, p.c.Size())
		} else if i.Peer != p.c.Rank() {
			err = s.Copy(i.At, unsafe.Add(p.win.base[i.Peer], offset), i.N*size)
		}
		if err != nil {
			return err
		}
	}
	return p.barrier(s)
}
