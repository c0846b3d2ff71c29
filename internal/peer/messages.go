package peer

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/shm"
	"lockstep/internal/transfer"
)

// rings carries messages of device memory between ranks of one node, without MPI. From each rank to each there is a ring of
// slots in memory that both devices reach: memory of the receiver's device, or pinned host memory. The sender's device copies
// a chunk into one slot, while the receiver's device copies the chunk before out of another. So a long message takes as long
// as one copy over the link, or over the bus. Two counters in shared memory tell the hosts what to enqueue next. Only its own
// device touches the user's memory, which may therefore be of any kind, and be freed at any time.
//
// A small message goes by two kernels, where kernels could be loaded, through slots of its own. The receiver's kernel waits
// for what the sender's kernel writes, so no host waits for a copy. It is launched after the sender's. So whatever a kernel
// waits for has been enqueued before it, and no two streams can wait for each other.
//
// All rings go on independently: no message holds up another. A message that fits the slots leaves the sender before the
// receiver asks for it.
type rings struct {
	c     *shm.Comm
	dev   *cuda.Device
	k     *kernels       // nil where small messages go as long ones do
	mem   []byte         // the words of all rings; and their slots, if these are host memory
	fixed bool           // mem is pinned
	room  unsafe.Pointer // the slots to this rank, if they are device memory
	win   *Window        // on the rooms of all ranks
	slot  int            // bytes of a slot
	own   int            // bytes of a slot from a rank to itself
	least int            // the least bytes of a chunk of a long message
	all   []ring         // from this rank to rank r at 2*r, and from that rank to this one after it
	busy  []*ring
}

const ringSlots = 4

// ringShape is the bytes of a rank's slots to the others, the most of a slot, those of a slot to the rank itself, and the least
// of a chunk. Tests lower them.
type ringShape struct{ room, slot, own, least int }

var (
	hostRings   = ringShape{16 << 20, 2 << 20, 256 << 10, 256 << 10}
	deviceRings = ringShape{64 << 20, 8 << 20, 1 << 20, 1 << 20}

	smallMessage = smallMost // bytes; tests lower it, too
)

// ring is one end of a ring. Counters count chunks, since the start.
type ring struct {
	words *ringWords
	slots unsafe.Pointer
	slot  int
	small unsafe.Pointer // the slots of small messages
	peer  int
	recv  bool
	ready [ringSlots]*cuda.Event // the last copy from or to the slot; nil before the first message
	begun uint64                 // chunks whose copies are enqueued
	over  uint64                 // chunks of which the other end has been told
	loose [ringSlots]bool        // the other end was told before the copy was over
	queue []cudampi.Message
	next  int // in queue
	// Of the message at hand:
	total  int // bytes, as the sender says; -1 before the first chunk
	chunk  int
	copies int // chunks whose copies are enqueued
	ended  int // and are over
}

// ringWords is what the ends of a ring tell each other. Each word has a cache line of its own.
type ringWords struct {
	sent  atomic.Uint64
	_     [56]byte
	taken atomic.Uint64
	_     [56]byte
	total [ringSlots]int64 // bytes of the message that a chunk belongs to, written before sent
}

const wordsBytes = 192

var _ [wordsBytes - unsafe.Sizeof(ringWords{})]byte // it fits

