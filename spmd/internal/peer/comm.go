// Package peer has the kernels by which GPUs exchange data without NCCL, and loads them on all
// ranks of a communicator. NVRTC compiles them.
//
// A Clique has the GPUs of a node that reach each other's memory. It does collectives and messages
// without MPI and without the host. Others need the kernel that reduces (fold.cu).
package peer

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// The constants of peers.cu.
const (
	smallBlocks = 512
	peerBlocks  = 64                                     // that meet
	inboxOffset = 4*smallBlocks + 4*peerBlocks*peerRanks // after the epochs of the blocks and their flags
)

// peersAtOnce is the most bytes that a rank sends all others in a collective that is
// one kernel; tests lower it.
var peersAtOnce = smallBlocks * smallBlock

// peerRoom is the default of Open; tests lower it.
var peerRoom = 16 << 20

// Clique has the ranks of one node whose devices reach each other's memory. Its calls are copies
// and kernels, which the host only enqueues. All ranks make the same calls in the same order. The
// caller begins a call when the one before is over, also on another stream and in a graph. Calls
// can be captured, since the devices keep the counts that order the ranks. Ranks that bring
// different lengths wait for ever, as with NCCL.
//
// If the messages of a collective from one rank to another have up to AtOnce bytes, it is one
// kernel. In it each rank writes to all others once. Up to 16 KiB that takes about 3 us. Every
// other collective that does not reduce is messages, and these are one kernel, too.
//
// A larger all-reduce of n bytes on p ranks moves 4 n bytes in the memory of each device, and 2
// (p-1)/p n over its link in each direction. With 4 ranks, 64 MiB and 350 GB/s it takes about 0.4
// ms. Reduce and ReduceScatter are a copy to scratch memory, a barrier of the devices, sums of the
// others' scratch memory, and a barrier.
type Clique struct {
	c      Ranks
	dev    *cuda.Device
	k      *kernels
	mem    unsafe.Pointer
	room   int // of the scratch memory, which lies behind the inbox
	atOnce int
	inbox  place
	wrong  unsafe.Pointer // in host memory, four words for each rank: exchange says there what is wrong
	blocks int
	win    *Window
	x      Transfer
}

// Open allocates device memory for collectives, and opens it to all ranks. It takes room bytes for
// outgoing data and as much for incoming data (0 stands for 16 MiB), 4 to 8 MiB for small
// collectives, and 2 MiB for the messages of each rank.
//
// It fails if Share does, if the kernels cannot be compiled, and if ranks share a device: kernels
// would wait for each other in turns of milliseconds.
//
// Collective; it blocks.
func Open(c Ranks, d *cuda.Device, room int) (*Clique, error) {
	if ids, err := UUIDs(c, d); err != nil {
		return nil, err
	} else if slices.Sort(ids); len(slices.Compact(ids)) < c.Size() {
		return nil, errors.New("peer: ranks share a device")
	}
	return open(c, d, room)
}

