// Package trace notes what a rank does and when: the calls of its program, the commands of its
// streams, collectives and messages. The summary at the end of a run (--summary) and the file of
// --trace, which Perfetto opens, come from these notes.
//
// A Tracer belongs to one rank. It has a Thread for the program's calls, one for each stream, and a
// Comm for each communicator. All are pointers whose methods do nothing if they are nil: what
// traces nothing pays a comparison.
//
// For a summary alone not each short call is timed, since timing very many would cost too much.
// Then a part of them, chosen by chance, is timed and stands for the others. With --trace each call
// is timed and kept in a ring of fixed size.
package trace

import (
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/spmd/internal/coll"
)

// Class says how a time is spent.
type Class uint8

// The classes.
const (
	Compute    Class  = iota // kernels, calls of libraries, functions of the host in a stream
	Collective               // calls in which every rank of a communicator takes part
	Message                  // between two ranks, and groups of messages
	Copy                     // copies and fills
	Replay                   // of a graph
	Wait                     // the program, or a stream, waits for a stream
	Region                   // what the program names
	Classes    = iota        // number of classes
)

var classNames = [Classes]string{"compute", "collective", "message", "copy", "graph", "wait", "region"}

// String returns the class as files and tables have it.
func (c Class) String() string { return classNames[c] }

// Event is something that had a beginning and an end.
type Event struct {
	Start, End int64 // ns of this node's clock, as Now has it
	// of a collective: its number in the communicator. Of a message: among those to Peer. Of a part
	// of a replay, which has no Comm: how many replays it stands for
	Seq        uint64
	Received   uint64 // of a message: its number among those received from From
	Bytes      int64
	Thread     int32 // in the order in which the rank's threads were made
	Name       int32 // in the rank's names
	Comm       int32 // in the order in which the rank's communicators were made; -1 without
	Peer, From int32 // of a message: the ranks in the communicator that it goes to, and comes from; -1 without
	Class      Class
	Kind       coll.Kind // of a call of a communicator
}

// clock compares this process's clock with the node's.
var clock = func() (c struct {
	start time.Time
	at    int64 // of the node's monotonic clock
}) {
	best := time.Duration(1<<63 - 1)
	for range 16 { // whoever is interrupted between the two looks has a poor pair
		before := time.Now()
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return c // each process then has a clock of its own, which Offsets compares
		}
		if took := time.Since(before); took < best {
			best, c.start, c.at = took, before, ts.Nano()-int64(took/2)
		}
	}
	return c
}()

// Now returns the time in ns by a clock that all processes of a node share, where the system has
// such a one.
func Now() int64 { return clock.at + int64(time.Since(clock.start)) }

// How many calls of a class are timed in a second for a summary. It
// costs 0.1 % of the time at most.
const (
	perSecondHost   = 10_000
	perSecondDevice = 250 // two events of the driver each
)

// Events kept of all ranks, where the file is compressed, and of a rank at least. An event
// takes 72 bytes of memory, and some 170 in the file, compressed 20. A file that is not
// compressed has a quarter of them.
const (
	mostKept  = 1 << 20
	leastKept = 1 << 14
)

// Options say what is to be noted.
type Options struct {
	Summary bool
	File    string // of --trace; "" where events are not kept
	Ranks   int    // of the job: each has its part of the file
	Parts   bool   // some replays of graphs on GPUs are timed command by command
}

// Tracer notes what a rank does.
type Tracer struct {
	Parts bool // as in Options
	keeps bool
	began int64

	mu      sync.Mutex
	ring    []Event
	next    uint64 // events kept so far
	lost    uint64 // events whose times nobody could tell
	within  int64  // ns by which times of devices may be wrong
	names   map[string]int32
	named   []string
	recent  [64]known // names that were looked up, by where they lie
	threads []*Thread
	comms   []*Ledger
	host    [Classes]Total // of the first thread, which is what the program calls
	streams [Classes]Total // of the others
	called  float64        // ns in calls that block
	facts   []Fact
	regions map[int32]*Total
	works   []Total           // of kernels, libraries, host functions, copies and fills, by their names' numbers
	sizes   [coll.Most]*sizes // of calls of communicators
	late    []sample          // a ring
	sampled uint64
}

// Total is the total of the calls of one kind.
type Total struct {
	Count   uint64  `json:"count"`
	Bytes   uint64  `json:"bytes"`
	Nanos   float64 `json:"ns"`                 // of all, as those that were timed have it
	Least   int64   `json:"least,omitempty"`    // ns of the shortest that was timed; 0 if none was
	Timed   float64 `json:"timed"`              // calls that Nanos stands for
	Moved   float64 `json:"moved,omitempty"`    // bytes that these have to move over a link; see BusFactor
	InGraph uint64  `json:"in_graph,omitempty"` // of Count: calls in graphs, which nobody times
}

