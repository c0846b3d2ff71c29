package trace

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/spmd/internal/coll"
)

// compressed reports whether a file of this name is compressed.
func compressed(name string) bool { return strings.HasSuffix(name, ".gz") }

// Write writes the notes of a job's ranks in the trace event format of Chrome, which
// ui.perfetto.dev and Chromium's viewer open. Each rank is a process, and each of its lines of
// events a thread. Events of several goroutines may overlap without one being inside of the other:
// their line has several threads.
//
// An arrow joins the calls of one number on one communicator, from the rank that began first to the
// one that began last. A message has an arrow from its sender to its receiver. Source: Trace Event
// Format, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
//
// If there is a time until which it has to be done, what has no room then is dropped.
func Write(to io.Writer, logs []*Log, of int, compress bool, until time.Time) error {
	var packed *gzip.Writer
	if compress {
		packed = gzip.NewWriter(to)
		to = packed
	}
	w := &writer{w: bufio.NewWriterSize(to, 1<<16), flows: map[flowKey][]flowEnd{}, until: until}
	err := w.all(logs, of)
	err = errors.Join(err, w.w.Flush())
	if packed != nil {
		err = errors.Join(err, packed.Close())
	}
	return err
}

// writer writes a trace.
type writer struct {
	w     *bufio.Writer
	buf   []byte
	some  bool  // an event was written
	first int64 // the earliest time, which becomes 0
	flows map[flowKey][]flowEnd
	until time.Time // the zero time: as long as it takes
	late  bool      // that has passed
}

// overdue reports whether nothing more is to be written. The clock is read for one of many events.
func (w *writer) overdue(i int) bool {
	if i%256 == 0 && !w.until.IsZero() && time.Now().After(w.until) {
		w.late = true
	}
	return w.late
}

// flowKey is a collective, or a message.
type flowKey struct {
	comm     string
	from, to int32 // of a message; -1 of a collective
	seq      uint64
}

// flowEnd is an event that has an arrow.
type flowEnd struct {
	pid, tid int
	at       int64
	kind     coll.Kind
	receives bool // of a message
}

// deviceNoise is by how much times of a GPU may overlap that came one after the other, in ns.
const deviceNoise = 2000

// threadsOfLine is the most threads of a line of events.
const threadsOfLine = 100

func (w *writer) all(logs []*Log, of int) error {
	if len(logs) == 0 {
		return errors.New("nothing was noted")
	}
	some := false
	for _, l := range logs {
		for i := range l.Events {
			e := &l.Events[i]
			e.Start, e.End = l.Clock.ToFirst(e.Start), l.Clock.ToFirst(e.End)
			if !some || e.Start < w.first {
				some, w.first = true, e.Start
			}
		}
	}
	fmt.Fprint(w.w, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")
	for _, l := range logs {
		if err := w.rank(l); err != nil {
			return err
		}
	}
	if !w.overdue(0) {
		w.arrows()
	}
	dropped, clocks := map[string]uint64{}, int64(0)
	for _, l := range logs {
		if clocks = max(clocks, l.Clock.Within+l.Within); l.Dropped > 0 {
			dropped[strconv.Itoa(l.Rank)] = l.Dropped
		}
	}
	other := map[string]any{"ranks": of, "dropped_events": dropped, "clocks_within_us": float64(clocks) / 1e3}
	var missing []int
	for r := range of {
		if !slices.ContainsFunc(logs, func(l *Log) bool { return l.Rank == r }) {
			missing = append(missing, r)
		}
	}
	if missing != nil {
		other["missing_ranks"] = missing
	}
	text, err := json.Marshal(other)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.w, "\n],\"otherData\":%s}\n", text)
	return err
}

