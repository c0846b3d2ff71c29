package cudampi

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"lockstep/cuda"
)

// messenger sends and receives device memory through MPI on the host, where no Carrier carries messages. A message goes in
// chunks through two pinned buffers of its channel, that is of its peer and direction. The device copies a chunk while MPI moves
// the one before. All channels go on independently: no message holds up another.
type messenger struct {
	c        *Comm
	dev      *cuda.Device
	chunk    int // bytes of a message in a buffer; the same on all ranks
	channels []*channel
	used     int
}

// messageHead stands before every chunk. It holds the bytes of the whole message, and keeps what follows aligned.
const messageHead = 16

// channel is the messages in one direction between this rank and a peer, in their order.
type channel struct {
	queue  []Message
	buf    [2]unsafe.Pointer
	copied [2]*cuda.Event // the last copy from or to the buffer
	reqs   []request      // two, apart from Go pointers
	// Of the message at hand, in chunks:
	copies, started, ended int
	total                  int // bytes, as the sender says; -1 before the first chunk
}

func (g *messenger) add(m Message) error {
	for _, h := range g.channels[:g.used] {
		if q := h.queue[0]; q.Peer == m.Peer && q.Recv == m.Recv {
			h.queue = append(h.queue, m)
			return nil
		}
	}
	if g.used == len(g.channels) {
		h := &channel{reqs: make([]request, 2)}
		for i := range h.buf {
			var err error
			if h.buf[i], err = g.dev.MallocHost(messageHead + g.chunk); err == nil {
				h.copied[i], err = g.dev.NewEvent(false)
			}
			if err != nil {
				return errors.Join(err, h.close(g.dev))
			}
		}
		g.channels = append(g.channels, h)
	}
	h := g.channels[g.used]
	g.used++
	h.queue = append(h.queue[:0], m)
	h.begin()
	return nil
}

func (h *channel) begin() { h.copies, h.started, h.ended, h.total = 0, 0, 0, -1 }

func (h *channel) close(d *cuda.Device) error {
	var err error
	for i := range h.buf {
		err = errors.Join(err, d.FreeHost(h.buf[i]))
		if h.copied[i] != nil {
			err = errors.Join(err, h.copied[i].Close())
		}
	}
	return err
}

func (g *messenger) close() error {
	var err error
	for _, h := range g.channels {
		err = errors.Join(err, h.close(g.dev))
	}
	g.channels = nil
	return err
}

// run does the messages that were added and forgets them. A message of another length than expected is taken to its end,
// and is the error in the end. On return the copies of out may still be under way.
func (g *messenger) run(in, out *cuda.Stream) error {
	var failure error
	defer func() { g.used = 0 }()
	for idle := 0; ; idle++ {
		moved, left := false, 0
		for _, h := range g.channels[:g.used] {
			if len(h.queue) == 0 {
				continue
			}
			left++
			step := g.send
			if h.queue[0].Recv {
				step = g.receive
			}
			did, err := step(h, in, out, &failure)
			if err != nil {
				return err
			}
			moved = moved || did
		}
		switch {
		case left == 0:
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

// chunks is how many chunks a message has; one without elements has one too.
func (g *messenger) chunks(bytes int) int { return max((bytes+g.chunk-1)/g.chunk, 1) }

// send takes the message at hand on by what can be done now.
func (g *messenger) send(h *channel, in, _ *cuda.Stream, _ *error) (moved bool, err error) {
	m := &h.queue[0]
	bytes := m.N * m.Type.Size()
	count := g.chunks(bytes)
	if i := h.copies % 2; h.copies < count && h.copies < h.ended+2 {
		if free, err := h.copied[i].Query(); err != nil {
			return false, err
		} else if free {
			off := h.copies * g.chunk
			binary.NativeEndian.PutUint64(unsafe.Slice((*byte)(h.buf[i]), 8), uint64(bytes))
			if err := in.Copy(unsafe.Add(h.buf[i], messageHead), unsafe.Add(m.Buf, off), min(g.chunk, bytes-off)); err != nil {
				return false, err
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
			size := messageHead + min(g.chunk, bytes-h.started*g.chunk)
			if err := g.c.Check("MPI_Isend", sysStartChunk(g.c, h.buf[i], size, m.Peer, false, &h.reqs[i])); err != nil {
				return false, err
			}
			h.started++
			moved = true
		}
	}
	if h.ended < h.started {
		done, _, code := sysTestChunk(&h.reqs[h.ended%2])
		if code != success {
			return false, g.c.Check("MPI_Isend", code)
		}
		if done {
			h.ended++
			moved = true
		}
	}
	if h.ended == count {
		h.queue = h.queue[1:]
		h.begin()
	}
	return moved, nil
}

// receive does what send does.
func (g *messenger) receive(h *channel, _, out *cuda.Stream, failure *error) (moved bool, err error) {
	m := &h.queue[0]
	count := 1 // until the first chunk says more
	if h.total >= 0 {
		count = g.chunks(h.total)
	}
	if i := h.started % 2; h.started < count && h.started < h.ended+2 {
		if free, err := h.copied[i].Query(); err != nil {
			return false, err
		} else if free {
			if err := g.c.Check("MPI_Irecv", sysStartChunk(g.c, h.buf[i], messageHead+g.chunk, m.Peer, true, &h.reqs[i])); err != nil {
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
	done, got, code := sysTestChunk(&h.reqs[i])
	if code != success || !done {
		return moved, g.c.Check("MPI_Irecv", code)
	}
	h.total = int(binary.NativeEndian.Uint64(unsafe.Slice((*byte)(h.buf[i]), 8)))
	off := h.ended * g.chunk
	h.ended++
	if h.total == m.N*m.Type.Size() {
		if err := out.Copy(unsafe.Add(m.Buf, off), unsafe.Add(h.buf[i], messageHead), got-messageHead); err != nil {
			return false, err
		}
		if err := h.copied[i].Record(out); err != nil {
			return false, err
		}
	} else if *failure == nil {
		*failure = g.c.CheckMessage("MPI_Irecv", success, h.total, m.N, m.Type, m.Peer)
	}
	if h.ended == g.chunks(h.total) {
		h.queue = h.queue[1:]
		h.begin()
	}
	return true, nil
}