// sizes are the totals of the calls of a kind, by the power of two in which their bytes lie. No map
// has them: it would be asked in every call, at a tenth of the price of a short one.
type sizes [1 + 64]Total

// sizeKey is a kind of call, and the power of two in which its bytes lie.
type sizeKey struct {
	kind coll.Kind
	log  uint8
}

// sample is a collective, to be compared with what other ranks have of the same.
type sample struct {
	Comm  int32  `json:"c"`
	Seq   uint64 `json:"n"`
	Start int64  `json:"s"`
	End   int64  `json:"e"`
}

// samples is how many collectives of a rank are kept to be compared.
const samples = 1024

// mostNames bounds what is kept of names that a program may make up as it goes.
const mostNames = 1 << 12

// New returns the Tracer of a rank; nil if nothing is to be noted.
func New(o Options) *Tracer {
	if !o.Summary && o.File == "" {
		return nil
	}
	t := &Tracer{Parts: o.Parts, keeps: o.File != "", began: Now(), names: map[string]int32{},
		regions: map[int32]*Total{}, late: make([]sample, samples)}
	if t.keeps {
		n := mostKept
		if !compressed(o.File) {
			n /= 4
		}
		t.ring = make([]Event, max(n/max(o.Ranks, 1), leastKept))
	}
	return t
}

// Keeps reports whether events are kept: then each is timed.
func (t *Tracer) Keeps() bool { return t != nil && t.keeps }

// KnownWithin says within how many ns the times of a device are known.
func (t *Tracer) KnownWithin(ns int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.within = max(t.within, ns)
}

// known is a name whose number is known.
type known struct {
	name   string
	number int32
}

// name returns the number of a name. Most names come again and again, and lie where they lay: a map
// takes longer. The caller holds t.mu.
func (t *Tracer) name(s string) int32 {
	k := &t.recent[uintptr(unsafe.Pointer(unsafe.StringData(s)))>>3%uintptr(len(t.recent))]
	if k.name != s || s == "" {
		k.name, k.number = s, t.number(s)
	}
	return k.number
}

func (t *Tracer) number(s string) int32 {
	if i, ok := t.names[s]; ok {
		return i
	}
	if len(t.named) == mostNames {
		s = "other"
		if i, ok := t.names[s]; ok {
			return i
		}
	}
	i := int32(len(t.named))
	t.names[s], t.named = i, append(t.named, s)
	return i
}

// note counts an event, which moves its bytes factor times, and keeps it. The caller holds t.mu.
func (t *Tracer) note(e *Event, m Mark, factor float64) {
	bytes := e.Bytes
	if e.Class == Compute { // of all of it they are not known
		bytes = 0
	}
	if e.Thread == 0 {
		t.host[e.Class].add(e, bytes, m, factor)
		if e.Class != Region && m.weight != 0 {
			t.called += float64(m.weight) * float64(e.End-e.Start)
		}
	} else {
		t.streams[e.Class].add(e, bytes, m, factor)
	}
	switch e.Class {
	case Compute, Copy:
		t.work(e.Name).add(e, e.Bytes, m, 1)
	case Region:
		r := t.regions[e.Name]
		if r == nil {
			r = &Total{}
			t.regions[e.Name] = r
		}
		r.add(e, 0, m, 0)
	case Collective, Message:
		t.size(e.Kind, logOf(e.Bytes)).add(e, e.Bytes, m, factor)
	}
	t.keep(e, m)
}

// work returns the total of a name. The caller holds t.mu.
func (t *Tracer) work(name int32) *Total {
	for int(name) >= len(t.works) {
		t.works = append(t.works, Total{})
	}
	return &t.works[name]
}

// size returns the total of a kind of calls of a size. The caller holds t.mu.
func (t *Tracer) size(kind coll.Kind, log uint8) *Total {
	if t.sizes[kind] == nil {
		t.sizes[kind] = &sizes{}
	}
	return &t.sizes[kind][log]
}

// keep adds an event that was timed to the ring. The caller holds t.mu.
func (t *Tracer) keep(e *Event, m Mark) {
	if !t.keeps {
		return
	}
	if m.weight == 0 {
		t.lost++
		return
	}
	t.ring[t.next%uint64(len(t.ring))] = *e
	t.next++
}

// add counts an event of so many bytes.
func (t *Total) add(e *Event, bytes int64, m Mark, factor float64) {
	t.Count++
	t.Bytes += uint64(bytes)
	if m.weight != 0 {
		t.time(e, bytes, m, factor)
	}
}