func open(c Ranks, d *cuda.Device, room int) (_ *Clique, err error) {
	if c.Size() > peerRanks {
		return nil, fmt.Errorf("peer: %d ranks, at most %d reach each other's memory", c.Size(), peerRanks)
	}
	if room <= 0 {
		room = peerRoom
	}
	p := &Clique{c: c, dev: d, room: (room + 4095) / 4096 * 4096}
	most := smallBlocks * smallBlock / max(1, c.Size()-1) / smallBlock * smallBlock
	p.atOnce = min(most, peersAtOnce/max(1, c.Size()-1))
	p.inbox = place{offset: inboxOffset, room: most}
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

// lanes is where the memory for messages begins, list where that for their list in a collective
// does, and scratch where the scratch memory does.
func (p *Clique) lanes() int   { return inboxOffset + inboxBytes(p.c.Size(), p.inbox.room) }
func (p *Clique) list() int    { return p.lanes() + lanesBytes(p.c.Size()) }
func (p *Clique) scratch() int { return p.list() + ListBytes(2*peerRanks) }

// AtOnce returns the most bytes of a message from one rank to another in a collective that is one
// kernel: 1 MiB of 2 ranks, and 1 MiB / (p - 1) of p, in whole 2 KiB. From half of that on the
// messages of Exchange are faster than a gather or a scatter.
func (p *Clique) AtOnce(what Pattern) int {
	if what == Gather || what == Scatter {
		return p.atOnce / 2
	}
	return p.atOnce
}

func (p *Clique) alloc() (err error) {
	if p.mem, err = p.dev.Malloc(p.scratch() + 2*p.room); err != nil {
		return err
	}
	if p.wrong, err = p.dev.MallocHost(wrongBytes * p.c.Size()); err != nil {
		return err
	}
	clear(p.complaints())
	return onStream(p.dev, func(s *cuda.Stream) error { return s.Fill(p.mem, 4, 0, p.scratch()/4) })
}

func (p *Clique) free() error {
	err := errors.Join(p.dev.Free(p.mem), p.dev.FreeHost(p.wrong), p.k.close())
	p.mem, p.wrong, p.k = nil, nil, nil
	return err
}

// Close gives the memory back; a second Close does nothing. Collective; it blocks. Work of this
// rank must have finished, and no graph that holds calls may be launched any more.
func (p *Clique) Close() error {
	if p.mem == nil {
		return nil
	}
	return errors.Join(p.win.Close(), p.free())
}

// Barrier enqueues on s a wait of the device until all ranks have come to it.
func (p *Clique) Barrier(s *cuda.Stream) error {
	args := [...]uint64{p.table(), uint64(p.c.Rank()), uint64(p.c.Size())}
	return s.Launch(p.k.barrier, [3]int{1, 1, 1}, [3]int{barrierThreads, 1, 1}, 0, args[:])
}

func (p *Clique) table() uint64 { return uint64(ccall.Address(p.win.table)) }

func (p *Clique) Do(s *cuda.Stream, call Transfer) error {
	call.pieces = p.x.pieces
	p.x = call
	x := &p.x
	x.rank, x.size = p.c.Rank(), p.c.Size()
	switch m, ok := smallOf(x); {
	case ok && x.N == 0:
		return nil
	case ok && m.bytes <= p.AtOnce(x.What):
		return p.k.smallOn(s, x.rank, x.size, &m, &p.inbox)
	case x.What == AllReduce:
		return p.allReduce(x, s)
	case !x.isReduction():
		return p.exchangeParts(x, s)
	case x.size == 1:
		return x.keep(s)
	}
	x.cut(p.room)
	for k := range x.steps() {
		if err := p.step(x, k, s); err != nil {
			return err
		}
	}
	return nil
}

// allReduce makes an all-reduce that is not small, as far as the scratch memory goes at a time.
func (p *Clique) allReduce(x *Transfer, s *cuda.Stream) error {
	const each = 16 * allReduceThreads
	limit := p.room / x.Type.Size()
	for lo := 0; lo < x.N; lo += limit {
		bytes := min(limit, x.N-lo) * x.Type.Size()
		dst, src := elem.At(x.Dst, lo, x.N-lo, x.Type), elem.At(x.Src, lo, x.N-lo, x.Type)
		args := [...]uint64{uint64(ccall.Address(dst)), uint64(ccall.Address(src)), uint64(bytes), uint64(x.Type),
			uint64(x.Op), p.table(), uint64(p.c.Rank()), uint64(p.c.Size()), uint64(p.scratch()), uint64(p.room)}
		blocks := min(p.blocks, (bytes/p.c.Size()+each-1)/each)
		err := s.Launch(p.k.peerAllReduce, [3]int{max(blocks, 1), 1, 1}, [3]int{allReduceThreads, 1, 1}, 0, args[:])
		if err != nil {
			return err
		}
	}
	return nil
}

// step makes one step of a reduction to one rank, or of a part to each.
func (p *Clique) step(x *Transfer, k int, s *cuda.Stream) error {
	size := x.Type.Size()
	stride := (x.window*size + 15) / 16 * 16
	for _, o := range x.out(k) {
		if err := s.Copy(unsafe.Add(p.mem, p.scratch()+o.Slot*stride), o.At, o.N*size); err != nil {
			return err
		}
	}
	if err := p.Barrier(s); err != nil {
		return err
	}
	for _, i := range x.in(k) {
		offset := p.scratch() + i.Slot*stride
		if err := p.k.Fold(s, i.At, p.win.table, offset, i.N, x.Type, x.Op, p.c.Size()); err != nil {
			return err
		}
	}
	return p.Barrier(s)
}