// rank writes the process of a rank.
func (w *writer) rank(l *Log) error {
	name := fmt.Sprintf("rank %d", l.Rank)
	if l.Host != "" {
		name += " on " + l.Host
	}
	w.meta(l.Rank, 0, "process_name", "name", name)
	w.metaNumber(l.Rank, 0, "process_sort_index", l.Rank)
	lines := make([][]*Event, len(l.Threads))
	for i := range l.Events {
		e := &l.Events[i]
		if int(e.Thread) >= len(lines) || int(e.Name) >= len(l.Names) || int(e.Comm) >= len(l.Comms) {
			return fmt.Errorf("rank %d: event %d is of no thread, name or communicator", l.Rank, i)
		}
		lines[e.Thread] = append(lines[e.Thread], e)
	}
	for i, line := range lines {
		if len(line) > 0 {
			w.line(l, i, line)
		}
	}
	if l.Dropped > 0 {
		w.meta(l.Rank, 0, "process_labels", "labels", fmt.Sprintf("%d events dropped", l.Dropped))
	}
	return nil
}

// line writes a line of events as one thread, or several.
func (w *writer) line(l *Log, i int, line []*Event) {
	slices.SortStableFunc(line, func(a,
		b *Event) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.End, a.End))
	})
	var open [][]int64 // for each thread the ends of the events that are open, the outermost first
	for n, e := range line {
		if w.overdue(n) {
			l.Dropped += uint64(len(line) - n)
			break
		}
		lane := 0
		for ; lane < len(open) && lane < threadsOfLine-1; lane++ {
			ends := open[lane]
			for len(ends) > 0 && ends[len(ends)-1] <= e.Start {
				ends = ends[:len(ends)-1]
			}
			open[lane] = ends
			if len(ends) == 0 || e.End <= ends[len(ends)-1] {
				break
			}
			if end := ends[len(ends)-1]; l.Threads[i].Device && end-e.Start <= deviceNoise && len(ends) == 1 {
				e.Start, open[lane] = end, ends[:0]
				break
			}
		}
		if lane == len(open) {
			open = append(open, nil)
		}
		open[lane] = append(open[lane], e.End)
		w.event(l, e, i*threadsOfLine+lane)
	}
	for lane := range open {
		name := l.Threads[i].Name
		if lane > 0 {
			name += fmt.Sprintf(" (%d)", lane+1)
		}
		w.meta(l.Rank, i*threadsOfLine+lane, "thread_name", "name", name)
		w.metaNumber(l.Rank, i*threadsOfLine+lane, "thread_sort_index", i*threadsOfLine+lane)
	}
}

// event writes an event, and notes its arrows.
func (w *writer) event(l *Log, e *Event, tid int) {
	b := w.begin('X', l.Rank, tid, e.Start)
	b = append(b, `,"dur":`...)
	b = appendMicros(b, max(e.End-e.Start, 0))
	b = append(b, `,"name":`...)
	b = appendText(b, l.Names[e.Name])
	b = append(b, `,"cat":"`...)
	b = append(b, e.Class.String()...)
	b = append(b, '"')
	args := len(b)
	number := func(name string, n int64) {
		b = append(b, ',', '"')
		b = append(b, name...)
		b = append(b, '"', ':')
		b = strconv.AppendInt(b, n, 10)
	}
	if e.Bytes > 0 {
		number("bytes", e.Bytes)
	}
	if e.Comm < 0 && e.Seq > 0 {
		number("replays", int64(e.Seq))
	}
	if e.Comm >= 0 {
		c := &l.Comms[e.Comm]
		b = append(b, `,"comm":`...)
		b = appendText(b, c.Name)
		if c.Rank != l.Rank {
			number("rank", int64(c.Rank))
		}
		me := int32(c.Rank)
		end := flowEnd{pid: l.Rank, tid: tid, at: e.Start, kind: e.Kind}
		if e.Seq > 0 && (e.Class == Collective || e.Class == Replay) {
			number("seq", int64(e.Seq))
			k := flowKey{c.Name, -1, -1, e.Seq}
			w.flows[k] = append(w.flows[k], end)
		}
		if e.Peer >= 0 {
			number("to", int64(e.Peer))
			number("sent", int64(e.Seq))
			k := flowKey{c.Name, me, e.Peer, e.Seq}
			w.flows[k] = append(w.flows[k], end)
		}
		if e.From >= 0 {
			number("from", int64(e.From))
			number("received", int64(e.Received))
			k := flowKey{c.Name, e.From, me, e.Received}
			end.receives = true
			end.at = max(e.End-3, e.Start) // inside of the event, also for who rounds both of its times down
			w.flows[k] = append(w.flows[k], end)
		}
	}
	if len(b) > args {
		b[args] = '{'
		b = slices.Insert(b, args, []byte(`,"args":`)...)
		b = append(b, '}')
	}
	w.end(b)
}