// openRings makes the rings, in device memory where onDevice, which all ranks must reach. k may be nil, and stays the
// caller's. It fails, on all ranks, where one has not the memory, or cannot share or pin it. Collective; it blocks.
func openRings(c *shm.Comm, d *cuda.Device, k *kernels, shape ringShape, onDevice bool) (*rings, error) {
	g := &rings{c: c, dev: d, k: k, own: shape.own, least: shape.least, all: make([]ring, 2*c.Size())}
	g.slot = min(shape.slot, max(min(shape.room, transfer.Sizes.Rings)/ringSlots/max(c.Size()-1, 1)/256*256, 256))
	words := (c.Size()*c.Size()*wordsBytes + 4095) / 4096 * 4096
	const smallEach = ringSlots * 2 * smallMost
	each := ringSlots * (g.slot*(c.Size()-1) + g.own) // of a rank
	small := each                                     // where the slots of small messages begin
	if k != nil {
		each += c.Size() * smallEach
	}
	bytes := words
	if !onDevice {
		bytes += c.Size() * each
	}
	var err error
	g.mem, err = shm.Map(c.Comm, bytes)
	switch {
	case err != nil:
	case onDevice:
		if g.room, err = d.Malloc(each); err == nil && k != nil {
			err = onStream(d, func(s *cuda.Stream) error { return s.Fill(unsafe.Add(g.room, small), 4, 0, c.Size()*smallEach/4) })
		}
	default:
		clear(g.mem[words+c.Rank()*each:][:each]) // so that the memory is near the rank that writes it
		if err = d.RegisterHost(unsafe.Pointer(&g.mem[0]), bytes); err == nil {
			g.fixed = true
		}
	}
	if err := c.FirstFailure(err); err != nil {
		return nil, errors.Join(err, g.close())
	}
	if onDevice {
		if g.win, err = Share(c, d, g.room, each); err != nil {
			return nil, errors.Join(err, g.close())
		}
	}
	for r := range c.Size() {
		for i, to := range [...]int{r, c.Rank()} {
			from := c.Rank() + r - to
			h := &g.all[2*r+i]
			h.peer, h.recv, h.total = r, i == 1, -1
			h.words = (*ringWords)(unsafe.Pointer(&g.mem[(from*c.Size()+to)*wordsBytes]))
			owner, other := from, to // of the slots
			if onDevice {
				owner, other = to, from
			}
			place := ringSlots * g.slot * other // those to other ranks first
			if h.slot = g.slot; other == owner {
				place, h.slot = ringSlots*g.slot*(c.Size()-1), g.own
			} else if other > owner {
				place -= ringSlots * g.slot
			}
			base := unsafe.Pointer(nil)
			if onDevice {
				base = g.win.At(owner)
			} else {
				base = unsafe.Pointer(&g.mem[words+owner*each])
			}
			h.slots, h.small = unsafe.Add(base, place), unsafe.Add(base, small+other*smallEach)
		}
	}
	return g, nil
}

// close gives the memory back, once this rank's copies are over. Collective where the slots are device memory.
func (g *rings) close() error {
	var err error
	if g.win != nil {
		err = g.win.Close()
	}
	for i := range g.all {
		for _, e := range g.all[i].ready {
			if e != nil {
				err = errors.Join(err, e.Close())
			}
		}
	}
	err = errors.Join(err, g.dev.Free(g.room))
	if g.fixed {
		err = errors.Join(err, g.dev.UnregisterHost(unsafe.Pointer(&g.mem[0])))
	}
	if g.mem != nil {
		err = errors.Join(err, unix.Munmap(g.mem))
	}
	*g = rings{}
	return err
}

// add takes a message on.
func (g *rings) add(m cudampi.Message) (err error) {
	h := &g.all[2*m.Peer]
	if m.Recv {
		h = &g.all[2*m.Peer+1]
	}
	for i := range h.ready {
		if h.ready[i] != nil {
			continue
		}
		if h.ready[i], err = g.dev.NewEvent(false); err != nil {
			return err
		}
	}
	if len(h.queue) == 0 {
		g.busy = append(g.busy, h)
	}
	h.queue = append(h.queue, m)
	return nil
}

// run does the messages that were added and forgets them. A message of another length than expected is taken to its end,
// and is the error in the end. On return the copies of out may still be under way.
func (g *rings) run(in, out *cuda.Stream) error {
	defer g.forget()
	var failure error
	for idle := 0; ; idle++ {
		moved, left := false, false
		for _, h := range g.busy {
			if h.next == len(h.queue) {
				continue
			}
			left = true
			did, err := false, error(nil)
			if h.recv {
				did, err = g.receive(h, out, &failure)
			} else {
				did, err = g.send(h, in, out)
			}
			if err != nil {
				return err
			}
			moved = moved || did
		}
		switch {
		case !left:
			return failure
		case moved:
			idle = 0
		default:
			if err := g.c.Pause(idle); err != nil {
				return err
			}
		}
	}
}

func (g *rings) forget() {
	for _, h := range g.busy {
		h.queue, h.next = h.queue[:0], 0
	}
	g.busy = g.busy[:0]
}

// start sets the length of the message at hand.
func (g *rings) start(h *ring, bytes int) {
	h.total, h.copies, h.ended = bytes, 0, 0
	// Long messages are at least eight chunks, so that the copies in and those out overlap.
	h.chunk = min(max((bytes/8+4095)/4096*4096, g.least), h.slot)
	if g.isSmall(h) {
		h.chunk = bytes
	}
}

