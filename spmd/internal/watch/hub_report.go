package watch

import (
	"fmt"
	"time"
)

// gather is one round of questions for a report. Those who want a report meanwhile share it.
type gather struct {
	waiting map[int]bool
	states  []RankState
	looks   int      // unanswered
	frames  [][]byte // the states as messages, for all who asked
	done    chan struct{}
}

// deliver sends a report to the rank that asked for it.
func (h *hub) deliver(m *member) {
	g := h.report()
	h.mu.Lock()
	m.reporting = false
	h.mu.Unlock()
	for _, f := range g.frames {
		m.line.put(f)
	}
	m.line.send(message{Kind: msgReported})
}

// report asks every rank for its state. If a rank does not answer, it asks other ranks of its
// node about it.
func (h *hub) report() *gather {
	h.mu.Lock()
	if g := h.gather; g != nil {
		h.mu.Unlock()
		<-g.done // soon: whoever gathers has deadlines
		return g
	}
	g := &gather{waiting: map[int]bool{}, states: make([]RankState, len(h.members)), done: make(chan struct{})}
	h.gather = g
	limit := min(MaxState, maxStates/len(h.members))
	for rank, m := range h.members {
		if m == nil || m.gone {
			continue
		}
		g.waiting[rank] = true
		if !m.asked {
			m.asked = true
			m.line.send(message{Kind: msgAsk, Limit: limit})
		}
	}
	start := time.Now()
	h.mu.Unlock()

	// The hub does not wait long for a rank that was quiet before. Its last words until
	// then may come a little later.
	quiet := func(m *member) bool {
		return m.heard.Before(start.Add(h.cfg.Beat/2)) && time.Since(m.heard) > 2*h.cfg.Beat
	}
	h.await(quietLimit, func() bool { return len(g.waiting) == 0 })
	h.await(gatherLimit-quietLimit, func() bool {
		for rank := range g.waiting {
			if !quiet(h.members[rank]) {
				return false
			}
		}
		return true
	})
	h.mu.Lock()
	h.look(g)
	h.mu.Unlock()
	h.await(lookLimit, func() bool { return g.looks == 0 })

	h.mu.Lock()
	for rank, m := range h.members {
		s := &g.states[rank]
		if m == nil {
			s.Hello, s.Note = Hello{Rank: rank}, "has not joined the control channel"
			continue
		}
		s.Hello, s.Died, s.Left = m.Hello, m.died, m.left
		if g.waiting[rank] && !m.gone {
			s.Silent = quiet(m) || time.Since(m.heard) > h.cfg.Silence
			s.Note = fmt.Sprintf("no state within %v", gatherLimit)
			if s.Silent {
				s.Note = fmt.Sprintf("nothing heard for %.1f s", time.Since(m.heard).Seconds())
			}
		}
	}
	h.gather = nil
	h.mu.Unlock()
	for i := range g.states {
		g.frames = append(g.frames, rankFrame(g.states[i]))
	}
	close(g.done)
	return g
}

// look asks, for each rank that gave no answer, another of its node to look at its process. Called
// with mu held.
func (h *hub) look(g *gather) {
	pids := map[*member]map[int]int{} // of each rank that looks: ranks and their processes
	for rank, m := range h.members {
		if m == nil || !g.waiting[rank] && !m.died {
			continue
		}
		for other, o := range h.members {
			if o != nil && !o.gone && !g.waiting[other] && o.Node == m.Node && o.Host == m.Host && o.ns == m.ns {
				if pids[o] == nil {
					pids[o] = map[int]int{}
				}
				pids[o][rank] = m.PID
				break
			}
		}
	}
	for o, p := range pids {
		g.looks++
		o.line.send(message{Kind: msgLook, PIDs: p})
	}
}
