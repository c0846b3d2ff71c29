package hybrid

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/spmd/internal/exec"
)

// post carries messages between the ranks of different processes. MPI is entered by who has the lock, one at a time, and
// nobody waits inside of it: so ranks of a process may wait for different things. Each of those that wait lets the messages of
// all go on.
//
// A message is a head, with the data where that is short, and else a body behind it. Its receiver need not be there: a message
// that nobody waits for lies in its box. What carries a message is used again, so that most calls allocate nothing.
type post struct {
	mu       sync.Mutex
	c        *cudampi.Comm // of the processes
	boxes    map[address]*box
	outgoing []*head    // that MPI may still read
	incoming []*message // whose bodies are on their way
	wanted   []*wanted  // what ranks of this process wait for
	crowded  bool       // the ranks of this node are more than its cores

	spareHeads    []*head
	spareMessages []*message
	spareBoxes    []*box
	spareBytes    int // that spareMessages have for bodies
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
type box struct{ first, last *message }

// message is one that has come, or is coming.
type message struct {
	head
	data []byte // of the head, of body, or where the receiver wants them
	here bool
	next *message
	body []byte
	transfer
}

// transfer is a body on its way, in pieces.
type transfer struct {
	reqs   []cudampi.Request
	pieces int // of reqs
	over   int // of pieces
}

// wanted is the message that a rank waits for.
type wanted struct {
	at    address
	dst   unsafe.Pointer // where a body of so many bytes belongs; nil for none
	bytes int
}

func newPost(c *cudampi.Comm) *post { return &post{c: c, boxes: map[address]*box{}} }

// send begins to send a message to another process. src may change when sent says that t is over, or at once where whole.
func (p *post) send(t *transfer, process int, to address, what uint64, n int, src unsafe.Pointer, bytes int) (whole bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := pop(&p.spareHeads)
	h.address, h.what, h.n, h.bytes = to, what, int64(n), int64(bytes)
	short := 0
	if bytes <= inline {
		short = bytes
		copy(h.data[:], bytesAt(src, bytes))
	}
	if err := p.c.StartSend(&h.req, unsafe.Pointer(h), headBytes+short, process, cudampi.Heads); err != nil {
		return false, err
	}
	p.outgoing = append(p.outgoing, h)
	if short == bytes {
		return true, nil
	}
	for i := range t.begin(bytes) {
		lo, k := piece(bytes, i)
		if err := p.c.StartSend(&t.reqs[i], unsafe.Add(src, lo), k, process, cudampi.Bodies); err != nil {
			return false, err
		}
	}
	return false, nil
}

// pop takes one out of those to be used again, or makes one.
func pop[T any](spare *[]*T) *T {
	k := len(*spare)
	if k == 0 {
		return new(T)
	}
	one := (*spare)[k-1]
	*spare = (*spare)[:k-1]
	return one
}

// mostPiece is the most bytes of a body that MPI gets at a time. Tests lower it.
var mostPiece = cudampi.MostBytes

func piece(bytes, i int) (lo, n int) {
	lo = i * mostPiece
	return lo, min(mostPiece, bytes-lo)
}

// begin returns the number of pieces.
func (t *transfer) begin(bytes int) int {
	t.pieces, t.over = (bytes+mostPiece-1)/mostPiece, 0
	for len(t.reqs) < t.pieces {
		t.reqs = append(t.reqs, cudampi.Request{})
	}
	return t.pieces
}

// test says whether all pieces are over.
func (t *transfer) test() (bool, error) {
	for t.over < t.pieces {
		done, _, err := t.reqs[t.over].Test()
		if err != nil || !done {
			return false, err
		}
		t.over++
	}
	return true, nil
}

// sent waits until a body is over that send has begun.
func (p *post) sent(t *transfer) error { return p.until(t.test) }

// receive waits for the next message that is wanted, and takes it out. It is the caller's until release.
func (p *post) receive(w *wanted) (m *message, err error) {
	p.mu.Lock()
	p.wanted = append(p.wanted, w)
	p.mu.Unlock()
	err = p.until(func() (bool, error) {
		b := p.boxes[w.at]
		if b == nil || !b.first.here {
			return false, nil
		}
		m = b.first
		if b.first = m.next; b.first == nil {
			delete(p.boxes, w.at)
			p.spareBoxes = append(p.spareBoxes, b)
		}
		i := slices.Index(p.wanted, w)
		p.wanted = slices.Delete(p.wanted, i, i+1)
		return true, nil
	})
	return m, err
}

const (
	mostSpare      = 1024     // heads and messages that are kept for reuse: a rank may be ahead of another
	mostSpareBytes = 64 << 20 // and their bodies
)

// release gives a message back that receive has returned.
func (p *post) release(m *message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.data, m.next = nil, nil
	if len(p.spareMessages) >= mostSpare {
		return
	}
	if p.spareBytes+cap(m.body) > mostSpareBytes {
		m.body = nil
	}
	p.spareBytes += cap(m.body)
	p.spareMessages = append(p.spareMessages, m)
}

// memory has a message get memory of its own for a body.
func (p *post) memory(m *message, bytes int) {
	for i, s := range p.spareMessages {
		if cap(m.body) < bytes && cap(s.body) >= bytes {
			p.spareBytes += cap(m.body) - cap(s.body)
			m.body, p.spareMessages[i].body = s.body, m.body
			break
		}
	}
	if cap(m.body) < bytes {
		m.body = make([]byte, bytes)
	}
	m.data = m.body[:bytes]
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
	turns  = 16   // of ranks of a process before another process gets the core, where cores are shared
	nap    = 50 * time.Microsecond
)

// pause is what a rank does between two looks, of which there were so many.
func (p *post) pause(idle int) {
	switch {
	case idle < looks && !p.crowded:
	case p.crowded && idle%turns == turns-1: // the rank that it waits for may be in another process
		exec.Yield()
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
		} else if len(p.spareHeads) < mostSpare {
			p.spareHeads = append(p.spareHeads, h)
		}
	}
	clear(p.outgoing[len(keep):])
	p.outgoing = keep
	if moved, err = p.bodies(); err != nil {
		return moved, err
	}
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

// bodies looks which bodies have come.
func (p *post) bodies() (moved bool, err error) {
	keep := p.incoming[:0]
	for _, m := range p.incoming {
		if m.here, err = m.test(); err != nil {
			return moved, err
		}
		if m.here {
			moved = true
		} else {
			keep = append(keep, m)
		}
	}
	clear(p.incoming[len(keep):])
	p.incoming = keep
	return moved, nil
}

// take takes a head in that has come, and puts its message into a box.
func (p *post) take(from, bytes int) error {
	if bytes < headBytes || bytes > headBytes+inline {
		return fmt.Errorf("a message of process %d has %d bytes, which no head has", from, bytes)
	}
	m := p.message()
	if err := p.c.StartRecv(&m.req, unsafe.Pointer(&m.head), bytes, from, cudampi.Heads); err != nil {
		return err
	}
	for over := false; !over; { // it is there already
		var err error
		if over, _, err = m.req.Test(); err != nil {
			return err
		}
	}
	size := int(m.bytes)
	if m.here = size <= inline; m.here {
		m.data = m.head.data[:size]
	} else {
		p.place(m, size)
		for i := range m.begin(size) {
			lo, n := piece(size, i)
			if err := p.c.StartRecv(&m.reqs[i], unsafe.Pointer(&m.data[lo]), n, from, cudampi.Bodies); err != nil {
				return err
			}
		}
		p.incoming = append(p.incoming, m)
	}
	p.putIn(m)
	return nil
}

// message returns one to be used.
func (p *post) message() *message {
	if k := len(p.spareMessages); k > 0 {
		p.spareBytes -= cap(p.spareMessages[k-1].body)
	}
	return pop(&p.spareMessages)
}

// place chooses where a body goes: to whom waits for it and for nothing before it, or into memory of the message.
func (p *post) place(m *message, size int) {
	if p.boxes[m.address] == nil {
		for _, w := range p.wanted {
			if w.at == m.address && w.bytes == size && w.dst != nil {
				m.data = bytesAt(w.dst, size)
				return
			}
		}
	}
	p.memory(m, size)
}

// putIn puts a message into its box, behind the others.
func (p *post) putIn(m *message) {
	b := p.boxes[m.address]
	switch {
	case b == nil:
		b = pop(&p.spareBoxes)
		p.boxes[m.address] = b
		b.first = m
	default:
		b.last.next = m
	}
	b.last = m
}

// finish waits until MPI has all that was sent.
func (p *post) finish() error {
	return p.until(func() (bool, error) { return len(p.outgoing) == 0, nil })
}