// arrows writes the arrows between ranks.
func (w *writer) arrows() {
	id := 0
	keys := make([]flowKey, 0, len(w.flows))
	for k, ends := range w.flows {
		if len(ends) > 1 {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b flowKey) int {
		return cmp.Or(cmp.Compare(a.comm, b.comm), cmp.Compare(a.seq, b.seq), cmp.Compare(a.from, b.from),
			cmp.Compare(a.to, b.to))
	})
	for _, k := range keys {
		ends := w.flows[k]
		if k.from >= 0 && (len(ends) != 2 || ends[0].receives == ends[1].receives) {
			continue // its other end was dropped, or is in a group of another form
		}
		slices.SortFunc(ends, func(a, b flowEnd) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.pid, b.pid))
		})
		if k.from >= 0 && ends[0].receives {
			continue // by clocks that are not known well enough
		}
		id++
		for i, e := range ends {
			ph := byte('t')
			switch i {
			case 0:
				ph = 's'
			case len(ends) - 1:
				ph = 'f'
			}
			b := w.begin(ph, e.pid, e.tid, e.at)
			b = append(b, `,"id":`...)
			b = strconv.AppendInt(b, int64(id), 10)
			b = append(b, `,"name":"`...)
			b = append(b, ends[0].kind.String()...)
			b = append(b, `","cat":"ranks"`...)
			if ph == 'f' {
				b = append(b, `,"bp":"e"`...)
			}
			w.end(b)
		}
	}
}

// begin begins an event of the file.
func (w *writer) begin(ph byte, pid, tid int, at int64) []byte {
	b := append(w.buf[:0], `{"ph":"`...)
	b = append(b, ph)
	b = append(b, `","pid":`...)
	b = strconv.AppendInt(b, int64(pid), 10)
	b = append(b, `,"tid":`...)
	b = strconv.AppendInt(b, int64(tid), 10)
	b = append(b, `,"ts":`...)
	return appendMicros(b, at-w.first)
}

// end ends an event of the file.
func (w *writer) end(b []byte) {
	if w.some {
		_, _ = w.w.WriteString(",\n") // Flush returns the first error
	}
	w.some = true
	w.buf = append(b, '}')
	_, _ = w.w.Write(w.buf)
}

// meta names a process or a thread.
func (w *writer) meta(pid, tid int, what, arg, value string) {
	b := w.begin('M', pid, tid, w.first)
	b = fmt.Appendf(b, `,"name":%q,"args":{%q:`, what, arg)
	w.end(append(appendText(b, value), '}'))
}

func (w *writer) metaNumber(pid, tid int, what string, n int) {
	b := w.begin('M', pid, tid, w.first)
	w.end(fmt.Appendf(b, `,"name":%q,"args":{"sort_index":%d}`, what, n))
}

// appendMicros appends ns as microseconds.
func appendMicros(b []byte, ns int64) []byte {
	b = strconv.AppendInt(b, ns/1000, 10)
	rest := ns % 1000
	return append(b, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
}

// appendText appends a text as JSON has it.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			quoted, _ := json.Marshal(s) // a string always can
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
