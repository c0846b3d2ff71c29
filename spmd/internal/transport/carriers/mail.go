package carriers

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// mail carries messages of device memory through host memory. A message goes in chunks through the
// buffers of its channel: one peer, one direction. The devices copy chunks while others are on
// their way. The channels are independent, so no message holds up another.
//
// If the receiver reaches the sender's buffers, its device copies out of them, and two counters say
// how far both are. A message that fits the buffers then leaves the sender before the receiver asks
// for it. Else the host moves each chunk.
type mail struct {
	host     transport.Host
	dev      *cuda.Device
	chunk    int // the most bytes of a message in a buffer; the same on all ranks
	channels []channel
	busy     []*channel
}

const (
	// headBytes stand before every chunk. They hold the Content of the whole message, and keep the
	// chunk aligned.
	headBytes = 64
	buffers   = 4 // of a channel
)

// channel is the messages in one direction between this rank and a peer, in their order. Counters
// count chunks, since the start.
type channel struct {
	queue  []coll.Call
	next   int // in queue
	shared *counters
	buf    [buffers]unsafe.Pointer
	copied [buffers]*cuda.Event // the last copy from or to the buffer; nil before the first message
	moving [buffers]transport.Message
	begun  int // whose copies are enqueued
	asked  int // for which the receiver has made room, or which the sender has passed on
	over   int // which the sender need no longer keep
	first  int // of the message at hand
	total  int // its bytes, as the sender says; -1 before the first chunk
	looks  int // in vain
}

// counters are the counts that the ends of a channel in shared memory tell each other.
type counters struct {
	sent  atomic.Int64
	_     [56]byte
	taken atomic.Int64
	_     [56]byte
}

const countersBytes = int(unsafe.Sizeof(counters{}))

func (m *mail) init(h transport.Host, d *cuda.Device) {
	*m = mail{host: h, dev: d, channels: make([]channel, 2*h.Size())}
	m.chunk = max(min(StagedSizes.Chunk, StagedSizes.Message/len(m.channels)/buffers/headBytes*headBytes), headBytes)
}

// bytes returns the pinned memory of a rank for mail.
func (m *mail) bytes() int { return len(m.channels) * buffers * (headBytes + m.chunk) }

// use gives the mail the memory of all ranks, with the counters; nil for ranks that this rank does
// not reach.
func (m *mail) use(words, at []unsafe.Pointer) {
	me, halves := m.host.Rank(), 1
	if !slices.Contains(at, nil) { // what comes needs no buffers of its own
		halves = 2
		m.chunk = min(StagedSizes.Chunk, halves*m.chunk+headBytes)
	}
	for i := range m.channels {
		h, peer, from := &m.channels[i], i/2, me
		h.total = -1
		number := i // of the channel among those of the rank whose buffers they are
		if at[peer] != nil {
			to := peer
			if i%2 == 1 {
				from, to, number = peer, me, 2*me
			}
			h.shared = (*counters)(unsafe.Add(words[from], to*countersBytes))
		}
		for k := range buffers {
			h.buf[k] = unsafe.Add(at[from], (buffers*(number/halves)+k)*(headBytes+m.chunk))
		}
	}
}

// events are all that were made.
func (m *mail) events() (all []*cuda.Event) {
	for i := range m.channels {
		all = append(all, m.channels[i].copied[:]...)
	}
	return all
}

// add takes a message on.
func (m *mail) add(c *coll.Call) (err error) {
	h := &m.channels[2*c.Root]
	if c.Kind == coll.Recv {
		h = &m.channels[2*c.Root+1]
	}
	for i := range h.copied {
		if h.copied[i] == nil {
			if h.copied[i], err = m.dev.NewEvent(); err != nil {
				return err
			}
			if h.shared == nil {
				h.moving[i] = m.host.NewMessage()
			}
		}
	}
	if len(h.queue) == 0 {
		m.busy = append(m.busy, h)
	}
	h.queue = append(h.queue, *c)
	return nil
}

// end ends the message at hand.
func (h *channel) end() {
	h.next++
	h.first, h.total = h.begun, -1
}

