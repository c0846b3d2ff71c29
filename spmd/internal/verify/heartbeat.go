package verify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/control"
)

// heartbeat is a rank's message to rank 0 each second: only the news.
type heartbeat struct {
	Pages []page    `json:"p,omitempty"` // of communicators with more calls than before
	Stand *standing `json:"s,omitempty"`
	Found string    `json:"f,omitempty"` // by a Carrier: why the job has to end

	Refused []refusal `json:"r,omitempty"`
}

// Reporter makes the heartbeats of a rank. One goroutine calls its methods.
type Reporter struct {
	Recorders func() []*Recorder // of the rank's communicators
	Ended     func() bool        // whether the program has returned

	steps uint64 // calls begun, at the heartbeat before
	stood bool   // rank 0 has been told that this rank stands there
	ended bool   // and that its program has returned
}

// Heartbeat returns the news, as JSON; nil for nothing.
func (b *Reporter) Heartbeat() []byte {
	recorders := b.Recorders()
	var h heartbeat
	for _, r := range recorders {
		if r.Size > 1 {
			h.Refused = append(h.Refused, r.refusals()...)
			if page, ok := r.history.read(r.ID, r.told); ok {
				r.told = page.Last[len(page.Last)-1].Number
				h.Pages = append(h.Pages, page)
			}
		}
	}
	if h.Stand = b.stand(recorders); h.Pages == nil && h.Stand == nil && h.Refused == nil {
		return nil
	}
	return encode(h)
}

func encode(h heartbeat) []byte {
	text, err := json.Marshal(h)
	if err != nil {
		return nil // it holds nothing that JSON has not
	}
	return text
}

// stand returns where this rank stands; nil if rank 0 knows that.
func (b *Reporter) stand(recorders []*Recorder) *standing {
	steps, inside := count(recorders)
	ended := b.Ended()
	switch moved := steps != b.steps; {
	case ended && !b.ended:
		b.ended = true
		return positions(recorders, atEnd)
	case ended:
		return nil
	case inside && !moved && !b.stood:
		now := positions(recorders, underWay)
		if n, still := count(recorders); !still || n != steps {
			return nil // it has got on meanwhile
		}
		b.stood = true
		return now
	case moved && b.stood:
		b.steps, b.stood = steps, false
		return &standing{}
	default:
		b.steps = steps
		return nil
	}
}

// count returns how many calls have begun, and whether one is not over.
func count(recorders []*Recorder) (steps uint64, inside bool) {
	for _, r := range recorders {
		over := r.over() // before what has begun
		n := r.entered.Load()
		steps += n
		inside = inside || n > over
	}
	return steps, inside
}

// Analyzer finds out, on rank 0, why a job cannot go on. It keeps every rank's last news: its page
// of each communicator, and where it stands. The zero value is ready for use.
type Analyzer struct {
	mu       sync.Mutex
	pages    map[string]*pages // of a communicator
	standing map[int]*standing
	refused  map[int]refusal // the last of a rank
	ended    []int           // whose programs have returned
}

// Hear takes a heartbeat of a rank. It returns why the job has to end, or "". hang says that it
// ends because ranks wait for each other. Several goroutines may call it.
func (l *Analyzer) Hear(rank int, said []byte) (why string, hang bool) {
	news := parse(said)
	if text := cmp.Or(news.Found, l.compare(rank, news)); text != "" {
		return fmt.Sprintf("%v: %s", ErrMismatch, text), false
	}
	if news.Stand == nil { // a circle is closed by where a rank stands
		return "", false
	}
	return l.stuck(rank), true
}

// parse reads a heartbeat. Anything else counts as nothing: no rank sends it, and the channel is
// authenticated.
func parse(said []byte) (news heartbeat) {
	if json.Unmarshal(said, &news) != nil {
		return heartbeat{}
	}
	// nor a page without calls
	news.Pages = slices.DeleteFunc(news.Pages, func(p page) bool { return len(p.Last) == 0 })
	return news
}

// compare says where the calls of two ranks differ, or what a rank waits for in vain; "" for
// neither.
func (l *Analyzer) compare(rank int, news heartbeat) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pages == nil {
		l.pages, l.standing, l.refused = map[string]*pages{}, map[int]*standing{}, map[int]refusal{}
	}
	for _, f := range news.Refused {
		l.refused[rank] = f
	}
	for _, p := range news.Pages {
		of := l.pages[p.Comm]
		if of == nil {
			of = &pages{}
			l.pages[p.Comm] = of
		}
		if text := of.hear(rank, &p); text != "" {
			return text
		}
	}
	if news.Stand == nil {
		return l.leftOut()
	}
	before := l.standing[rank]
	l.standing[rank] = news.Stand
	for _, other := range l.ended {
		if text := leftAlone(other, l.standing[other], rank, news.Stand); text != "" && other != rank {
			return text
		}
	}
	if !news.Stand.Ended || before != nil && before.Ended {
		return l.leftOut()
	}
	l.ended = append(l.ended, rank)
	for other, o := range l.standing {
		if text := leftAlone(rank, news.Stand, other, o); text != "" && other != rank {
			return text
		}
	}
	return ""
}

