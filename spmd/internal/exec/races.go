package exec

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Races finds two commands of a rank that touch the same bytes, one of which writes them, if
// nothing puts them in order. It is for --check. Queues and the host have vector clocks, and so
// have the lanes of a capture. A block knows which commands have touched its bytes last.
type Races struct {
	mu      sync.Mutex
	strands []*strand
	bases   []uint64 // how many commands of queues that are gone had the place
	host    clock    // what the host knows
	changes uint64   // of host
	place   place    // of the command that is looked at
	touched []touch  // by it
}

// clock says of each strand how many of its commands are known to be over. It never changes.
type clock []uint64

func (c clock) has(at int, n uint64) bool { return n == 0 || at < len(c) && c[at] >= n }

// with returns what c and o know together, and whether that is more than c.
func (c clock) with(o clock) (all clock, more bool) {
	all = c
	for at, n := range o {
		if c.has(at, n) {
			continue
		}
		if !more {
			all, more = make(clock, max(len(c), len(o))), true
			copy(all, c)
		}
		all[at] = n
	}
	return all, more
}

// and returns c with n commands of one strand.
func (c clock) and(at int, n uint64) clock {
	all := make(clock, max(len(c), at+1))
	copy(all, c)
	all[at] = max(all[at], n)
	return all
}

// strand is a queue as clocks have it: its commands run in order.
type strand struct {
	races   *Races
	name    string
	at      int      // its place in clocks
	base    uint64   // how many commands of other queues had that place before
	changes uint64   // of the host's clock that it knows
	known   []moment // what its commands know, the latest last
	places  map[ccall.Site]*place
	settles bool // its commands are calls that block: they wait for what uses their memory
}

type moment struct {
	from uint64 // the first command that knows it
	clock
}

// mostMoments is how many a strand keeps. Earlier commands count as if they knew the first.
const mostMoments = 64

// learn has the commands from one on know more.
func (s *strand) learn(from uint64, c clock) {
	last := &s.known[len(s.known)-1]
	all, more := last.with(c)
	switch {
	case !more:
	case last.from == from:
		last.clock = all
	default:
		if len(s.known) == mostMoments {
			s.known = slices.Delete(s.known, 0, mostMoments/2)
		}
		s.known = append(s.known, moment{from, all})
	}
}

// upTo returns what who waits for command n of a strand knows.
func (r *Races) upTo(at int, n uint64) clock {
	var known clock
	if s := r.strands[at]; s != nil && n > s.base {
		i := len(s.known) - 1
		for i > 0 && s.known[i].from > n {
			i--
		}
		known = s.known[i].clock
	}
	return known.and(at, n)
}

// hostKnows has the host know more.
func (r *Races) hostKnows(c clock) {
	var more bool
	if r.host, more = r.host.with(c); more {
		r.changes++
	}
}

// use is a command that has touched memory.
type use struct {
	at int // its strand, or lane
	n  uint64
	*place
	part *use   // of a graph: what was captured
	some *touch // of which it touches or writes some elements, by an index in memory; nil of others
}

// place is what uses by one command of the program's text have in common.
type place struct {
	site string // where that is
	what string // it is
	on   string // which stream
	by   any    // whose calls may write what they touch, or only read it; nil if that is known
}

// guess returns by whom u may write what it touches, or only read it; nil if that is known.
func (u *use) guess() any {
	if u.part != nil {
		return u.part.by
	}
	return u.by
}

func (u *use) String() string {
	if u.part != nil {
		return fmt.Sprintf("%s at %s in the graph on stream %q at %s", u.part.what, u.part.site, u.on, u.site)
	}
	return fmt.Sprintf("%s on stream %q at %s", u.what, u.on, u.site)
}

// touch is bytes that a command touches.
type touch struct {
	b      *Block
	lo, hi int
	writes bool
	some   bool // elements alone, which memory says
	of     *use // what was captured, if the command is a graph
}

// history is who has touched the bytes of a block, in the order of bytes.
type history struct {
	races *Races
	list  []segment
}

type segment struct {
	lo, hi int
	wrote  *use   // last
	was    *use   // the one before: a function of HostFunc may run after wrote was enqueued
	others []*use // which have read it since, or may have written it
}

// mostSegments is how many a block has. With more it forgets them: races may be missed.
const mostSegments = 1024

