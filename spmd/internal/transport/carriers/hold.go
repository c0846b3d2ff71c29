package carriers

import (
	"sync"
	"unsafe"

	"lockstep/cuda"
)

// holds are streams that wait for calls.
type holds struct {
	dev  *cuda.Device
	word unsafe.Pointer // that they wait for, in pinned memory
	end  *cuda.Stream   // in which the last copies of calls are

	mu    sync.Mutex // of what follows, since streams are held beside a call
	turn  uint32     // of the last that is held
	spare []*cuda.Event
}

// hold is a stream that waits for a call.
type hold struct {
	ready *cuda.Event // of what comes before it
	turn  uint32
}

// hold has later work on s wait for a call.
func (t *holds) hold(s *cuda.Stream) (h hold, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var e *cuda.Event
	if n := len(t.spare); n > 0 {
		e, t.spare = t.spare[n-1], t.spare[:n-1]
	} else if e, err = t.dev.NewEvent(); err != nil {
		return h, err
	}
	if err = e.Record(s); err == nil {
		err = s.WaitValue(t.word, t.turn+1)
	}
	if err != nil {
		t.spare = append(t.spare, e)
		return h, err
	}
	t.turn++
	return hold{e, t.turn}, nil
}

// release lets a stream go on, behind the copies of its call.
func (t *holds) release(h hold) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spare = append(t.spare, h.ready)
	return t.end.WriteValue(t.word, h.turn)
}
