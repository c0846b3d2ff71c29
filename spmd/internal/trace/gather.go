package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/runfiles"
	"lockstep/spmd/internal/control"
)

// Ranks moves host memory between the ranks of a job.
type Ranks interface {
	control.Exchange
	Send(src unsafe.Pointer, n int, t elem.Type, to int) error
	Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error
}

// Clock says how far a rank's clock is ahead of rank 0's, in ns, at two times of the rank's own
// clock.
type Clock struct {
	At     [2]int64 `json:"at"`
	Ahead  [2]int64 `json:"ahead"`
	Within int64    `json:"within"` // ns by which that may be wrong; 0 if both are one clock
}

// ToFirst returns a time of the rank as rank 0 would have it. Between the
// two looks a clock runs evenly.
func (c *Clock) ToFirst(at int64) int64 {
	span := c.At[1] - c.At[0]
	if span <= 0 {
		return at - c.Ahead[0]
	}
	drift := float64(c.Ahead[1]-c.Ahead[0]) / float64(span)
	return at - c.Ahead[0] - int64(drift*float64(at-c.At[0]))
}

// Look is one comparison of a clock with rank 0's.
type Look struct{ At, Ahead, Within int64 }

// CompareClocks has rank 0 ask each rank on another node for its time, several times. The quickest
// answer counts: the time in it was read within half of the time that the answer took. On other
// ranks it returns nothing. Collective over all ranks.
func CompareClocks(m Ranks, node int, now func() int64) ([]Look, error) {
	nodes := make([]int64, m.Size())
	mine := int64(node)
	if err := m.AllGather(unsafe.Pointer(&nodes[0]), unsafe.Pointer(&mine), 1, elem.Int64); err != nil {
		return nil, err
	}
	const rounds = 32
	var at int64
	p := unsafe.Pointer(&at)
	if m.Rank() != 0 {
		if nodes[m.Rank()] == nodes[0] {
			return nil, nil
		}
		for range rounds {
			if err := m.Recv(p, 1, elem.Int64, 0); err != nil {
				return nil, err
			}
			at = now()
			if err := m.Send(p, 1, elem.Int64, 0); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	looks := make([]Look, m.Size())
	for r := range looks {
		best := &looks[r]
		if nodes[r] == nodes[0] {
			best.At = now()
			continue
		}
		for i := range rounds {
			asked := now()
			if err := m.Send(p, 1, elem.Int64, r); err != nil {
				return nil, err
			}
			if err := m.Recv(p, 1, elem.Int64, r); err != nil {
				return nil, err
			}
			if half := (now() - asked) / 2; i == 0 || half < best.Within {
				*best = Look{at, at - asked - half, half}
			}
		}
	}
	return looks, nil
}

// Clocks compares the clocks of all ranks, at the start and at the end of what they note.
type Clocks struct{ first []Look }

// Start compares them the first time, and has every rank know. node is the number of this rank's
// node. Collective over all ranks.
func (c *Clocks) Start(m Ranks, node int) error {
	first, err := CompareClocks(m, node, Now)
	if err != nil {
		return err
	}
	c.first = make([]Look, m.Size())
	copy(c.first, first)
	return m.Broadcast(unsafe.Pointer(&c.first[0]), len(c.first)*int(unsafe.Sizeof(Look{}))/8, elem.Int64, 0)
}

// apart is the most by which the clocks of two computers come apart in a second.
const apart = 1e-4

// Since returns how each is ahead of rank 0's if they are not compared again. It may be called on
// any rank.
func (c *Clocks) Since() []Clock {
	list := make([]Clock, len(c.first))
	now := Now()
	for r, l := range c.first {
		list[r] = Clock{At: [2]int64{l.At, l.At}, Ahead: [2]int64{l.Ahead, l.Ahead}, Within: l.Within}
		if l.Within > 0 { // not this node's
			list[r].Within += int64(apart * float64(max(now-l.At, 0)))
		}
	}
	return list
}

// End compares them again, and returns how each is ahead of rank 0's, on rank
// 0. Collective over all ranks.
func (c *Clocks) End(m Ranks, node int) ([]Clock, error) {
	last, err := CompareClocks(m, node, Now)
	list := make([]Clock, len(last))
	for r, l := range last {
		f := c.first[r]
		list[r] = Clock{[2]int64{f.At, l.At}, [2]int64{f.Ahead, l.Ahead}, max(f.Within, l.Within)}
	}
	return list, err
}

// Log has the notes of one rank.
type Log struct {
	Rank    int          `json:"rank"`
	Host    string       `json:"host"`
	Names   []string     `json:"names"`
	Threads []ThreadInfo `json:"threads"`
	Comms   []CommInfo   `json:"comms"`
	Dropped uint64       `json:"dropped"` // events that the ring had no more room for
	Count   int          `json:"count"`   // of Events
	Within  int64        `json:"within"`  // ns by which times of devices may be wrong
	Clock   Clock        `json:"-"`
	Events  []Event      `json:"-"` // the oldest first
}

// ThreadInfo is a line of events.
type ThreadInfo struct {
	Name   string `json:"name"`
	Device bool   `json:"device"` // a GPU told the times
}

// CommInfo is a communicator, and the rank in it.
type CommInfo struct {
	Name string `json:"name"`
	Rank int    `json:"rank"`
	Size int    `json:"size"`
}

// log returns the rank's notes, with its newest events, as many as most.
func (t *Tracer) log(rank, most int) *Log {
	t.mu.Lock()
	defer t.mu.Unlock()
	host, _ := os.Hostname() // empty if it has none
	l := &Log{Rank: rank, Host: host, Names: t.named, Dropped: t.lost, Within: t.within}
	for _, th := range t.threads {
		l.Threads = append(l.Threads, ThreadInfo{th.name, th.device})
	}
	for _, c := range t.comms {
		l.Comms = append(l.Comms, CommInfo{c.name, c.rank, c.size})
	}
	size := uint64(len(t.ring))
	n := min(t.next, size, uint64(most))
	l.Dropped += t.next - n
	l.Events = make([]Event, 0, n)
	for at := t.next - n; at < t.next; {
		piece := t.ring[at%size : min(at%size+t.next-at, size)]
		l.Events = append(l.Events, piece...)
		at += uint64(len(piece))
	}
	l.Count = len(l.Events)
	return l
}

// Gather returns, on rank 0, the notes of all ranks. Clocks are compared. Collective over all
// ranks.
func (t *Tracer) Gather(m Ranks, clocks []Clock) ([]*Log, error) {
	mine := t.log(m.Rank(), mostKept)
	head, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	heads, err := control.Gather(m, head)
	if err != nil {
		return nil, err
	}
	const words = int(unsafe.Sizeof(Event{})) / 8
	if m.Rank() != 0 {
		if mine.Count == 0 {
			return nil, nil
		}
		return nil, m.Send(unsafe.Pointer(&mine.Events[0]), words*mine.Count, elem.Int64, 0)
	}
	logs := []*Log{mine}
	for r := 1; r < m.Size(); r++ {
		l := &Log{}
		if err := json.Unmarshal(heads[r], l); err != nil {
			return nil, fmt.Errorf("what rank %d has noted: %w", r, err)
		}
		if l.Count < 0 || l.Count > mostKept {
			return nil, fmt.Errorf("what rank %d has noted: %d events", r, l.Count)
		}
		if l.Count > 0 {
			l.Events = make([]Event, l.Count)
			if err := m.Recv(unsafe.Pointer(&l.Events[0]), words*l.Count, elem.Int64, r); err != nil {
				return nil, err
			}
		}
		logs = append(logs, l)
	}
	for r, l := range logs {
		l.Clock = clocks[r]
	}
	return logs, nil
}

// Dropped returns how many events the rings of all ranks had no room for.
func Dropped(logs []*Log) (n uint64) {
	for _, l := range logs {
		n += l.Dropped
	}
	return n
}

// WriteFile writes the notes of a job's ranks into a file, and ends the file.
func WriteFile(f *runfiles.File, name string, logs []*Log, of int) error {
	return write(f, name, logs, of, time.Time{})
}

func write(f *runfiles.File, name string, logs []*Log, of int, until time.Time) error {
	if err := Write(f, logs, of, compressed(name), until); err != nil {
		return errors.Join(err, f.Drop())
	}
	return f.Commit()
}