// cover returns which segments make up [lo, hi).
func (h *history) cover(lo, hi int) (i, j int) {
	i = sort.Search(len(h.list), func(i int) bool { return h.list[i].hi > lo })
	if i < len(h.list) && h.list[i].lo == lo && h.list[i].hi == hi {
		return i, i + 1
	}
	if len(h.list) >= mostSegments {
		h.list, i = nil, 0
	}
	var parts []segment
	add := func(lo, hi int, s segment) {
		if lo < hi {
			parts = append(parts, segment{lo, hi, s.wrote, s.was, slices.Clone(s.others)})
		}
	}
	at := lo
	for j = i; j < len(h.list) && h.list[j].lo < hi; j++ {
		s := h.list[j]
		add(s.lo, min(s.hi, lo), s)
		add(at, s.lo, segment{})
		add(max(s.lo, lo), min(s.hi, hi), s)
		add(hi, s.hi, s)
		at = s.hi
	}
	add(at, hi, segment{})
	h.list = slices.Replace(h.list, i, j, parts...)
	j = i + len(parts)
	if h.list[i].lo < lo {
		i++
	}
	if h.list[j-1].lo >= hi {
		j--
	}
	return i, j
}

// view is what a command knows to be over.
type view struct {
	at    int
	known clock
	// later says that a command waits for this one, which the host runs when others have been
	// enqueued behind it; nil for others.
	later func(*use) bool
}

func (v *view) before(u *use) bool { return u.at == v.at || v.known.has(u.at, u.n) }

func (v *view) apart(u *use) bool { return !v.before(u) && (v.later == nil || !v.later(u)) }

// enter notes that u touches bytes. It refuses a race.
func (h *history) enter(t *touch, u *use, v *view) error {
	i, j := h.cover(t.lo, t.hi)
	guess, clashes := u.guess(), 0
	for k := i; k < j; k++ {
		o, wrote := h.list[k].against(t, u, v)
		if o == nil {
			continue
		}
		if clashes++; u.some == nil || clashes == j-i {
			return race(t, u, o, wrote)
		}
	}
	replaces := t.writes && guess == nil && u.some == nil
	for k := i; k < j; k++ {
		s := &h.list[k]
		if replaces {
			s.was, s.wrote, s.others = s.wrote, u, s.others[:0]
			continue
		}
		s.others = append(slices.DeleteFunc(s.others, func(o *use) bool {
			return v.before(o) && (o.guess() == nil || o.guess() == guess) &&
				(o.some == nil || u.some != nil && *o.some == *u.some)
		}), u)
	}
	if replaces {
		h.list[i].hi = t.hi
		h.list = slices.Delete(h.list, i+1, j)
	}
	return nil
}

// against returns a use of the segment with which u is not in order, if there is one. Uses of some
// elements count where the other one has all from which these are.
func (s *segment) against(t *touch, u *use, v *view) (o *use, wrote bool) {
	if s.wrote != nil && v.apart(s.wrote) {
		return s.wrote, written
	}
	if v.later != nil && s.was != nil && v.apart(s.was) {
		return s.was, written
	}
	for _, o := range s.others {
		wrote := o.some != nil && o.some.writes
		switch {
		case !t.writes && !wrote && o.guess() == nil, o.guess() != nil && o.guess() == u.guess():
		case o.some != nil && (t.lo > o.some.lo || o.some.hi > t.hi):
		case v.apart(o):
			return o, wrote
		}
	}
	return nil, read
}

// mostPlaces is how many a strand keeps.
const mostPlaces = 1024

// shared returns a copy of p that uses may have in common.
func (s *strand) shared(p *place) *place {
	var site ccall.Site
	site.Near()
	known := s.places[site]
	if known == nil || known.what != p.what || known.by != p.by {
		if len(s.places) == mostPlaces {
			clear(s.places)
		}
		known = new(place)
		*known = *p
		known.site = ccall.At()
		s.places[site] = known
	}
	return known
}

// What is done to memory.
const read, written = false, true

// race says which two commands race.
func race(t *touch, u, o *use, wrote bool) error {
	verb := func(u *use, writes bool) string {
		switch {
		case u.guess() != nil, writes && u.some != nil:
			return "may write"
		case writes:
			return "writes"
		}
		return "reads"
	}
	return fmt.Errorf("%s: a race: %v %s bytes %d to %d of a buffer of %d, and %v %s some of them, with nothing "+
		"that puts the two in order: let one stream wait for the other (After, or an Event)",
		ccall.At(), u, verb(u, t.writes), t.lo, t.hi-1, t.b.Bytes, o, verb(o, wrote))
}

// add notes bytes that the command touches.
func (r *Races) add(b *Block, p unsafe.Pointer, bytes int, writes bool) {
	if b != nil && bytes > 0 {
		lo := int(uintptr(p) - uintptr(b.Ptr))
		r.touched = append(r.touched, touch{b: b, lo: lo, hi: lo + bytes, writes: writes})
	}
}