// time counts how long an event of so many bytes took.
func (t *Total) time(e *Event, bytes int64, m Mark, factor float64) {
	took := e.End - e.Start
	t.Nanos += float64(m.weight) * float64(took)
	t.Timed += float64(m.weight)
	t.Moved += float64(m.weight) * factor * float64(bytes)
	if t.Least == 0 || took < t.Least {
		t.Least = max(took, 1)
	}
}

// Thread is a line of events of a rank: what its program calls, or a stream.
// A nil Thread notes nothing.
type Thread struct {
	t       *Tracer
	id      int32
	name    string
	device  bool
	closed  bool
	sampler [Classes]sampler
}

// The device of a thread.
const ofHost, ofDevice = false, true

// Thread returns a new line of events.
func (t *Tracer) Thread(name string) *Thread { return t.thread(name, ofHost) }

// DeviceThread returns a new line of events whose times a GPU tells.
func (t *Tracer) DeviceThread(name string) *Thread { return t.thread(name, ofDevice) }

func (t *Tracer) thread(name string, device bool) *Thread {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, th := range t.threads {
		if th.closed && th.name == name && th.device == device {
			th.closed = false
			return th
		}
	}
	th := &Thread{t: t, id: int32(len(t.threads)), name: name, device: device}
	t.threads = append(t.threads, th)
	return th
}

// Close ends the line, which the next one of its name goes on with.
func (th *Thread) Close() {
	if th == nil {
		return
	}
	th.t.mu.Lock()
	defer th.t.mu.Unlock()
	th.closed = true
}

// Mark is the beginning of an event. An event with the zero Mark is only counted.
type Mark struct {
	At     int64
	weight uint32 // how many events this one stands for; 0 if it is not timed
}

// Timed reports whether the event is timed.
func (m Mark) Timed() bool { return m.weight != 0 }

func (th *Thread) Begin(c Class) Mark {
	if th == nil {
		return Mark{}
	}
	m := th.Choose(c)
	if m.weight != 0 {
		m.At = Now()
	}
	return m
}

// Choose reports whether an event whose time another clock tells is to be timed.
func (th *Thread) Choose(c Class) Mark {
	if th == nil {
		return Mark{}
	}
	if th.t.keeps {
		return Mark{weight: 1}
	}
	th.t.mu.Lock()
	defer th.t.mu.Unlock()
	limit := uint32(perSecondHost)
	if th.device {
		limit = perSecondDevice
	}
	s := &th.sampler[c]
	s.count(limit)
	s.random = s.random*1664525 + 1013904223
	return Mark{weight: s.weight(s.random >> 8)}
}

func (th *Thread) End(m Mark, c Class, name string, bytes int) {
	if th == nil {
		return
	}
	e := Event{Start: m.At, Class: c, Bytes: int64(bytes), Comm: -1, Peer: -1, From: -1}
	if m.weight != 0 {
		e.End = Now()
	}
	th.Note(m, &e, name)
}

// EndLong is End for a wait that is nothing if it was short.
func (th *Thread) EndLong(m Mark, name string) {
	const short = 2000 // ns
	if th == nil || m.weight == 0 || Now()-m.At < short {
		return
	}
	th.End(m, Wait, name, 0)
}

// Note notes an event whose times are known.
func (th *Thread) Note(m Mark, e *Event, name string) {
	if th == nil {
		return
	}
	t := th.t
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Thread = th.id
	if t.keeps || e.Class == Region || e.Class == Compute || e.Class == Copy {
		e.Name = t.name(name)
	}
	factor := 0.0
	if e.Class == Copy {
		factor = 1
	}
	t.note(e, m, factor)
}

// sampler decides which events of a class are timed.
type sampler struct {
	since  int64  // when n was 0
	n      uint32 // since then
	shift  uint8  // one of 1<<shift is timed
	random uint32
}

// count counts an event and, now and then, looks how many there are in a second.
func (s *sampler) count(limit uint32) {
	const look = 64
	if s.n++; s.n < look {
		return
	}
	now := Now()
	rate := float64(look) * 1e9 / float64(max(now-s.since, 1))
	s.since, s.n, s.shift = now, 0, 0
	for rate > float64(limit) && s.shift < 20 {
		rate, s.shift = rate/2, s.shift+1
	}
}

// weight returns how many events one with a random number stands for; 0 if it is not to be timed.
func (s *sampler) weight(random uint32) uint32 {
	if random&(1<<s.shift-1) != 0 {
		return 0
	}
	return 1 << s.shift
}
