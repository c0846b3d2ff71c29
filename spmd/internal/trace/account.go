package trace

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unsafe"

	"lockstep/internal/runfiles"
)

// mostLast is how many events of all ranks are told where the job ends before its program does,
// and there is not much time.
const mostLast = 1 << 18

// Account has a rank's notes for a job that has failed, or that a signal ends. Then rank 0 does not
// ask all ranks together.
type Account struct {
	Summary *Summary `json:"summary"`
	Log     *Log     `json:"log"` // nil if no events are kept
}

// Account returns a rank's notes; s is their summary.
func (t *Tracer) Account(s *Summary, ranks int) *Account {
	a := &Account{Summary: s}
	if t.keeps {
		a.Log = t.log(s.Rank, max(mostLast/ranks, 1))
	}
	return a
}

// Pack returns the account as bytes: the length of a head, the head as JSON, and
// behind it the events, compressed.
func (a *Account) Pack() ([]byte, error) {
	head, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(head))))
	b.Write(head)
	if a.Log == nil || a.Log.Count == 0 {
		return b.Bytes(), nil
	}
	z, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(raw(a.Log.Events))
	err = errors.Join(err, z.Close())
	return b.Bytes(), err
}

func Unpack(b []byte) (*Account, error) {
	if len(b) < 4 || int64(binary.BigEndian.Uint32(b)) > int64(len(b)-4) {
		return nil, errors.New("it is cut off")
	}
	head, packed := b[4:][:binary.BigEndian.Uint32(b)], b[4:][binary.BigEndian.Uint32(b):]
	a := &Account{}
	if err := json.Unmarshal(head, a); err != nil {
		return nil, err
	}
	if a.Summary == nil {
		return nil, errors.New("it has no summary")
	}
	if l := a.Log; l != nil {
		if l.Count < 0 || l.Count > mostLast {
			return nil, fmt.Errorf("it has %d events", l.Count)
		}
		l.Events = make([]Event, l.Count)
		if _, err := io.ReadFull(flate.NewReader(bytes.NewReader(packed)), raw(l.Events)); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func raw(e []Event) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(e))), len(e)*int(unsafe.Sizeof(Event{})))
}

// Align converts an account's times to the clock of rank 0.
func (a *Account) Align(c Clock) {
	a.Summary.align(&c)
	if a.Log != nil {
		a.Log.Clock = c
	}
}

// WriteLast is WriteFile if it has to end at a time. It keeps the newest events, as many as it has
// time for.
func WriteLast(f *runfiles.File, name string, logs []*Log, of int, until time.Time) error {
	// twice what a core takes that does nothing else
	const perEvent, perCompressed = 2 * time.Microsecond, 6 * time.Microsecond
	within := time.Until(until)
	cost := perEvent
	if compressed(name) {
		cost = perCompressed
	}
	for _, l := range logs {
		if drop := len(l.Events) - max(int(within/cost)/len(logs), 1); drop > 0 {
			l.Events, l.Dropped = l.Events[drop:], l.Dropped+uint64(drop)
		}
	}
	return write(f, name, logs, of, until)
}
