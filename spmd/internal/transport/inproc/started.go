package inproc

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"lockstep/spmd/internal/transport"
)

const (
	looksAwake = 2000 // some 200 us
	napping    = 50 * time.Microsecond
)

// Pause implements transport.Host.
func (r *Comm) Pause(looks int) error {
	if looks < looksAwake {
		runtime.Gosched()
	} else {
		time.Sleep(napping)
	}
	return nil
}

// NewMessage implements transport.Host.
func (r *Comm) NewMessage() transport.Message { return &message{r: r} }

// message is a transport.Message.
type message struct {
	r     *Comm
	from  int // -1 of one that is sent: that is a copy, and over
	to    []byte
	sent  int
	looks int
}

// Send implements transport.Message.
func (m *message) Send(src unsafe.Pointer, bytes, to int) error {
	m.from, m.sent = -1, bytes
	m.r.box(m.r.rank, to).put(bytesAt(src, bytes))
	m.r.team.wake()
	return nil
}

// Recv implements transport.Message.
func (m *message) Recv(dst unsafe.Pointer, bytes, from int) error {
	m.from, m.to = from, bytesAt(dst, bytes)
	return nil
}

// Test implements transport.Message.
func (m *message) Test() (over bool, bytes int, err error) {
	if m.from < 0 {
		return true, m.sent, nil
	}
	b := m.r.box(m.from, m.r.rank)
	if b.sent.Load() == b.taken {
		if m.looks++; m.looks%looksAwake != 0 {
			return false, 0, nil
		}
		t := m.r.team
		t.mu.Lock()
		defer t.mu.Unlock()
		if b.sent.Load() == b.taken {
			err = t.inVain(m.r.g.members[m.from])
		}
		return false, 0, err
	}
	data := b.take()
	defer b.recycle(data)
	if len(data) > len(m.to) {
		return true, 0, fmt.Errorf("a message of %d bytes from rank %d is longer than %d", len(data), m.from, len(m.to))
	}
	return true, copy(m.to, data), nil
}
