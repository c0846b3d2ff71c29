package transport

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

const (
	looksAwake = Looks
	napping    = 50 * time.Microsecond
)

func (r *Member) Pause(looks int) error {
	if looks < looksAwake {
		runtime.Gosched()
	} else {
		time.Sleep(napping)
	}
	return nil
}

func (r *Member) Lost(rank int) error {
	r.team.mu.Lock()
	defer r.team.mu.Unlock()
	return r.team.inVain(r.g.members[rank])
}

// Pin implements Host: all memory of a process is every rank's.
func (r *Member) Pin(dev *cuda.Device, bytes int) (*Pinned, error) {
	p, err := PinAlone(dev, bytes, r.rank, r.size)
	mine := unsafe.Pointer(nil)
	if err == nil {
		mine = p.Parts[r.rank]
	}
	parts := make([]unsafe.Pointer, r.size)
	all := r.AllGather(unsafe.Pointer(&parts[0]), unsafe.Pointer(&mine), int(unsafe.Sizeof(mine)), elem.Uint8)
	if err != nil || all != nil {
		return nil, errors.Join(err, all)
	}
	if i := slices.Index(parts, nil); i >= 0 {
		return nil, errors.Join(fmt.Errorf("rank %d has no pinned memory", i), p.Free())
	}
	p.Parts = parts
	return p, nil
}

func (r *Member) NewMessage() Message { return &message{r: r} }

type message struct {
	r     *Member
	from  int // -1 of one that is sent: that is a copy, and over
	to    []byte
	looks int
}

var _ Message = (*message)(nil)

func (m *message) Send(src unsafe.Pointer, bytes, to int) error {
	m.from = -1
	m.r.box(m.r.rank, to).put(bytesAt(src, bytes), elem.Uint8)
	m.r.team.wake()
	return nil
}

func (m *message) Recv(dst unsafe.Pointer, bytes, from int) error {
	m.from, m.to = from, bytesAt(dst, bytes)
	return nil
}

func (m *message) Test() (over bool, err error) {
	if m.from < 0 {
		return true, nil
	}
	b := m.r.box(m.from, m.r.rank)
	if b.sent.Load() == b.taken {
		if m.looks++; m.looks%looksAwake != 0 {
			return false, nil
		}
		if err = m.r.Lost(m.from); b.sent.Load() != b.taken {
			err = nil
		}
		return false, err
	}
	data := b.take().data
	defer b.recycle(data)
	if len(data) > len(m.to) {
		return true, fmt.Errorf("a message of %d bytes from rank %d is longer than %d", len(data), m.from, len(m.to))
	}
	copy(m.to, data)
	return true, nil
}