// exchange makes messages that start together. A message of another length than expected is taken
// to its end, and then is the error. On return the copies of out may still be under way.
func (m *mail) exchange(list []coll.Call, in, out *cuda.Stream) error {
	defer m.forget()
	for i := range list {
		if err := m.add(&list[i]); err != nil {
			return err
		}
	}
	var failure error
	for idle := 0; ; idle++ {
		moved, left := false, false
		for _, h := range m.busy {
			if h.next == len(h.queue) {
				continue
			}
			left = true
			did, err := false, error(nil)
			if h.queue[h.next].Kind == coll.Recv {
				did, err = m.receive(h, out, &failure)
			} else {
				did, err = m.send(h, in)
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
			if err := m.host.Pause(idle); err != nil {
				return err
			}
		}
	}
}

func (m *mail) forget() {
	for _, h := range m.busy {
		h.queue, h.next = h.queue[:0], 0
	}
	m.busy = m.busy[:0]
}

// divide returns how many chunks a message has, and the bytes of one. One without elements has one
// too. A long one has at least eight, so that the copies of both ends overlap.
func (m *mail) divide(bytes int) (count, each int) {
	each = min(max((bytes/8+4095)/4096*4096, StagedSizes.Short), m.chunk)
	return max((bytes+each-1)/each, 1), each
}

// send moves the present message on as far as it can now.
func (m *mail) send(h *channel, in *cuda.Stream) (moved bool, err error) {
	c := &h.queue[h.next]
	bytes := c.N * c.Type.Size()
	count, each := m.divide(bytes)
	if h.begun < h.first+count {
		free, err := m.free(h, c)
		if err != nil {
			return false, err
		}
		if free {
			if err := m.copyIn(h, c, (h.begun-h.first)*each, each, in); err != nil {
				return false, err
			}
			h.begun++
			moved = true
		}
	}
	if i := h.asked % buffers; h.asked < h.begun {
		if there, err := h.copied[i].Query(); err != nil {
			return false, err
		} else if there {
			size := headBytes + min(each, bytes-(h.asked-h.first)*each)
			h.asked++
			if h.shared != nil {
				h.shared.sent.Store(int64(h.asked))
			} else if err := h.moving[i].Send(h.buf[i], size, int(c.Root)); err != nil {
				return false, err
			}
			moved = true
		}
	}
	done := h.asked
	if h.shared == nil && h.over < h.asked {
		over, err := h.moving[h.over%buffers].Test()
		if err != nil {
			return false, err
		}
		if over {
			h.over++
			moved = true
		}
	}
	if h.shared == nil {
		done = h.over
	}
	if done == h.first+count {
		h.end()
	}
	return moved, nil
}

// free reports whether the buffer of the next chunk that is sent is free.
func (m *mail) free(h *channel, c *coll.Call) (yes bool, err error) {
	if h.shared == nil {
		return h.begun < h.over+buffers, nil
	}
	return m.come(h, c, func() bool { return int64(h.begun) < h.shared.taken.Load()+buffers })
}

// copyIn enqueues the copy of a chunk of the message to its buffer.
func (m *mail) copyIn(h *channel, c *coll.Call, off, each int, in *cuda.Stream) error {
	i, bytes := h.begun%buffers, c.N*c.Type.Size()
	binary.NativeEndian.PutUint64(unsafe.Slice((*byte)(h.buf[i]), 8), uint64(cudampi.Content(bytes, c.Type)))
	if n := min(each, bytes-off); n > 0 {
		if err := in.Copy(unsafe.Add(h.buf[i], headBytes), unsafe.Add(c.Src, off), n); err != nil {
			return err
		}
	}
	return h.copied[i].Record(in)
}

// come reports whether the other end of a channel has done its part, and fails if it never will.
func (m *mail) come(h *channel, c *coll.Call, has func() bool) (yes bool, err error) {
	if has() {
		h.looks = 0
		return true, nil
	}
	if h.looks++; h.looks%transport.Looks != 0 {
		return false, nil
	}
	if err := m.host.Lost(int(c.Root)); err != nil && !has() {
		return false, c.Failed(m.host.Rank(), err)
	}
	return false, nil
}

// receive does what send does.
func (m *mail) receive(h *channel, out *cuda.Stream, failure *error) (moved bool, err error) {
	c := &h.queue[h.next]
	most := h.begun + buffers
	if h.shared == nil { // no more than the message at hand has; one until the first chunk says more
		count := 1
		if h.total >= 0 {
			count, _ = m.divide(h.total)
		}
		most = min(most, h.first+count)
	}
	if h.asked < most {
		if moved, err = m.ask(h, c); err != nil {
			return false, err
		}
	}
	if h.begun == h.asked {
		return moved, nil
	}
	i, there := h.begun%buffers, false
	if h.shared != nil {
		there, err = m.come(h, c, func() bool { return int64(h.begun) < h.shared.sent.Load() })
	} else {
		there, err = h.moving[i].Test()
	}
	if err != nil || !there {
		return moved, err
	}
	var its elem.Type
	h.total, its = cudampi.Unpack(int(binary.NativeEndian.Uint64(unsafe.Slice((*byte)(h.buf[i]), 8))))
	count, each := m.divide(h.total)
	off := (h.begun - h.first) * each
	h.begun++
	if err := transport.Wrong(c, h.total, its); err != nil {
		if *failure == nil {
			*failure = c.Failed(m.host.Rank(), err)
		}
	} else if n := min(each, h.total-off); n > 0 {
		if err := out.Copy(unsafe.Add(c.Dst, off), unsafe.Add(h.buf[i], headBytes), n); err != nil {
			return false, err
		}
		if err := h.copied[i].Record(out); err != nil {
			return false, err
		}
	}
	if h.begun == h.first+count {
		h.end()
	}
	return true, nil
}

// ask makes room for another chunk, if the copy of the last one from its buffer is over.
func (m *mail) ask(h *channel, c *coll.Call) (yes bool, err error) {
	i := h.asked % buffers
	if free, err := h.copied[i].Query(); err != nil || !free {
		return false, err
	}
	h.asked++
	if h.shared != nil {
		h.shared.taken.Store(int64(max(h.asked-buffers, 0)))
		return true, nil
	}
	return true, h.moving[i].Recv(h.buf[i], headBytes+m.chunk, int(c.Root))
}
