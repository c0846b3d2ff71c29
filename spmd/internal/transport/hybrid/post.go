package hybrid

import (
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"lockstep/cudampi"
)

// post carries messages between the ranks of different processes. MPI is entered by who has the lock, one at a time, and
// nobody waits inside of it: so ranks of a process may wait for different things. Each of those that wait lets the messages of
// all go on.
//
// A message is a head, with the data where that is short, and else a body behind it. Its receiver need not be there: a message
// that nobody waits for lies in its box.
type post struct {
	mu       sync.Mutex
	c        *cudampi.Comm // of the processes
	boxes    map[address]*box
	outgoing []*head // that MPI may still read
	spare    []*head
	incoming [][]*message // bodies on their way, by process, in their order
	parts    int          // of them
	crowded  bool         // the ranks of this node are more than its cores
}

// address is whom a message is for: in which communicator, in which of its collectives, from and to whom.
type address struct {
	comm     uint64
	turn     uint64 // 0 for messages of a program
	from, to int32
}

// head is how a message begins.
type head struct {
	address
	what  uint64 // the call that it belongs to; the same on both sides
	n     int64  // elements of the call, or 0
	bytes int64
	data  [inline]byte
	req   cudampi.Request
}

const (
	inline    = 4096 - 56
	headBytes = int(unsafe.Offsetof(head{}.data))
)

// box is the messages at an address, in their order.
type box struct {
	first *message
	last  *message
}

// message is one that has come, or is coming.
type message struct {
	what uint64
	n    int64
	data []byte
	here bool
	next *message
	reqs []cudampi.Request // of its body
	over int               // of them
}

func newPost(c *cudampi.Comm) *post {
	return &post{c: c, boxes: map[address]*box{}, incoming: make([][]*message, c.Size())}
}

// sending is a message that its sender waits for.
type sending struct {
	reqs []cudampi.Request
	over int
}

