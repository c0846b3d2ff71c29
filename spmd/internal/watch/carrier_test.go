package watch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// heartbeats are what rank 0 has heard of each rank, which counts its own from 1.
type heartbeats struct {
	mu   sync.Mutex
	last []int
	left bool // a carrier has, with what it had not passed on
}

func (h *heartbeats) heard(t *testing.T, rank int, said []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := strconv.Atoi(string(said))
	if want := h.last[rank] + 1; err != nil || n < want || n > want && !h.left {
		t.Errorf("rank %d says %s, want %d", rank, said, want)
	}
	h.last[rank] = n
}

// more waits until so many more have come from each of some ranks.
func (h *heartbeats) more(t *testing.T, ranks ...int) {
	t.Helper()
	h.mu.Lock()
	before := slices.Clone(h.last)
	h.mu.Unlock()
	eventually(t, fmt.Sprint("heartbeats of ranks ", ranks), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !slices.ContainsFunc(ranks, func(r int) bool { return h.last[r] < before[r]+5 })
	})
}

// One rank of each node carries the others' words, in order. When it leaves they speak
// for themselves.
func TestCarried(t *testing.T) {
	const size = 9 // ranks 0 to 3, 4 to 7, and 8 are of one node
	heard := heartbeats{last: make([]int, size)}
	j := newJob(t, size)
	j.base.carry = true
	j.change = func(c *Config) {
		n := 0
		c.Heartbeat = func() []byte { n++; return fmt.Append(nil, n) }
		c.OnHeartbeat = func(rank int, said []byte) { heard.heard(t, rank, said) }
	}
	j.join(upTo(size)...)
	var carriers []int
	for rank, n := range j.nets {
		n.mu.Lock()
		if n.carrier != nil {
			carriers = append(carriers, rank)
		}
		roles := [...]bool{n.hub != nil, n.carrier != nil, n.way != nil}
		if roles != [...]bool{rank < 2, !roles[0] && !roles[2], !roles[0] && !roles[1]} {
			t.Errorf("rank %d is a hub, a carrier, or has one: %v", rank, roles)
		}
		n.mu.Unlock()
	}
	if len(carriers) != 3 || carriers[0]/4 != 0 || carriers[1]/4 != 1 || carriers[2] != 8 {
		t.Fatalf("ranks %v carry", carriers)
	}
	heard.more(t, upTo(size)...)
	j.noEnd()
	gone := carriers[1]
	heard.mu.Lock()
	heard.left = true
	heard.mu.Unlock()
	j.nets[gone].Done()
	j.nets[gone].Close()
	rest := slices.DeleteFunc(upTo(size), func(r int) bool { return r == gone })
	heard.more(t, rest...)
	j.noEnd()
	other := rest[4+(gone+1)%2] // of its node
	j.nets[other].Close()
	for _, rank := range rest {
		if rank == other {
			continue
		}
		if c := j.end(rank); c.Rank != other || c.Kind != KindDied {
			t.Errorf("rank %d: %+v", rank, c)
		}
	}
}

// A carrier merges the words of its node, and does not hold more than it may.
func TestCarrierHolds(t *testing.T) {
	merged := 0
	cfg := &Config{Beat: patience, Hubs: make([][]string, 2),
		Carry: func(all []Beat) []Beat { merged += len(all); return all[max(len(all)-1, 0):] }}
	c := &carrier{cfg: cfg, turn: time.Now(), alive: []map[int]bool{{}, {}}}
	l := newLine(nil, nil, 4)
	c.take(5, []byte("1"), l)
	c.take(7, []byte(strings.Repeat("2", mostHeld)), l)
	c.take(5, nil, l)
	if len(l.queue) != 1 {
		t.Errorf("%d answers while there is no room, want that of the first", len(l.queue))
	}
	if m := c.beat(1, false); len(m.Alive) != 2 || m.Beats != nil {
		t.Errorf("%+v to the second hub", m)
	}
	m := c.beat(0, true)
	if slices.Sort(m.Alive); !slices.Equal(m.Alive, []int{5, 7}) || len(m.Beats) != 1 || m.Beats[0].Rank != 7 ||
		merged != 2 {
		t.Errorf("%v live, %d beats, merged of %d", m.Alive, len(m.Beats), merged)
	}
	if len(l.queue) != 3 {
		t.Errorf("%d answers when it has gone, want 3", len(l.queue))
	}
	if m = c.beat(0, true); m.Alive != nil || m.Beats != nil {
		t.Errorf("%+v though nothing has come", m)
	}
	// A carrier that has not had its turn for long answers when it comes.
	l.queue, c.turn = nil, time.Time{}
	if c.take(5, nil, l); len(l.queue) != 0 {
		t.Error("it answers though nothing goes on")
	}
	if c.beat(1, false); len(l.queue) != 0 {
		t.Error("it answers, and the first hub has not heard")
	}
	if c.beat(0, true); len(l.queue) != 1 {
		t.Error("no answer when the message has gone")
	}
	// A message has as much as is allowed.
	cfg.Carry = nil
	for range 3 {
		c.take(5, []byte(strings.Repeat("3", MaxState/2)), l)
	}
	for _, want := range []int{2, 1, 0} {
		if m = c.beat(0, true); len(m.Beats) != want {
			t.Errorf("%d beats in a message, want %d", len(m.Beats), want)
		}
	}
}

// A stopped carrier is named, and none of those that it carries. If it goes on, so does the job.
func TestCarrierStopped(t *testing.T) {
	t.Parallel()
	ranks := start(t, order{Size: 5, Silence: 4 * time.Second, Carry: true})
	carrier := slices.IndexFunc(ranks, func(p *childRank) bool { return p.carrier })
	ranks[carrier].signal(syscall.SIGSTOP)
	if w := ranks[0].hear(); w.Silent != fmt.Sprintf("rank %d on here", carrier) {
		t.Errorf("rank 0 says %+v, want silence of rank %d", w, carrier)
	}
	ranks[carrier].signal(syscall.SIGCONT)
	for _, rank := range []int{0, carrier} {
		ranks[rank].tell(order{Do: "report"})
		for _, s := range ranks[rank].hear().States {
			if s.Silent || s.State == nil {
				t.Errorf("%+v", s)
			}
		}
	}
}

// The death of a carrier, or of a rank that it carries, ends the job as any rank's does.
func TestCarrierDies(t *testing.T) {
	for _, carries := range []bool{true, false} {
		ranks := start(t, order{Size: 5, Carry: true})
		dead := 2 + slices.IndexFunc(ranks[2:], func(p *childRank) bool { return p.carrier == carries })
		ranks[dead].signal(syscall.SIGKILL)
		for rank, p := range ranks {
			if rank != dead {
				p.dies(dead, KindDied)
			}
		}
	}
}
