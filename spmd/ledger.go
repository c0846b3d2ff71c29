package spmd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// ledger is what the collectives of a communicator were, in their order, so that ranks
// whose calls differ are found where that hangs nothing: a Broadcast from two roots
// ends, with wrong data. It costs 10 to 30 ns a call; the ranks compare it now and then,
// and at the end.
type ledger struct {
	mu     sync.Mutex // held for moments only
	count  uint64     // of calls
	sum    uint64     // of all calls
	recent [recentCalls]entry
	// The sums after the last multiple of 1, 4, 16, ... calls: ranks that are some calls
	// apart have one of them in common.
	levels [12]struct{ count, sum uint64 }
}

const recentCalls = 16

// entry is one call.
type entry struct {
	sum  uint64 // of it and all before
	what uint64 // as activity has it
	n    int
	site ccall.Site
}

// note enters a call that all ranks of the communicator make. what is activity's.
func (l *ledger) note(c *call, what uint64, site *ccall.Site) {
	n := c.Common()
	h := uint64(c.memory()) << 24 // bits that what leaves free
	if c.Kind == coll.Group {
		for i := range c.group.cmds {
			if in := &c.group.cmds[i]; !in.Kind.Traits().Message {
				k := ofCall(in)
				h = mix(h + k.hash())
			}
		}
	}
	h = mix(h + what + uint64(n)*0x9e3779b97f4a7c15)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.sum = mix(l.sum + h)
	e := &l.recent[l.count%recentCalls]
	e.sum, e.what, e.n = l.sum, what, n
	if site != nil {
		e.site = *site
	} else {
		e.site.Near()
	}
	for i := range min(bits.TrailingZeros64(l.count)/2+1, len(l.levels)) {
		l.levels[i].count, l.levels[i].sum = l.count, l.sum
	}
}

// page is a ledger as it travels.
type page struct {
	Comm   string      `json:"c"`
	Levels [][2]uint64 `json:"l"` // count and sum
	Last   []line      `json:"r"`
}

// line is one call of a page.
type line struct {
	Number uint64 `json:"n"` // from 1
	Sum    uint64 `json:"s"`
	Text   string `json:"t"`
}

// read returns the page; with nothing since the given count, none.
func (l *ledger) read(comm string, since uint64) (page, bool) {
	l.mu.Lock()
	count, recent, levels := l.count, l.recent, l.levels
	l.mu.Unlock()
	p := page{Comm: comm}
	if count == since {
		return p, false
	}
	for _, v := range levels {
		if at := [2]uint64{v.count, v.sum}; v.count > 0 && !slices.Contains(p.Levels, at) {
			p.Levels = append(p.Levels, at)
		}
	}
	for n := max(count, recentCalls) - recentCalls + 1; n <= count; n++ {
		e := &recent[n%recentCalls]
		k := e.terms()
		p.Last = append(p.Last, line{n, e.sum, fmt.Sprintf("at %s: %v", &e.site, &k)})
	}
	return p, true
}

// differ says where b's calls are others than a's; "" where both may be the same.
func differ(a, b *page, rankA, rankB int) string {
	same, other := uint64(0), uint64(0)
	for _, x := range a.Levels {
		for _, y := range b.Levels {
			switch {
			case x[0] != y[0]:
			case x[1] == y[1]:
				same = max(same, x[0])
			case other == 0 || x[0] < other:
				other = x[0]
			}
		}
	}
	if other == 0 {
		return ""
	}
	for _, x := range a.Last {
		for _, y := range b.Last {
			if x.Number == y.Number && x.Sum != y.Sum && x.Number > same && withoutPlace(x.Text) != withoutPlace(y.Text) {
				return fmt.Sprintf("rank %d %s; rank %d %s (call %d on %q)", rankA, x.Text, rankB, y.Text, x.Number, a.Comm)
			}
		}
	}
	return fmt.Sprintf("of the calls %d to %d on %q some of rank %d are not those of rank %d, which --check names; the last are rank %d %s; rank %d %s",
		same+1, other, a.Comm, rankB, rankA, rankA, a.Last[len(a.Last)-1].Text, rankB, b.Last[len(b.Last)-1].Text)
}

// withoutPlace is the text of a line without where the call was made.
func withoutPlace(text string) string {
	_, what, _ := strings.Cut(text, ": ")
	return what
}

// last says what the last call was, with its place; "" before the first.
func (l *ledger) last() string {
	l.mu.Lock()
	e, none := l.recent[l.count%recentCalls], l.count == 0
	l.mu.Unlock()
	if none {
		return ""
	}
	k := e.terms()
	return fmt.Sprintf("%v at %s", &k, &e.site)
}

func (e *entry) terms() terms {
	c := callOf(e.what, int64(e.n))
	k := ofCall(&c)
	if c.Kind.Traits().Lengths == coll.Shared { // whose counts are not kept
		k.n = int64(e.n)
	}
	return k
}

