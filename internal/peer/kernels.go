package peer

import (
	_ "embed"
	"slices"
	"strings"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/devkernel"
	"lockstep/internal/elem"
	"lockstep/internal/transfer"
)

//go:embed peers.cu
var peersSource string

// kernels are those of peers.cu on a device.
type kernels struct {
	*devkernel.Module
	barrier, peerAllReduce     *cuda.Function
	smallReduction, smallMoves *cuda.Function
	putMessage, getMessage     *cuda.Function
	exchange, listMessages     *cuda.Function
}

// Threads of the blocks that the kernels are launched with: their launch bounds.
const (
	barrierThreads   = 32
	smallThreads     = smallBlock / 16
	allReduceThreads = 512
	listThreads      = manyMessages
)

// Of peers.cu.
const (
	peerRanks  = 16
	smallMost  = 16 << 10  // bytes of a small all-reduce through host memory, or of a message
	smallBlock = 2 << 10   // those that a block does
	allRanks   = 1<<32 - 1 // -1 of 32 bits, instead of a rank

	fewMessages, manyMessages = 16, 128
)

var table = []devkernel.Kernel{
	{Name: "peer_barrier", Threads: barrierThreads}, {Name: "peer_all_reduce", Threads: allReduceThreads},
	{Name: "small_reduction", Threads: smallThreads}, {Name: "small_moves", Threads: smallThreads},
	{Name: "put_message", Threads: smallThreads}, {Name: "get_message", Threads: smallThreads},
	{Name: "exchange", Threads: smallThreads}, {Name: "list_messages", Threads: listThreads},
}

// loadKernels loads the kernels on all ranks. Their devices must be of one kind. Collective.
func loadKernels(c Ranks, d *cuda.Device) (*kernels, error) {
	m, err := devkernel.Load(c, d, devkernel.FoldSource+peersSource, table...)
	if err != nil {
		return nil, err
	}
	k := &kernels{Module: m}
	for i, f := range []**cuda.Function{&k.barrier, &k.peerAllReduce, &k.smallReduction, &k.smallMoves, &k.putMessage, &k.getMessage,
		&k.exchange, &k.listMessages} {
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

// inboxBytes is the size of an inbox of small collectives with messages of at most room bytes.
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

// smallOf says what the ranks send each other; not ok where parts are of different lengths.
func smallOf(x *transfer.Transfer) (m smallCall, ok bool) {
	size := x.Type.Size()
	m = smallCall{dst: x.Dst, src: x.Src, bytes: x.N * size, t: x.Type, op: x.Op, reduces: x.IsReduction(), to: allRanks, from: allRanks}
	if x.IsSplit() {
		m.srcStep = m.bytes
	}
	switch x.What {
	case transfer.AllGather, transfer.Gather, transfer.AllToAll:
		m.dstStep = m.bytes
	case transfer.Broadcast, transfer.Scatter:
		m.from = uint64(x.Root)
	}
	if x.What == transfer.Reduce || x.What == transfer.Gather {
		m.to = uint64(x.Root)
	}
	return m, x.Send.Counts == nil && x.Recv.Counts == nil
}

// place is where the kernels of small collectives exchange: table is in device memory and names copies places, in each of
// which the inbox, of inboxBytes(ranks, room), lies at offset; epochs is a word of device memory for each block, at first 0 as
// the inboxes are.
type place struct {
	table, epochs        unsafe.Pointer
	copies, offset, room int
}

// smallOn enqueues a small collective, of which no message is longer than the place has room for. Started early, the few
// blocks wait for the work ahead of them and for no rank: they keep nothing from coming to its end.
func (k *kernels) smallOn(s *cuda.Stream, rank, size int, m *smallCall, at *place) error {
	f := k.smallMoves
	if m.reduces {
		f = k.smallReduction
	}
	args := [...]uint64{uint64(ccall.Address(m.dst)), uint64(m.dstStep), uint64(ccall.Address(m.src)), uint64(m.srcStep), uint64(m.bytes),
		uint64(m.t), uint64(m.op), m.to, m.from, uint64(ccall.Address(at.table)), uint64(at.copies), uint64(at.offset), uint64(at.room),
		uint64(ccall.Address(at.epochs)), uint64(rank), uint64(size)}
	blocks := (m.bytes + smallBlock - 1) / smallBlock
	return s.LaunchEarly(f, [3]int{blocks, 1, 1}, [3]int{smallThreads, 1, 1}, 0, args[:])
}

// messageOn enqueues a message of at most smallMost bytes from src to a slot, or from a slot to dst.
func (k *kernels) messageOn(s *cuda.Stream, f *cuda.Function, dst, src unsafe.Pointer, bytes int, stamp uint32) error {
	args := [...]uint64{uint64(ccall.Address(dst)), uint64(ccall.Address(src)), uint64(bytes), uint64(stamp)}
	return s.Launch(f, [3]int{(bytes + smallBlock - 1) / smallBlock, 1, 1}, [3]int{smallThreads, 1, 1}, 0, args[:])
}

// gatherer gathers host memory of the ranks.
type gatherer interface {
	Size() int
	AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error
}

// UUIDs returns the UUIDs of the ranks' devices, of which d is this rank's. Collective; it blocks.
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

// apart says whether every rank has a device of its own. Kernels of ranks that share one wait for each other in turns of
// milliseconds. Collective.
func apart(c Ranks, d *cuda.Device) (bool, error) {
	ids, err := UUIDs(c, d)
	if err != nil {
		return false, err
	}
	slices.Sort(ids)
	return len(slices.Compact(ids)) == c.Size(), nil
}

// sequence puts calls that share memory of the device one after the other, on whatever streams they come.
type sequence struct {
	last *cuda.Stream
	done *cuda.Event
}

// next does fn on s after what other streams have been given. In a capture, that is up to who captures.
func (q *sequence) next(s *cuda.Stream, fn func() error) error {
	capturing, err := s.Capturing()
	if err != nil {
		return err
	}
	if capturing {
		return fn()
	}
	if q.last != nil && q.last != s {
		if err := s.Wait(q.done); err != nil {
			return err
		}
	}
	if err := fn(); err != nil {
		return err
	}
	q.last = s
	return q.done.Record(s)
}
