package spmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
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
	n := c.n
	h := uint64(c.memory()) << 24 // bits that what leaves free
	if c.kind >= cmdAllGatherV {
		k := ofCall(c)
		n = int(k.n)
		if c.kind == cmdGroup {
			for i := range c.group.cmds {
				if in := &c.group.cmds[i]; !in.kind.pointToPoint() {
					k := ofCall(in)
					h = mix(h + k.hash())
				}
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
		c := callOf(e.what, int64(e.n))
		k := ofCall(&c)
		k.n = int64(e.n)
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

// pulse returns the pages of this rank with calls that the one before did not have. It
// is called by one goroutine.
func (w *World) pulse() []byte {
	w.mu.Lock()
	comms := slices.Clone(w.comms)
	w.mu.Unlock()
	var pages []page
	for _, st := range comms {
		if st.size > 1 {
			if p, ok := st.activity.ledger.read(st.id, st.pulsed); ok {
				st.pulsed = p.Last[len(p.Last)-1].Number
				pages = append(pages, p)
			}
		}
	}
	if pages == nil {
		return nil
	}
	b, err := json.Marshal(pages)
	if err != nil {
		return nil // it holds nothing that JSON has not
	}
	return b
}

// library has the last page of every rank for each communicator.
type library struct {
	mu    sync.Mutex
	pages map[string]map[int]page
}

// compare takes a pulse of a rank and says where its calls are others than those of another rank.
func (l *library) compare(rank int, pulse []byte) string {
	var pages []page
	if json.Unmarshal(pulse, &pages) != nil {
		return "" // the channel is authenticated: there is none that is not whole
	}
	pages = slices.DeleteFunc(pages, func(p page) bool { return len(p.Last) == 0 }) // nor one without calls
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pages == nil {
		l.pages = map[string]map[int]page{}
	}
	for _, p := range pages {
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
	return ""
}

// compareLedgers compares the calls of the whole run. Collective over all ranks, which have nothing in flight.
func (w *World) compareLedgers() error {
	if err := mpiTurns.enter(mpiTurns.take(1)); err != nil {
		return err
	}
	defer mpiTurns.leave()
	w.mu.Lock()
	comms := slices.Clone(w.comms)
	w.mu.Unlock()
	var err error
	for _, st := range comms {
		if st.size > 1 {
			err = errors.Join(err, st.compareLedger())
		}
	}
	return err
}

func (st *commState) compareLedger() error {
	l := &st.activity.ledger
	x := [4]int64{int64(l.count), ^int64(l.count), int64(l.sum), ^int64(l.sum)}
	if err := st.mpi.AllReduce(unsafe.Pointer(&x), unsafe.Pointer(&x), len(x), elem.Int64, Min); err != nil {
		return err
	}
	if x[0] == ^x[1] && x[2] == ^x[3] {
		return nil
	}
	const room = 4 << 10 // for a page
	mine := make([]byte, room)
	p, _ := l.read(st.id, 0)
	for {
		if b, err := json.Marshal(p); err == nil && len(b) <= room {
			copy(mine, b)
			break
		}
		p.Last = p.Last[1:]
	}
	all := make([]byte, room*st.size)
	if err := st.mpi.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine[0]), room, elem.Uint8); err != nil {
		return err
	}
	var first page
	for r := range st.size {
		var p page
		text, _, _ := strings.Cut(string(all[r*room:(r+1)*room]), "\x00")
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			return err
		}
		if r == 0 {
			first = p
		} else if text := differ(&first, &p, 0, r); text != "" {
			return fmt.Errorf("%w: %s", ErrContract, text)
		}
	}
	return fmt.Errorf("%w on %q: from %d to %d of them", ErrContract, st.id, x[0], ^x[1])
}
