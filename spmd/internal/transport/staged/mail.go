package staged

import (
	"encoding/binary"
	"unsafe"

	"lockstep/cuda"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// mail is messages of device memory through host memory. A message goes in chunks through two buffers of its channel, that is of
// its peer and direction. The device copies a chunk while the host moves the one before. All channels go on independently: no
// message holds up another.
type mail struct {
	host     transport.Host
	dev      *cuda.Device
	chunk    int // bytes of a message in a buffer; the same on all ranks
	channels []channel
	busy     []*channel
}

// headBytes stand before every chunk. They hold the bytes of the whole message, and keep what follows aligned.
const headBytes = 64

// channel is the messages in one direction between this rank and a peer, in their order.
type channel struct {
	queue  []coll.Call
	next   int // in queue
	buf    [2]unsafe.Pointer
	copied [2]*cuda.Event // the last copy from or to the buffer; nil before the first message
	moving [2]transport.Message
	// Of the message at hand, in chunks:
	copies, started, ended int
	total                  int // bytes, as the sender says; -1 before the first chunk
}

func (m *mail) init(h transport.Host, d *cuda.Device) {
	*m = mail{host: h, dev: d, channels: make([]channel, 2*h.Size())}
	m.chunk = max(min(Sizes.Chunk, Sizes.Message/len(m.channels)/2/headBytes*headBytes), headBytes)
}

// bytes is the pinned memory that the mail needs.
func (m *mail) bytes() int { return len(m.channels) * 2 * (headBytes + m.chunk) }

// use gives it that memory.
func (m *mail) use(at unsafe.Pointer) {
	for i := range m.channels {
		for k := range 2 {
			m.channels[i].buf[k] = unsafe.Add(at, (2*i+k)*(headBytes+m.chunk))
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
			if h.copied[i], err = m.dev.NewEvent(false); err != nil {
				return err
			}
			h.moving[i] = m.host.NewMessage()
		}
	}
	if len(h.queue) == 0 {
		m.busy = append(m.busy, h)
		h.begin()
	}
	h.queue = append(h.queue, *c)
	return nil
}

func (h *channel) begin() { h.copies, h.started, h.ended, h.total = 0, 0, 0, -1 }

// exchange makes messages that start together. One of another length than expected is taken to its end, and is the error in the
// end. On return the copies of out may still be under way.
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

// chunks is how many chunks a message has; one without elements has one too.
func (m *mail) chunks(bytes int) int { return max((bytes+m.chunk-1)/m.chunk, 1) }

// send takes the message at hand on by what can be done now.
func (m *mail) send(h *channel, in *cuda.Stream) (moved bool, err error) {
	c := &h.queue[h.next]
	bytes := c.N * c.Type.Size()
	count := m.chunks(bytes)
	if i := h.copies % 2; h.copies < count && h.copies < h.ended+2 {
		if free, err := h.copied[i].Query(); err != nil {
			return false, err
		} else if free {
			off := h.copies * m.chunk
			binary.NativeEndian.PutUint64(unsafe.Slice((*byte)(h.buf[i]), 8), uint64(bytes))
			if n := min(m.chunk, bytes-off); n > 0 {
				if err := in.Copy(unsafe.Add(h.buf[i], headBytes), unsafe.Add(c.Src, off), n); err != nil {
					return false, err
				}
			}
			if err := h.copied[i].Record(in); err != nil {
				return false, err
			}
			h.copies++
			moved = true
		}
	}
	if i := h.started % 2; h.started < h.copies {
		if there, err := h.copied[i].Query(); err != nil {
			return false, err
		} else if there {
			size := headBytes + min(m.chunk, bytes-h.started*m.chunk)
			if err := h.moving[i].Send(h.buf[i], size, int(c.Root)); err != nil {
				return false, err
			}
			h.started++
			moved = true
		}
	}
	if h.ended < h.started {
		over, _, err := h.moving[h.ended%2].Test()
		if err != nil {
			return false, err
		}
		if over {
			h.ended++
			moved = true
		}
	}
	if h.ended == count {
		h.next++
		h.begin()
	}
	return moved, nil
}

// receive does what send does.
func (m *mail) receive(h *channel, out *cuda.Stream, failure *error) (moved bool, err error) {
	c := &h.queue[h.next]
	count := 1 // until the first chunk says more
	if h.total >= 0 {
		count = m.chunks(h.total)
	}
	if i := h.started % 2; h.started < count && h.started < h.ended+2 {
		if free, err := h.copied[i].Query(); err != nil {
			return false, err
		} else if free {
			if err := h.moving[i].Recv(h.buf[i], headBytes+m.chunk, int(c.Root)); err != nil {
				return false, err
			}
			h.started++
			moved = true
		}
	}
	if h.ended == h.started {
		return moved, nil
	}
	i := h.ended % 2
	over, got, err := h.moving[i].Test()
	if err != nil || !over {
		return moved, err
	}
	h.total = int(binary.NativeEndian.Uint64(unsafe.Slice((*byte)(h.buf[i]), 8)))
	off := h.ended * m.chunk
	h.ended++
	if h.total != c.N*c.Type.Size() {
		if *failure == nil {
			*failure = transport.Failed(c, m.host.Rank(), transport.WrongLength(c, h.total))
		}
	} else if n := got - headBytes; n > 0 {
		if err := out.Copy(unsafe.Add(c.Dst, off), unsafe.Add(h.buf[i], headBytes), n); err != nil {
			return false, err
		}
		if err := h.copied[i].Record(out); err != nil {
			return false, err
		}
	}
	if h.ended == m.chunks(h.total) {
		h.next++
		h.begin()
	}
	return true, nil
}
