package cuda

import (
	"time"
	"unsafe"
)

// Event is a point in a stream.
type Event struct {
	d *Device
	h unsafe.Pointer
}

// NewEvent makes an event without a time, which is cheaper to record and to wait for. Source:
// cuda.h, cuEventCreate.
func (d *Device) NewEvent() (*Event, error) { return d.newEvent(untimed) }

// NewTimedEvent makes an event for Elapsed.
func (d *Device) NewTimedEvent() (*Event, error) { return d.newEvent(timed) }

const untimed, timed = false, true

func (d *Device) newEvent(timing bool) (*Event, error) {
	h, status := sysEventCreate(d, timing)
	if status != 0 {
		return nil, check("cuEventCreate", status)
	}
	return &Event{d: d, h: h}, nil
}

// Record sets e to the present end of s: e is done once all that is enqueued on s by now has
// finished. Source: cuda.h, cuEventRecord.
func (e *Event) Record(s *Stream) error {
	return check("cuEventRecord", sysEventRecord(e, s))
}

// Query reports whether the device has passed the last record of e; an event never recorded is
// done. Source: cuda.h, cuEventQuery.
func (e *Event) Query() (bool, error) { return done(sysEventQuery(e)) }

// Synchronize blocks until the device has passed the last record of e. Source: cuda.h,
// cuEventSynchronize.
func (e *Event) Synchronize() error {
	return check("cuEventSynchronize", sysEventSynchronize(e))
}

// Spin asks again and again whether e is done, until it is or limit is over. It is one call of C,
// which keeps a core and the goroutine's thread busy: for waits of microseconds. Source: cuda.h,
// cuEventQuery.
func (e *Event) Spin(limit time.Duration) (bool, error) {
	return done(sysEventSpin(e, int64(limit)))
}

func done(status int) (bool, error) {
	if status == int(ErrNotReady) {
		return false, nil
	}
	return status == 0, check("cuEventQuery", status)
}

// Elapsed returns the time on the device from since to e. Both must be NewTimedEvent's,
// recorded and passed; until then it is ErrNotReady. The resolution is about half a microsecond.
// Source: cuda.h, cuEventElapsedTime.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	ms, status := sysEventElapsed(since, e)
	if status != 0 {
		return 0, check("cuEventElapsedTime", status)
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// Close gives the event back; streams that wait for it still do. A second Close does nothing.
// Source: cuda.h, cuEventDestroy.
func (e *Event) Close() error {
	if e.h == nil {
		return nil
	}
	status := sysEventDestroy(e)
	e.h = nil
	return check("cuEventDestroy", status)
}