// send begins to send a message to another process. What it returns is over when src may change; nil where it is.
func (p *post) send(process int, to address, what uint64, n int, src unsafe.Pointer, bytes int) (*sending, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var h *head
	if k := len(p.spare); k > 0 {
		h, p.spare = p.spare[k-1], p.spare[:k-1]
	} else {
		h = new(head)
	}
	h.address, h.what, h.n, h.bytes = to, what, int64(n), int64(bytes)
	short := 0
	if bytes <= inline {
		short = bytes
		copy(h.data[:], unsafe.Slice((*byte)(src), bytes))
	}
	if err := p.c.StartSend(&h.req, unsafe.Pointer(h), headBytes+short, process, cudampi.Heads); err != nil {
		return nil, err
	}
	p.outgoing = append(p.outgoing, h)
	if short == bytes {
		return nil, nil
	}
	s := &sending{reqs: make([]cudampi.Request, pieces(bytes))}
	for i := range s.reqs {
		lo, k := piece(bytes, i)
		if err := p.c.StartSend(&s.reqs[i], unsafe.Add(src, lo), k, process, cudampi.Bodies); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// mostPiece is the most bytes of a body that MPI gets at a time. Tests lower it.
var mostPiece = cudampi.MostBytes

func pieces(bytes int) int { return (bytes + mostPiece - 1) / mostPiece }

func piece(bytes, i int) (lo, n int) {
	lo = i * mostPiece
	return lo, min(mostPiece, bytes-lo)
}

// sent waits until a message is over that send has begun.
func (p *post) sent(s *sending) error {
	if s == nil {
		return nil
	}
	return p.until(func() (bool, error) {
		err := test(s.reqs, &s.over)
		return s.over == len(s.reqs), err
	})
}

// test looks which requests of a list are over, in their order.
func test(reqs []cudampi.Request, over *int) error {
	for *over < len(reqs) {
		done, _, err := reqs[*over].Test()
		if err != nil || !done {
			return err
		}
		*over++
	}
	return nil
}

// receive waits for the next message at an address, and takes it out.
func (p *post) receive(at address) (m *message, err error) {
	var b *box
	err = p.until(func() (bool, error) {
		if b == nil {
			b = p.boxes[at]
		}
		if b == nil || b.first == nil || !b.first.here {
			return false, nil
		}
		m = b.first
		if b.first = m.next; b.first == nil {
			delete(p.boxes, at)
		}
		return true, nil
	})
	return m, err
}

// until waits until done, which is called with the lock. Meanwhile messages go on.
func (p *post) until(done func() (bool, error)) error {
	for idle := 0; ; idle++ {
		if !p.mu.TryLock() { // who has it lets messages go on
			p.pause(idle)
			continue
		}
		moved, err := p.step()
		over := false
		if err == nil {
			over, err = done()
		}
		p.mu.Unlock()
		if over || err != nil {
			return err
		}
		if moved {
			idle = 0
		}
		p.pause(idle)
	}
}

const (
	looks  = 2000 // before a rank that waits lets others of its process run: about a millisecond
	yields = 4000 // before it sleeps
	nap    = 50 * time.Microsecond
)

// pause is what a rank does between two looks, of which there were so many.
func (p *post) pause(idle int) {
	switch {
	case idle < looks && !p.crowded:
	case idle < yields:
		runtime.Gosched()
	default:
		time.Sleep(nap)
	}
}

// step lets messages go on, and says whether one has. The caller has the lock.
func (p *post) step() (moved bool, err error) {
	keep := p.outgoing[:0]
	for _, h := range p.outgoing {
		over, _, err := h.req.Test()
		if err != nil {
			return false, err
		}
		if !over {
			keep = append(keep, h)
		} else if len(p.spare) < mostSpare {
			p.spare = append(p.spare, h)
		}
	}
	clear(p.outgoing[len(keep):])
	p.outgoing = keep
	before := p.parts
	if err := p.bodies(); err != nil {
		return false, err
	}
	moved = p.parts < before
	for {
		there, from, bytes, err := p.c.Next(cudampi.Heads)
		if err != nil || !there {
			return moved, err
		}
		moved = true
		if err := p.take(from, bytes); err != nil {
			return moved, err
		}
	}
}

// mostSpare is the most heads that are kept for reuse.
const mostSpare = 64

// bodies looks which bodies have come.
func (p *post) bodies() error {
	for from, list := range p.incoming {
		for len(list) > 0 {
			m := list[0]
			if err := test(m.reqs, &m.over); err != nil {
				return err
			}
			if m.over < len(m.reqs) {
				break
			}
			m.here, m.reqs = true, nil
			p.parts--
			list = list[1:]
		}
		p.incoming[from] = list
	}
	return nil
}

// take takes a head in that has come, and puts its message into a box.
func (p *post) take(from, bytes int) error {
	if bytes < headBytes || bytes > headBytes+inline {
		return fmt.Errorf("a message of process %d has %d bytes, which no head has", from, bytes)
	}
	h := new(head)
	if err := p.c.StartRecv(&h.req, unsafe.Pointer(h), bytes, from, cudampi.Heads); err != nil {
		return err
	}
	for over := false; !over; { // it is there already
		var err error
		if over, _, err = h.req.Test(); err != nil {
			return err
		}
	}
	m := &message{what: h.what, n: h.n}
	if h.bytes <= inline {
		m.data, m.here = h.data[:h.bytes:h.bytes], true
	} else {
		m.data = make([]byte, h.bytes)
		m.reqs = make([]cudampi.Request, pieces(len(m.data)))
		for i := range m.reqs {
			lo, n := piece(len(m.data), i)
			if err := p.c.StartRecv(&m.reqs[i], unsafe.Pointer(&m.data[lo]), n, from, cudampi.Bodies); err != nil {
				return err
			}
		}
		p.incoming[from] = append(p.incoming[from], m)
		p.parts++
	}
	b := p.boxes[h.address]
	if b == nil {
		b = &box{}
		p.boxes[h.address] = b
	}
	if b.first == nil {
		b.first = m
	} else {
		b.last.next = m
	}
	b.last = m
	return nil
}

// finish waits until MPI has all that was sent.
func (p *post) finish() error {
	return p.until(func() (bool, error) { return len(p.outgoing) == 0, nil })
}
