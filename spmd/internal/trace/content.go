package trace

import "lockstep/spmd/internal/coll"

// Content counts the commands of a graph.
type Content struct {
	calls []held
	parts []int32 // for each command its place in calls; -1 of a coll.Group
	moved int64   // bytes of calls of communicators
}

// held counts commands of one class with one name, or of one kind and size.
type held struct {
	class Class
	name  string // of Compute and Copy
	kind  coll.Kind
	log   uint8
	ranks int // of a call of a communicator
	count uint64
	bytes int64
}

// Span has the times, by Now, at which a part of a replay began and ended.
type Span struct{ Start, End int64 }

// Add adds a command, which has a name as Describe has it.
func (h *Content) Add(class Class, name string, bytes int64) {
	h.parts = append(h.parts, h.add(held{class: class, name: name}, bytes))
}

// AddCall adds a call of a communicator of some ranks; g is its calls if it is a coll.Group.
func (h *Content) AddCall(c *coll.Call, g Group, size int) {
	if c.Kind != coll.Group {
		h.parts = append(h.parts, h.addCall(c, size))
		return
	}
	for i := range g.Len() {
		h.addCall(g.Part(i), size)
	}
	h.parts = append(h.parts, -1)
}

func (h *Content) addCall(c *coll.Call, size int) int32 {
	class, bytes := Collective, c.Bytes(size)
	if c.Kind.Traits().Message {
		class = Message
	}
	h.moved += bytes
	return h.add(held{class: class, kind: c.Kind, log: logOf(bytes), ranks: size}, bytes)
}

// add adds a command and returns its place.
func (h *Content) add(what held, bytes int64) int32 {
	for i := range h.calls {
		o := &h.calls[i]
		if what.count, what.bytes = o.count, o.bytes; *o == what {
			o.count, o.bytes = o.count+1, o.bytes+bytes
			return int32(i)
		}
	}
	what.count, what.bytes = 1, bytes
	h.calls = append(h.calls, what)
	return int32(len(h.calls) - 1)
}

// total is where the commands count by name, or by kind and size; nil if they have none. The caller
// holds t.mu.
func (t *Tracer) total(h *held) *Total {
	switch h.class {
	case Compute, Copy:
		return t.work(t.name(h.name))
	case Collective, Message:
		return t.size(h.kind, h.log)
	}
	return nil
}

// Holds counts what a graph holds that is replayed.
func (t *Tracer) Holds(h *Content) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range h.calls {
		o := &h.calls[i]
		bytes := o.bytes
		if o.class == Compute {
			bytes = 0 // as in note
		}
		o.onto(&t.streams[o.class], bytes)
		if total := t.total(o); total != nil {
			o.onto(total, o.bytes)
		}
	}
}

// onto adds commands in a graph, of so many bytes, to a total.
func (h *held) onto(t *Total, bytes int64) {
	t.Count, t.Bytes, t.InGraph = t.Count+h.count, t.Bytes+uint64(bytes), t.InGraph+h.count
}

// Split notes how long each command took in a replay on a line of events, which stands for so many.
// Holds has counted them.
func (t *Tracer) Split(on *Thread, h *Content, spans []Span, replays uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := Mark{weight: replays}
	for i, at := range h.parts {
		if at < 0 {
			continue
		}
		o, s := &h.calls[at], spans[i]
		total := t.total(o)
		if total == nil {
			continue
		}
		e := Event{Start: s.Start, End: s.End, Seq: uint64(replays), Bytes: o.bytes / int64(o.count),
			Thread: on.id, Comm: -1, Peer: -1, From: -1, Class: o.class, Kind: o.kind}
		factor := 1.0
		if o.kind != coll.None {
			factor = BusFactor(o.kind, o.ranks)
		}
		total.time(&e, e.Bytes, m, factor)
		if t.keeps {
			if e.Name = t.name(o.name); o.kind != coll.None {
				e.Name = t.name(o.kind.String())
			}
			t.keep(&e, m)
		}
	}
}