// stuck says which ranks wait for each other, if one of them is the given rank.
func (l *Analyzer) stuck(rank int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return circle(l.standing, rank)
}

// Carrier hears the ranks of a node in place of rank 0, in a job of many ranks. It compares their
// calls, and passes on the calls of one rank. A page has the sums of all calls: one that agrees
// with it agrees with the others. The zero value is ready for use, by one goroutine.
type Carrier struct {
	analyzer Analyzer
	newest   []page // of each communicator, since Pages returned some
	rest     int    // calls of Pages that return none
}

// carriedCalls is how many of a page's calls go on. Rank 0 spends half of its time for a page on
// its calls. If ranks that have made different calls wait for each other, the last call is enough.
// If they do not, all of them are soon others.
const carriedCalls = 4

// One of pagesEvery heartbeats of a carrier has pages, and each heartbeat in which a rank says
// where it stands.
const pagesEvery = 2

// Hear takes a heartbeat of a rank. It returns the news for rank 0 beside Pages; nil for nothing.
func (c *Carrier) Hear(rank int, said []byte) []byte {
	news := parse(said)
	if text := c.analyzer.compare(rank, news); text != "" {
		return encode(heartbeat{Found: text})
	}
	for _, p := range news.Pages {
		p.From, p.Last = rank+1, p.Last[max(len(p.Last)-carriedCalls, 0):]
		i := slices.IndexFunc(c.newest, func(o page) bool { return o.Comm == p.Comm })
		switch {
		case i < 0:
			c.newest = append(c.newest, p)
		case p.count() > c.newest[i].count():
			c.newest[i] = p
		}
	}
	if news.Stand == nil && news.Refused == nil {
		return nil
	}
	c.rest = 0
	return encode(heartbeat{Stand: news.Stand, Refused: news.Refused})
}

// Pages returns a heartbeat with one page of each communicator that has had calls since the last
// one. It is nil if no communicator has, or if the last one was a heartbeat ago and all ranks get
// on. It is called once a heartbeat.
func (c *Carrier) Pages() []byte {
	c.rest--
	if c.newest == nil || c.rest > 0 {
		return nil
	}
	h := heartbeat{Pages: c.newest}
	c.newest, c.rest = nil, pagesEvery
	return encode(h)
}

// AtEnd compares the calls and messages of the whole run. Collective over all ranks, which have
// nothing in flight.
func AtEnd(ch *control.Channel, recorders []*Recorder) error {
	return ch.Exchange(control.End, func(c control.Exchange) error {
		over := uint64(0)
		for _, r := range recorders {
			over += r.balance()
		}
		if err := c.AllReduce(unsafe.Pointer(&over), unsafe.Pointer(&over), 1, elem.Uint64,
			elem.Sum); err != nil || over == 0 {
			return err
		}
		return uneven(c, recorders)
	})
}

// balance returns a number for each rank. The numbers add up to 0 if all ranks of the communicator
// have made the same calls, and every message that was sent was received.
func (r *Recorder) balance() (sum uint64) {
	name := fnv.New64a()
	name.Write([]byte(r.ID))
	id := elem.MixBits(name.Sum64())
	sum = elem.MixBits(elem.MixBits(id+r.history.count) + r.history.sum)
	if r.Rank == 0 {
		sum *= -uint64(r.Size - 1)
	}
	messages := func(from, to int, n uint32) uint64 {
		if n == 0 {
			return 0
		}
		return elem.MixBits(elem.MixBits(id+uint64(from)<<32+uint64(to)) + uint64(n))
	}
	for peer := range r.peers {
		v := r.peers[peer].Load()
		sum += messages(r.Rank, peer, uint32(v)) - messages(peer, r.Rank, uint32(v>>32))
	}
	return sum
}

// LastCalls returns a heartbeat with the last calls of this rank on all its communicators.
func LastCalls(recorders []*Recorder) []byte { return encode(heartbeat{Pages: allPages(recorders)}) }

func allPages(recorders []*Recorder) (all []page) {
	for _, r := range recorders {
		if p, ok := r.history.read(r.ID, 0); ok && r.Size > 1 {
			all = append(all, p)
		}
	}
	return all
}

// uneven says in what the ranks differ at the end. Collective.
func uneven(c control.Exchange, recorders []*Recorder) error {
	all, err := control.Gather(c, encode(heartbeat{Stand: positions(recorders, atEnd), Pages: allPages(recorders)}))
	if err != nil {
		return err
	}
	var whole Analyzer
	for rank, said := range all {
		if text := whole.compare(rank, parse(said)); text != "" {
			return fmt.Errorf("%w: %s", ErrMismatch, text)
		}
	}
	return fmt.Errorf("%w, and what is left of them does not say where", ErrMismatch)
}