// pulse is what a rank tells rank 0 each second, of what that does not know.
type pulse struct {
	Pages []page    `json:"p,omitempty"` // of communicators with more calls than before
	Stand *standing `json:"s,omitempty"`
}

// pulse returns what there is to tell, as JSON; nil for nothing. It is called by one goroutine.
func (w *World) pulse() []byte {
	w.mu.Lock()
	comms := slices.Clone(w.comms)
	w.mu.Unlock()
	var p pulse
	for _, st := range comms {
		if st.size > 1 {
			if page, ok := st.activity.ledger.read(st.id, st.pulsed); ok {
				st.pulsed = page.Last[len(page.Last)-1].Number
				p.Pages = append(p.Pages, page)
			}
		}
	}
	if p.Stand = w.stand(comms); p.Pages == nil && p.Stand == nil {
		return nil
	}
	b, err := json.Marshal(p)
	if err != nil {
		return nil // it holds nothing that JSON has not
	}
	return b
}

// library has what every rank has told last: its pages for each communicator, and where it stands.
type library struct {
	mu       sync.Mutex
	pages    map[string]map[int]page
	standing map[int]*standing
}

// compare takes a pulse of a rank and says where its calls are others than those of another rank, or what it waits for in vain.
func (l *library) compare(rank int, told []byte) string {
	var news pulse
	if json.Unmarshal(told, &news) != nil {
		return "" // the channel is authenticated: there is none that is not whole
	}
	news.Pages = slices.DeleteFunc(news.Pages, func(p page) bool { return len(p.Last) == 0 }) // nor one without calls
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pages == nil {
		l.pages, l.standing = map[string]map[int]page{}, map[int]*standing{}
	}
	for _, p := range news.Pages {
		of := l.pages[p.Comm]
		if of == nil {
			of = map[int]page{}
			l.pages[p.Comm] = of
		}
		of[rank] = p
		for other, o := range of {
			a, b, ra, rb := &o, &p, other, rank
			if ra > rb {
				a, b, ra, rb = b, a, rb, ra
			}
			if text := differ(a, b, ra, rb); text != "" {
				return text
			}
		}
	}
	if news.Stand == nil {
		return ""
	}
	l.standing[rank] = news.Stand
	for other, o := range l.standing {
		if text := cmp.Or(leftAlone(other, o, rank, news.Stand), leftAlone(rank, news.Stand, other, o)); text != "" && other != rank {
			return text
		}
	}
	return ""
}

// stuck says which ranks wait for each other, where one of them is the given rank.
func (l *library) stuck(rank int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return circle(l.standing, rank)
}

// compareLedgers compares the calls and messages of the whole run. Collective over all ranks, which have nothing in flight.
func (w *World) compareLedgers() error {
	w.mu.Lock()
	comms := slices.Clone(w.comms)
	w.mu.Unlock()
	return w.channel.Exchange(control.End, func(m control.Comm) error {
		over := uint64(0)
		for _, st := range comms {
			over += st.balance()
		}
		if err := m.AllReduce(unsafe.Pointer(&over), unsafe.Pointer(&over), 1, elem.Uint64, Sum); err != nil || over == 0 {
			return err
		}
		return w.sayUneven(m, comms)
	})
}

// balance is a number that adds up to 0 over all ranks where the calls of all ranks of the communicator are the same, and
// what each has sent others have received.
func (st *commState) balance() (sum uint64) {
	a := &st.activity
	name := fnv.New64a()
	name.Write([]byte(st.id))
	id := mix(name.Sum64())
	sum = mix(mix(id+a.ledger.count) + a.ledger.sum)
	if st.rank == 0 {
		sum *= -uint64(st.size - 1)
	}
	messages := func(from, to int, n uint32) uint64 {
		if n == 0 {
			return 0
		}
		return mix(mix(id+uint64(from)<<32+uint64(to)) + uint64(n))
	}
	for peer := range a.peers {
		v := a.peers[peer].Load()
		sum += messages(st.rank, peer, uint32(v)) - messages(peer, st.rank, uint32(v>>32))
	}
	return sum
}

// sayUneven finds in what the ranks differ at the end. Collective, in Exchange.
func (w *World) sayUneven(m control.Comm, comms []*commState) error {
	mine := pulse{Stand: w.positions(comms, true)}
	for _, st := range comms {
		if p, ok := st.activity.ledger.read(st.id, 0); ok && st.size > 1 {
			mine.Pages = append(mine.Pages, p)
		}
	}
	said, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	all, err := control.Gather(m, said)
	if err != nil {
		return err
	}
	var whole library
	for r, told := range all {
		if text := whole.compare(r, told); text != "" {
			return fmt.Errorf("%w: %s", ErrContract, text)
		}
	}
	return fmt.Errorf("%w, and what is left of them does not say where", ErrContract)
}
