package verify

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// history is the flight recorder of a communicator: its collectives in their order. It finds ranks
// whose calls differ though nothing hangs: a Broadcast from two roots ends, with wrong data. It
// costs 10 to 30 ns a call. The ranks compare it each second, and at the end.
type history struct {
	mu     sync.Mutex // held for moments only
	count  uint64     // of calls
	sum    uint64     // of all calls
	recent [recentCalls]entry
	// The sums after the last multiple of 1, 4, 16, ... calls. Ranks that are some calls apart have
	// one of them in common.
	levels [12]struct{ count, sum uint64 }
}

const recentCalls = 16

type entry struct {
	Packed        // n is the number that all ranks have in common
	sum    uint64 // of it and all before
	site   ccall.Site
}

// note adds a call that all ranks of the communicator make. A nil site stands for this stack.
func (l *history) note(p Packed, c *coll.Call, g Group, memory Memory, site *ccall.Site) {
	n := c.Common()
	h := uint64(memory) << 24 // Packed leaves these bits free
	if c.Kind == coll.Group {
		for i := range g.Len() {
			if in, memory := g.Call(i); !in.Kind.Traits().Message {
				s := signatureOf(in, memory)
				h = elem.MixBits(h + s.hash())
			}
		}
	}
	if len(c.Counts) > 0 && c.Kind != coll.AllToAllV { // whose counts are each rank's own
		h = elem.MixBits(h + uint64(c.Alike()))
	}
	h = elem.MixBits(h + p.what + uint64(n)*0x9e3779b97f4a7c15)
	l.mu.Lock()
	l.count++
	l.sum = elem.MixBits(l.sum + h)
	e := &l.recent[l.count%recentCalls]
	e.sum, e.what, e.n = l.sum, p.what, int64(n)
	if site != nil {
		e.site = *site
	} else {
		e.site.Near()
	}
	for i := range min(bits.TrailingZeros64(l.count)/2+1, len(l.levels)) {
		l.levels[i].count, l.levels[i].sum = l.count, l.sum
	}
	l.mu.Unlock() // a defer takes longer
}

// page is a rank's news of a history.
type page struct {
	Comm   string      `json:"c"`
	Levels [][2]uint64 `json:"l"` // count and sum
	Last   []line      `json:"r"`
	From   int         `json:"f,omitempty"` // 1 more than the rank of the page, if another rank carries it
}

// of returns the rank of the page, which sender has sent.
func (p *page) of(sender int) int {
	if p.From > 0 {
		return p.From - 1
	}
	return sender
}

// count returns the number of calls so far.
func (p *page) count() uint64 { return p.Last[len(p.Last)-1].Number }

// line is one call of a page.
type line struct {
	Number uint64 `json:"n"` // from 1
	Sum    uint64 `json:"s"`
	Text   string `json:"t"`
}

// read returns the page; not ok if there were no calls since the given count.
func (l *history) read(comm string, since uint64) (page, bool) {
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
		k := e.signature()
		p.Last = append(p.Last, line{n, e.sum, fmt.Sprintf("at %s: %v", &e.site, &k)})
	}
	return p, true
}

// differ says where the calls of two ranks differ; "" if both may be the same.
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
			if x.Number == y.Number && x.Sum != y.Sum && x.Number > same &&
				withoutPlace(x.Text) != withoutPlace(y.Text) {
				return fmt.Sprintf("rank %d %s; rank %d %s (call %d on %q)", rankA, x.Text, rankB, y.Text,
					x.Number, a.Comm)
			}
		}
	}
	return fmt.Sprintf("of the calls %d to %d on %q some of rank %d are not those of rank %d, which "+
		"--check names; the last are rank %d %s; rank %d %s",
		same+1, other, a.Comm, rankB, rankA, rankA, a.Last[len(a.Last)-1].Text, rankB, b.Last[len(b.Last)-1].Text)
}

// withoutPlace returns the text of a line without the place of the call.
func withoutPlace(text string) string {
	_, what, _ := strings.Cut(text, ": ")
	return what
}

// last describes the last call, with its place; "" before the first.
func (l *history) last() string {
	l.mu.Lock()
	e, none := l.recent[l.count%recentCalls], l.count == 0
	l.mu.Unlock()
	if none {
		return ""
	}
	k := e.signature()
	return fmt.Sprintf("%v at %s", &k, &e.site)
}

func (e *entry) signature() signature {
	c := e.call()
	s := signatureOf(&c, 0)
	if c.Kind.Traits().Lengths == coll.Shared { // whose counts are not kept
		s.n = e.n
	}
	return s
}
