package cudampi

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cuda/nvrtc"
	"lockstep/internal/elem"
)

var (
	//go:embed device.cu
	deviceSource string
	//go:embed peers.cu
	peersSource  string
	kernelSource = deviceSource + peersSource
)

// kernels are those of device.cu and peers.cu on a device.
type kernels struct {
	dev                          *cuda.Device
	users                        int
	module                       *cuda.Module
	fold, barrier, peerAllReduce *cuda.Function
	smallReduction, smallMoves   *cuda.Function
	putMessage, getMessage       *cuda.Function
	exchange, listMessages       *cuda.Function
}

// Threads of the blocks that the kernels are launched with: their launch bounds.
const (
	foldThreads      = 256
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

// inboxBytes is the size of an inbox of small collectives with messages of at most room bytes.
func inboxBytes(ranks, room int) int { return 2 * ranks * 2 * room }

// compile is what makes an image of the source; a test that has no compiler sets another.
var compile = func(capability int) ([]byte, error) {
	image, _, err := nvrtc.DefaultCache().Compile("device.cu", kernelSource, nvrtc.Options{Capability: capability})
	return image, err
}

// loaded are the kernels of each device that are in use: they stay until the last user closes them.
var loaded struct {
	sync.Mutex
	on map[*cuda.Device]*kernels
}

// loadedOn returns the kernels that are loaded, for one user more; nil where there are none.
func loadedOn(d *cuda.Device) *kernels {
	loaded.Lock()
	defer loaded.Unlock()
	k := loaded.on[d]
	if k != nil {
		k.users++
	}
	return k
}

// loadKernels loads the kernels on all ranks that do not have them. Their devices must be of one kind. Collective.
func (c *Comm) loadKernels(d *cuda.Device) (*kernels, error) {
	k := loadedOn(d)
	major, minor := d.Capability()
	kind := int64(10*major + minor)
	said := &[3]int64{kind, -kind}
	if k == nil {
		said[2] = 1 // it is to be loaded
	}
	err := c.AllReduce(unsafe.Pointer(said), unsafe.Pointer(said), len(said), elem.Int64, elem.Max)
	if err == nil && said[0] != -said[1] {
		err = fmt.Errorf("devices of compute capability %d and %d in one communicator", -said[1], said[0])
	}
	if err == nil && said[2] != 0 {
		k, err = c.loadImage(d, k)
	}
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

// loadImage compiles on rank 0, or finds the image on disk, and loads it where k is nil. Collective.
func (c *Comm) loadImage(d *cuda.Device, k *kernels) (*kernels, error) {
	var image []byte
	var err error
	if c.rank == 0 {
		major, minor := d.Capability()
		image, err = compile(10*major + minor)
	}
	length := new(int64)
	*length = int64(len(image))
	if err := c.Broadcast(unsafe.Pointer(length), 1, elem.Int64, 0); err != nil {
		return k, err
	}
	if *length == 0 {
		return k, c.FirstFailure(err)
	}
	if c.rank != 0 {
		image = make([]byte, *length)
	}
	if err := c.Broadcast(unsafe.Pointer(&image[0]), len(image), elem.Uint8, 0); err != nil {
		return k, err
	}
	if k == nil {
		k, err = newKernels(d, image)
	}
	return k, c.FirstFailure(err)
}

// newKernels returns what has to be closed, also with an error.
func newKernels(d *cuda.Device, image []byte) (k *kernels, err error) {
	k = &kernels{dev: d, users: 1}
	if k.module, err = d.LoadModule(image); err != nil {
		return k, err
	}
	for _, f := range k.table() {
		if *f.at, err = k.module.Function(f.name); err != nil {
			return k, err
		}
		if err := (*f.at).Load(); err != nil { // not in the first call, which may be captured
			return k, err
		}
		most, err := (*f.at).MaxThreads()
		if err != nil {
			return k, err
		}
		if most < f.threads {
			return k, fmt.Errorf("cudampi: kernel %s was compiled for blocks of at most %d threads, and %d are needed", f.name, most, f.threads)
		}
	}
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.on == nil {
		loaded.on = make(map[*cuda.Device]*kernels)
	}
	loaded.on[d] = k
	return k, nil
}

// entry is a kernel by its name, and the threads of its blocks.
type entry struct {
	at      **cuda.Function
	name    string
	threads int
}

func (k *kernels) table() []entry {
	return []entry{{&k.fold, "fold", foldThreads}, {&k.barrier, "peer_barrier", barrierThreads},
		{&k.smallReduction, "small_reduction", smallThreads}, {&k.smallMoves, "small_moves", smallThreads},
		{&k.peerAllReduce, "peer_all_reduce", allReduceThreads},
		{&k.putMessage, "put_message", smallThreads}, {&k.getMessage, "get_message", smallThreads},
		{&k.exchange, "exchange", smallThreads}, {&k.listMessages, "list_messages", listThreads}}
}

// close ends one use. The last one unloads the kernels.
func (k *kernels) close() error {
	if k == nil {
		return nil
	}
	loaded.Lock()
	k.users--
	last := k.users == 0
	if last && loaded.on[k.dev] == k {
		delete(loaded.on, k.dev)
	}
	loaded.Unlock()
	if !last || k.module == nil {
		return nil
	}
	return k.module.Close()
}

// foldGrid is a grid whose threads loop over bytes, 16 at a time.
func foldGrid(bytes int) (blocks, threads [3]int) {
	const each = 16 * foldThreads
	return [3]int{min((bytes+each-1)/each, 1024), 1, 1}, [3]int{foldThreads, 1, 1}
}

// foldOn enqueues dst = op over the ranks r of the n elements at table[r] + offset bytes. table is in device memory; what
// it names, and offset, are aligned to 16 bytes.
func (k *kernels) foldOn(s *cuda.Stream, dst, table unsafe.Pointer, offset, n int, t elem.Type, op elem.Op, size int) error {
	if n == 0 {
		return nil
	}
	blocks, threads := foldGrid(n * t.Size())
	args := [...]uint64{uint64(uintptr(dst)), uint64(uintptr(table)), uint64(offset), uint64(n * t.Size()), uint64(t), uint64(op), uint64(size)}
	return s.Launch(k.fold, blocks, threads, 0, args[:])
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
	args := [...]uint64{uint64(uintptr(m.dst)), uint64(m.dstStep), uint64(uintptr(m.src)), uint64(m.srcStep), uint64(m.bytes),
		uint64(m.t), uint64(m.op), m.to, m.from, uint64(uintptr(at.table)), uint64(at.copies), uint64(at.offset), uint64(at.room),
		uint64(uintptr(at.epochs)), uint64(rank), uint64(size)}
	blocks := (m.bytes + smallBlock - 1) / smallBlock
	return s.LaunchEarly(f, [3]int{blocks, 1, 1}, [3]int{smallThreads, 1, 1}, 0, args[:])
}

// messageOn enqueues a message of at most smallMost bytes from src to a slot, or from a slot to dst.
func (k *kernels) messageOn(s *cuda.Stream, f *cuda.Function, dst, src unsafe.Pointer, bytes int, stamp uint32) error {
	args := [...]uint64{uint64(uintptr(dst)), uint64(uintptr(src)), uint64(bytes), uint64(stamp)}
	return s.Launch(f, [3]int{(bytes + smallBlock - 1) / smallBlock, 1, 1}, [3]int{smallThreads, 1, 1}, 0, args[:])
}

// UUIDs returns the UUIDs of the ranks' devices, of which d is this rank's. Collective; it blocks.
func (c *Comm) UUIDs(d *cuda.Device) ([]string, error) {
	const room = 48
	all := make([][room]byte, c.size+1)
	copy(all[c.size][:], d.UUID())
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&all[c.size]), room, elem.Uint8); err != nil {
		return nil, err
	}
	ids := make([]string, c.size)
	for r := range ids {
		ids[r] = strings.TrimRight(string(all[r][:]), "\x00")
	}
	return ids, nil
}

// apart says whether every rank has a device of its own. Kernels of ranks that share one wait for each other in turns of
// milliseconds. Collective.
func (c *Comm) apart(d *cuda.Device) (bool, error) {
	ids, err := c.UUIDs(d)
	if err != nil {
		return false, err
	}
	slices.Sort(ids)
	return len(slices.Compact(ids)) == c.size, nil
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
