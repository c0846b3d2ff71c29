package peer

import (
	_ "embed"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

//go:embed peers.cu
var peersSource string

// kernels are the kernels of peers.cu on a device.
type kernels struct {
	*Module
	barrier, peerAllReduce               *cuda.Function
	smallSum, smallReduction, smallMoves *cuda.Function
	exchange, listMessages               *cuda.Function
}

// Threads of the blocks that the kernels are launched with: their launch bounds.
const (
	barrierThreads   = 32
	smallThreads     = smallBlock / 16
	allReduceThreads = 512
	listThreads      = manyMessages
)

// The constants of peers.cu.
const (
	peerRanks  = 16
	smallBlock = 2 << 10   // bytes that a block of a small collective does
	allRanks   = 1<<32 - 1 // -1 of 32 bits, instead of a rank

	fewMessages, manyMessages = 16, 128
)

var table = []Kernel{
	{Name: "peer_barrier", Threads: barrierThreads}, {Name: "peer_all_reduce", Threads: allReduceThreads},
	{Name: "small_sum", Threads: smallThreads}, {Name: "small_reduction", Threads: smallThreads},
	{Name: "small_moves", Threads: smallThreads},
	{Name: "exchange", Threads: smallThreads}, {Name: "list_messages", Threads: listThreads},
}

// loadKernels loads the kernels on all ranks. Their devices must be of one kind. Collective.
func loadKernels(c Ranks, d *cuda.Device) (*kernels, error) {
	m, err := Load(c, d, FoldSource+peersSource, table...)
	if err != nil {
		return nil, err
	}
	k := &kernels{Module: m}
	for i, f := range []**cuda.Function{&k.barrier, &k.peerAllReduce, &k.smallSum, &k.smallReduction,
		&k.smallMoves, &k.exchange, &k.listMessages} {
		*f = m.Function(table[i].Name)
	}
	return k, nil
}

func (k *kernels) close() error {
	if k == nil {
		return nil
	}
	return k.Module.Close()
}

// inboxBytes returns the size of an inbox of small collectives with messages of at most room bytes.
func inboxBytes(ranks, room int) int { return 2 * ranks * 2 * room }

// smallCall is a collective as the kernels of small ones see it (peers.cu).
type smallCall struct {
	dst, src                unsafe.Pointer
	dstStep, srcStep, bytes int
	t                       elem.Type
	op                      elem.Op
	reduces                 bool
	to, from                uint64
}

// smallOf says what the ranks send each other; not ok if parts have different lengths.
func smallOf(x *Transfer) (m smallCall, ok bool) {
	size := x.Type.Size()
	m = smallCall{dst: x.Dst, src: x.Src, bytes: x.N * size, t: x.Type, op: x.Op, reduces: x.isReduction(),
		to: allRanks, from: allRanks}
	if x.isSplit() {
		m.srcStep = m.bytes
	}
	switch x.What {
	case AllGather, Gather, AllToAll:
		m.dstStep = m.bytes
	case Broadcast, Scatter:
		m.from = uint64(x.Root)
	}
	if x.What == Reduce || x.What == Gather {
		m.to = uint64(x.Root)
	}
	return m, x.Send.Counts == nil && x.Recv.Counts == nil
}

// place is where the kernels of small collectives exchange. table is in device memory and names
// memory of each rank. The inbox, of inboxBytes(ranks, room), lies there at offset. epochs is a
// word of device memory for each block, at first 0 as the inboxes are.
type place struct {
	table, epochs unsafe.Pointer
	offset, room  int
}

// smallOn enqueues a small collective. The place has room for its longest message. If the kernel
// starts early, its few blocks wait for the work ahead of them and for no rank, so they hold up
// nothing.
func (k *kernels) smallOn(s *cuda.Stream, rank, size int, m *smallCall, at *place) error {
	f := k.smallMoves
	switch {
	case m.reduces && m.op == elem.Sum && m.t.Size() > 1:
		f = k.smallSum
	case m.reduces:
		f = k.smallReduction
	}
	args := [...]uint64{uint64(ccall.Address(m.dst)), uint64(m.dstStep), uint64(ccall.Address(m.src)),
		uint64(m.srcStep), uint64(m.bytes),
		uint64(m.t), uint64(m.op), m.to, m.from, uint64(ccall.Address(at.table)), uint64(at.offset), uint64(at.room),
		uint64(ccall.Address(at.epochs)), uint64(rank), uint64(size)}
	blocks := (m.bytes + smallBlock - 1) / smallBlock
	return s.LaunchEarly(f, [3]int{blocks, 1, 1}, [3]int{smallThreads, 1, 1}, 0, args[:])
}

// gatherer gathers host memory of the ranks.
type gatherer interface {
	Size() int
	AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error
}

// UUIDs returns the UUIDs of the ranks' devices. d is this rank's device. Collective; it blocks.
func UUIDs(c gatherer, d *cuda.Device) ([]string, error) {
	const room = 48
	all := make([][room]byte, c.Size()+1)
	copy(all[c.Size()][:], d.UUID())
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&all[c.Size()]), room, elem.Uint8); err != nil {
		return nil, err
	}
	ids := make([]string, c.Size())
	for r := range ids {
		ids[r] = strings.TrimRight(string(all[r][:]), "\x00")
	}
	return ids, nil
}