// list notes what a command touches, and what it is.
func (r *Races) list(c *Command, p *place) {
	var args uint64
	known := true
	r.touched = r.touched[:0]
	p.what = c.Kind.String()
	switch c.Kind {
	case DoCopy:
		r.add(c.Blocks[0], c.Dst, c.N, written)
		r.add(c.Blocks[1], c.Src, c.N, read)
		return
	case DoFill:
		r.add(c.Blocks[0], c.Dst, c.N*c.Type.Size(), written)
		return
	case DoCall:
		p.what = c.Call.Touches(r.add)
		return
	case DoGraph:
		for _, b := range c.Capture.Blocks {
			r.listGraph(b, c.Capture.touched[b])
		}
		return
	case DoKernel:
		p.what = c.Kernel.Name()
		if args, known = c.Kernel.Written(); !known {
			p.by = c.Kernel
		}
	case DoLibrary:
		p.what = c.Library.Name
		if args, known = c.Library.Written, c.Library.Written != 0; !known {
			p.by = c.Library
		}
	default:
		return
	}
	some := false
	for i := range c.Args {
		if a := &c.Args[i]; a.Kind == BufferArg || a.Kind == TensorArg {
			r.add(a.Block, a.Ptr, a.N*a.Type.Size(), !known || args>>i&1 != 0)
			some = some || c.Kind == DoKernel && args>>i&1 == 0 && (a.Type == elem.Int32 || a.Type == elem.Int64)
		}
	}
	for i := range r.touched { // a kernel that reads integers may take them for indices
		r.touched[i].some = some
	}
}

// listGraph notes what the commands of a graph touch of a block.
func (r *Races) listGraph(b *Block, h *history) {
	for i := 0; h != nil && i < len(h.list); i++ {
		s := &h.list[i]
		if s.wrote != nil {
			r.touched = append(r.touched, touch{b, s.lo, s.hi, true, false, s.wrote})
		}
		for _, o := range s.others {
			t := touch{b, s.lo, s.hi, o.guess() != nil, o.some != nil, o}
			if t.some && s.lo != o.some.lo {
				continue // it is listed at its first
			} else if t.some {
				t.lo, t.hi, t.writes = o.some.lo, o.some.hi, o.some.writes
			}
			r.touched = append(r.touched, t)
		}
	}
}

// check refuses a command that is about to be enqueued, as number n of the strand or in a lane, if
// it races with another.
func (s *strand) check(c *Command, l *Lane, n uint64) error {
	r := s.races
	r.mu.Lock()
	defer r.mu.Unlock()
	n += s.base
	if s.changes != r.changes {
		s.learn(n, r.host)
		s.changes = r.changes
	}
	p := &r.place
	*p = place{on: s.name}
	r.list(c, p)
	if len(r.touched) == 0 && c.Kind != DoFunc {
		return nil
	}
	u := &use{at: s.at, n: n, place: s.shared(p)}
	v := view{at: s.at}
	if l != nil {
		u.at, u.n, v.at, v.known = l.Index, l.n+1, l.Index, l.seen
	} else if c.Kind == DoFunc {
		c.Func = r.during(u, c.Func)
	}
	if s.settles {
		for i := range r.touched {
			r.touched[i].b.history(r, nil).eachUse(func(o *use) { s.learn(n, r.upTo(o.at, o.n)) })
		}
	}
	if l == nil {
		v.known = s.known[len(s.known)-1].clock
	}
	for i := range r.touched {
		t := &r.touched[i]
		by := u
		if t.of != nil || t.some {
			by = &use{at: u.at, n: u.n, place: u.place, part: t.of}
		}
		if t.some {
			some := *t
			some.of = nil
			by.some = &some
		}
		if err := t.b.history(r, l).enter(t, by, &v); err != nil {
			return err
		}
	}
	return nil
}

// during has the functions that fn calls know whose it is.
func (r *Races) during(u *use, fn func() error) func() error {
	return func() error {
		hostFuncs.mu.Lock()
		hostFuncs.threads[unix.Gettid()] = hostFunc{r, u}
		hostFuncs.mu.Unlock()
		return fn()
	}
}

// eachUse calls fn with the commands that have touched a block.
func (h *history) eachUse(fn func(*use)) {
	for i := range h.list {
		if h.list[i].wrote != nil {
			fn(h.list[i].wrote)
		}
		for _, o := range h.list[i].others {
			fn(o)
		}
	}
}

