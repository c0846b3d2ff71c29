package verify

import (
	"sync"
	"sync/atomic"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
)

// Progress is how far a stream on a GPU has got. Values of Progress are compared.
type Progress interface {
	// Passed returns how many commands of the stream are known to have run. It only reads memory.
	Passed() uint64
}

// OnDevice says that the calls of the communicator run on a GPU, before the first is made there.
func (r *Recorder) OnDevice() {
	if r.device == nil {
		r.device = &inFlight{}
	}
}

// inFlight holds the calls of a communicator that were handed to a GPU and are not known to be
// over; of many, the last.
type inFlight struct {
	mu    sync.Mutex // held for moments only
	ring  [64]issued
	first uint64 // the number of the oldest that is not known to be over, from 0
	next  uint64 // of the next
}

// issued is such a call.
type issued struct {
	Packed
	on   Progress
	seq  uint64
	site ccall.Site
	// The first calls of a group, and their number: it is used again once it is issued.
	first [4]Packed
	calls int
}

func (c *issued) String() string {
	if c.kind() != coll.Group {
		return c.Packed.String()
	}
	var first []coll.Call
	for _, p := range c.first[:min(c.calls, len(c.first))] {
		first = append(first, p.call())
	}
	return describeGroup(first, c.calls)
}

// BeginOnDevice is Begin for a call that is compared before it is issued. Issue is then told that
// it has begun.
func (r *Recorder) BeginOnDevice(c *coll.Call, g Group) {
	r.device.mu.Lock() // who issues a call does so outside of the order in MPI
	defer r.device.mu.Unlock()
	r.Begin(c, g)
}

// NotBegun is the begun of Issue for a call that BeginOnDevice did not see.
const NotBegun = false

// Issue notes a call that is about to be handed over, as command number seq of a stream. begun says
// that it has begun already.
func (r *Recorder) Issue(on Progress, seq uint64, c *coll.Call, g Group, memory Memory, site *ccall.Site, begun bool) {
	f := r.device
	f.mu.Lock()
	defer f.mu.Unlock()
	p := Pack(c, g)
	if !begun {
		r.Begin(c, g)
		r.Leave() // the host has left it; inFlight knows when it is over
	}
	r.Note(p, c, g, memory, site)
	slot := &f.ring[f.next%uint64(len(f.ring))]
	*slot = issued{Packed: p, on: on, seq: seq, site: *site}
	if c.Kind == coll.Group {
		slot.calls = g.Len()
		for i := range min(slot.calls, len(slot.first)) {
			in, _ := g.Call(i)
			slot.first[i] = Pack(in, nil)
		}
	}
	f.next++
	f.first = max(f.first, f.next-min(f.next, uint64(len(f.ring))))
}

// On returns the first call on a stream that is not known to be over, and its place.
func (r *Recorder) On(stream Progress) (what, place string, ok bool) {
	f := r.device
	if f == nil {
		return "", "", false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retire()
	for i := f.first; i < f.next; i++ {
		if c := &f.ring[i%uint64(len(f.ring))]; c.on == stream && stream.Passed() < c.seq {
			return c.String(), "from " + c.site.String(), true
		}
	}
	return "", "", false
}

// over returns how many of the calls that the host has left are known to be over.
func (f *inFlight) over(left *atomic.Uint64) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retire()
	return left.Load() - (f.next - f.first)
}

// retire drops the calls that are known to be over. The caller holds f.mu.
func (f *inFlight) retire() {
	for f.first < f.next {
		c := &f.ring[f.first%uint64(len(f.ring))]
		if c.on.Passed() < c.seq {
			return
		}
		c.on = nil
		f.first++
	}
}

// lastGroup returns the calls of the last call, if that is a group; else "".
func (f *inFlight) lastGroup() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.last(); c != nil && c.kind() == coll.Group {
		return c.String()
	}
	return ""
}

// lastPlace returns the place of the last call; "" before the first.
func (f *inFlight) lastPlace() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.last(); c != nil {
		return "from " + c.site.String()
	}
	return ""
}

// last returns the last call; nil before the first. The caller holds f.mu.
func (f *inFlight) last() *issued {
	if f.next == 0 {
		return nil
	}
	return &f.ring[(f.next-1)%uint64(len(f.ring))]
}