func (h *ring) chunks() int { return max((h.total+h.chunk-1)/h.chunk, 1) } // one also where there are no elements

func (h *ring) finish() {
	h.total = -1
	h.next++
}

// copyChunk enqueues the copy of the next chunk between the message and its slot.
func (g *rings) copyChunk(h *ring, m *cudampi.Message, s *cuda.Stream) error {
	i, off := h.begun%ringSlots, h.copies*h.chunk
	user, slot := unsafe.Add(m.Buf, off), unsafe.Add(h.slots, int(i)*h.slot)
	if n := min(h.chunk, h.total-off); n > 0 {
		dst, src := slot, user
		if h.recv {
			dst, src = user, slot
		}
		if err := s.Copy(dst, src, n); err != nil {
			return err
		}
		return h.ready[i].Record(s)
	}
	return nil
}

// send takes the message at hand on by what can be done now.
func (g *rings) send(h *ring, in, out *cuda.Stream) (moved bool, err error) {
	m := &h.queue[h.next]
	if h.total < 0 {
		g.start(h, m.N*m.Type.Size())
	}
	if i := h.begun % ringSlots; h.copies < h.chunks() && h.begun < h.words.taken.Load()+ringSlots {
		if h.loose[i] {
			if done, err := h.ready[i].Query(); !done || err != nil {
				return false, err
			}
		}
		if h.loose[i] = g.isSmall(h); h.loose[i] {
			return true, g.sendSmall(h, m, out)
		}
		if err := g.copyChunk(h, m, in); err != nil {
			return false, err
		}
		h.copies++
		h.begun++
		moved = true
	}
	if h.over < h.begun {
		i := h.over % ringSlots
		if there, err := h.ready[i].Query(); err != nil {
			return false, err
		} else if there {
			h.words.total[i] = int64(h.total)
			h.over++
			h.words.sent.Store(h.over)
			h.ended++
			moved = true
		}
	}
	if h.ended == h.chunks() {
		h.finish()
	}
	return moved, nil
}

// isSmall says whether the message at hand goes by kernels.
func (g *rings) isSmall(h *ring) bool { return g.k != nil && h.total > 0 && h.total <= smallMessage }

// smallSlot returns where the next chunk lies and its stamp, where it is a small message.
func (h *ring) smallSlot() (unsafe.Pointer, uint32) {
	return unsafe.Add(h.small, int(h.begun%ringSlots)*2*smallMost), uint32(h.begun + 1)
}

// sendSmall sends a whole message. The host does not wait for the kernel, and so the user's stream has to: it is enqueued on
// out, too.
func (g *rings) sendSmall(h *ring, m *cudampi.Message, out *cuda.Stream) error {
	i := h.begun % ringSlots
	slot, stamp := h.smallSlot()
	if err := g.k.messageOn(out, g.k.putMessage, slot, m.Buf, h.total, stamp); err != nil {
		return err
	}
	h.words.total[i] = int64(h.total)
	h.begun++
	h.over++
	h.words.sent.Store(h.over)
	h.finish()
	return h.ready[i].Record(out)
}

// receive does what send does.
func (g *rings) receive(h *ring, out *cuda.Stream, failure *error) (moved bool, err error) {
	if h.over < h.begun { // of this message or the one before
		if done, err := h.ready[h.over%ringSlots].Query(); err != nil {
			return false, err
		} else if done {
			h.over++
			h.words.taken.Store(h.over)
			moved = true
		}
	}
	if h.words.sent.Load() == h.begun {
		return moved, nil
	}
	m := &h.queue[h.next]
	want := m.N * m.Type.Size()
	if h.total < 0 {
		g.start(h, int(h.words.total[h.begun%ringSlots]))
		if h.total != want && *failure == nil {
			*failure = g.c.CheckMessage("MPI_Irecv", 0, h.total, m.N, m.Type, m.Peer)
		}
	}
	switch {
	case h.total != want:
	case g.isSmall(h):
		slot, stamp := h.smallSlot()
		if err = g.k.messageOn(out, g.k.getMessage, m.Buf, slot, h.total, stamp); err == nil {
			err = h.ready[h.begun%ringSlots].Record(out)
		}
	default:
		err = g.copyChunk(h, m, out)
	}
	if err != nil {
		return false, err
	}
	h.copies++
	h.begun++
	if h.copies == h.chunks() {
		h.finish()
	}
	return true, nil
}