// Seen notes that the host has waited for all that uses the block, which may be nil.
func (b *Block) Seen() {
	if b == nil {
		return
	}
	if h := b.touched.Load(); h != nil {
		h.races.mu.Lock()
		defer h.races.mu.Unlock()
		h.eachUse(func(o *use) { h.races.hostKnows(h.races.upTo(o.at, o.n)) })
		b.touched.Store(nil)
	}
}

// Reached notes that op of the host touches n bytes of the block at p. It has waited for all that
// uses the block. But a function of HostFunc has not: op is refused there if it races.
func (b *Block) Reached(op string, p unsafe.Pointer, n int) error {
	if HostFuncRuns() && b != nil && n > 0 {
		hostFuncs.mu.Lock()
		f, in := hostFuncs.threads[unix.Gettid()]
		hostFuncs.mu.Unlock()
		if in && f.r == nil {
			return nil
		} else if in {
			return f.reaches(b, op, p, n)
		}
	}
	b.Seen()
	return nil
}

// reaches is Reached in a function of HostFunc.
func (f hostFunc) reaches(b *Block, op string, p unsafe.Pointer, n int) error {
	r, u, own := f.r, *f.u, *f.u.place
	r.mu.Lock()
	defer r.mu.Unlock()
	own.what = op + " in a HostFunc"
	u.place = &own
	t := touch{b: b, lo: int(uintptr(p) - uintptr(b.Ptr)), writes: op != "At" && op != "CopyTo" && op != "Host"}
	t.hi = t.lo + n
	if t.writes {
		own.by = f.u // so that it stands beside commands that come later and have been enqueued
	}
	later := func(o *use) bool { return r.upTo(o.at, o.n).has(u.at, u.n) }
	return b.history(r, nil).enter(&t, &u, &view{u.at, r.upTo(u.at, u.n), later})
}

// history returns who has touched the block, in the capture of a lane if there is one.
func (b *Block) history(r *Races, l *Lane) *history {
	h := b.touched.Load()
	if l != nil {
		h = l.C.touched[b]
	}
	if h != nil {
		return h
	}
	if h = (&history{races: r}); l == nil {
		b.touched.Store(h)
	} else {
		l.C.touched[b] = h
	}
	return h
}

// FindRaces has the queues that are made from now on look for races.
func (s *Queues) FindRaces() { s.races = &Races{} }

// enters gives a new queue its place in clocks.
func (r *Races) enters(q Queue) *strand {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.Index(r.strands, nil)
	if at < 0 {
		at = len(r.strands)
		r.strands, r.bases = append(r.strands, nil), append(r.bases, 0)
	}
	r.strands[at] = &strand{races: r, name: q.Name(), at: at, base: r.bases[at], known: make([]moment, 1),
		places: map[ccall.Site]*place{}}
	return r.strands[at]
}

// leaves gives a place up, of a queue whose work is over.
func (r *Races) leaves(q Queue) {
	s, end := q.Place().strand, q.End().Seq
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hostKnows(r.upTo(s.at, s.base+end))
	r.strands[s.at], r.bases[s.at] = nil, s.base+end
}

// Check refuses a command that is about to be enqueued, as number n of the queue or in a lane, if
// it races with another.
func (s *Seat) Check(c *Command, l *Lane, n uint64) error {
	if s.strand == nil {
		return nil
	}
	return s.strand.check(c, l, n)
}

// Checks reports whether Check looks for races.
func (s *Seat) Checks() bool { return s.strand != nil }

// Settles says that the commands of the queue are calls that block.
func (s *Seat) Settles() {
	if s.strand != nil {
		s.strand.settles = true
	}
}

// strandOf returns the strand of a queue; nil if there is none.
func strandOf(q Order) *strand {
	if q, ok := q.(Queue); ok {
		return q.Place().strand
	}
	return nil
}

// Waits notes that later commands of q wait for p.
func Waits(q Queue, p Point) {
	s, other := q.Place().strand, strandOf(p.Q)
	if s == nil || other == nil {
		return
	}
	next := s.base + q.End().Seq + 1
	s.races.mu.Lock()
	defer s.races.mu.Unlock()
	s.learn(next, s.races.upTo(other.at, other.base+p.Seq))
}

// Seen notes that the host has waited for the point.
func (p Point) Seen() {
	if s := strandOf(p.Q); s != nil {
		s.races.mu.Lock()
		defer s.races.mu.Unlock()
		s.races.hostKnows(s.races.upTo(s.at, s.base+p.Seq))
	}
}
