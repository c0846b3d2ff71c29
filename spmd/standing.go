package spmd

import (
	"fmt"
	"slices"

	"lockstep/spmd/internal/job"
)

// standing is where a rank stands that has not got on since its pulse before, or whose program has returned. Rank 0 finds
// from it who waits for what cannot come any more.
type standing struct {
	Ended bool       `json:"e,omitempty"`
	Comms []position `json:"c,omitempty"`
}

// position is how far a rank has got on a communicator.
type position struct {
	Comm  string      `json:"c"`
	Rank  int         `json:"r"`           // its own there
	Calls uint64      `json:"n,omitempty"` // that all ranks make
	In    string      `json:"i,omitempty"` // the call that it is in, with its place
	Last  string      `json:"l,omitempty"` // of Calls, with its place
	Alone bool        `json:"a,omitempty"` // In is none of Calls
	Needs []need      `json:"w,omitempty"` // for what In waits
	Peers []exchanged `json:"p,omitempty"`
}

// exchanged is what a rank has sent to a peer, and received from it or is about to, in messages modulo 1<<32.
type exchanged struct {
	Peer           int
	Sent, Received uint32
	Last           string `json:",omitempty"` // of those sent, with --check
}

// spoken is what the pulses have said of this rank. It belongs to the goroutine that makes them.
type spoken struct {
	steps uint64 // calls begun, at the pulse before
	stood bool   // that it stands there
	ended bool
}

// stand returns where this rank stands, where that is news.
func (w *World) stand(comms []*commState) *standing {
	s := &w.spoken
	steps, inside := count(comms)
	ended := w.job.Ended()
	switch moved := steps != s.steps; {
	case ended && !s.ended:
		s.ended = true
		return w.positions(comms, true)
	case ended:
		return nil
	case inside && !moved && !s.stood:
		now := w.positions(comms, false)
		if n, still := count(comms); !still || n != steps {
			return nil // it has got on meanwhile
		}
		s.stood = true
		return now
	case moved && s.stood:
		s.steps, s.stood = steps, false
		return &standing{}
	default:
		s.steps = steps
		return nil
	}
}

// count returns how many calls have begun, and whether one is not over.
func count(comms []*commState) (steps uint64, inside bool) {
	for _, st := range comms {
		a := &st.activity
		over := a.over() // before what has begun
		n := a.entered.Load()
		steps += n
		inside = inside || n > over
	}
	return steps, inside
}

func (w *World) positions(comms []*commState, ended bool) *standing {
	s := &standing{Ended: ended}
	for _, st := range comms {
		if st.size < 2 {
			continue
		}
		a := &st.activity
		p := position{Comm: st.id, Rank: st.rank, Calls: a.calls.Load(), Last: a.ledger.last()}
		if a.entered.Load() > a.over() {
			p.In, p.Alone, p.Needs = st.inside(), a.what.Load()&ofEveryone == 0, st.needs()
		}
		for peer := range a.peers {
			if v := a.peers[peer].Load(); v != 0 {
				p.Peers = append(p.Peers, exchanged{peer, uint32(v), uint32(v >> 32), st.lastSent(peer)})
			}
		}
		s.Comms = append(s.Comms, p)
	}
	return s
}

// lastSent is the last message to a rank, where --check has noted it.
func (st *commState) lastSent(peer int) string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.sends[peer]
}

// inside is the call that this rank is in, with its place.
func (st *commState) inside() string {
	what := st.last()
	if f := st.activity.flight; f != nil {
		if at := f.lastPlace(); at != "" {
			return what + " " + at
		}
	}
	st.w.mu.Lock()
	streams := slices.Clone(st.w.streams)
	st.w.mu.Unlock()
	for _, s := range streams {
		if q, ok := s.q.(*hostQueue); ok {
			if site, ok := q.inside(st); ok {
				return what + " from " + site
			}
		}
	}
	if run, _ := job.Goroutines(); run.At != "" {
		what += " at " + run.At
	}
	return what
}

// inside returns where the command was enqueued that is in a call of st.
func (q *hostQueue) inside(st *commState) (site string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := q.done.Load()
	if done == q.tail {
		return "", false
	}
	c := &q.ring[done%uint64(len(q.ring))]
	return c.site.String(), c.comm == st || c.graph != nil && slices.Contains(c.graph.comms, st)
}

// leftAlone says that a rank whose program has returned has made fewer calls than another rank, or has not exchanged a
// message with it; "" where that is not so.
func leftAlone(ended int, e *standing, rank int, s *standing) string {
	if !e.Ended {
		return ""
	}
	for i := range s.Comms {
		p := &s.Comms[i]
		at := slices.IndexFunc(e.Comms, func(o position) bool { return o.Comm == p.Comm })
		if at < 0 {
			continue // it is in none of its calls
		}
		o := &e.Comms[at]
		if p.Calls > o.Calls {
			return fmt.Sprintf("rank %d has returned from the program%s; rank %d %s", ended, o.after(), rank, p.ahead())
		}
		mine, its := p.with(o.Rank), o.with(p.Rank)
		doing := ""
		if p.Alone && p.In != "" {
			doing = " is in " + p.In + ", and"
		}
		head := fmt.Sprintf("rank %d has returned from the program; rank %d%s", ended, rank, doing)
		switch {
		case int32(mine.Received-its.Sent) > 0:
			return fmt.Sprintf("%s waits for message %d from it%s: it has sent %d", head, mine.Received, p.on(), its.Sent)
		case int32(mine.Sent-its.Received) > 0:
			last := mine.Last
			if last != "" {
				last = ", " + last
			}
			return fmt.Sprintf("%s has sent message %d to it%s%s: it has received %d", head, mine.Sent, p.on(), last, its.Received)
		}
	}
	return ""
}

// with is what was exchanged with a rank of the communicator.
func (p *position) with(peer int) exchanged {
	if i := slices.IndexFunc(p.Peers, func(x exchanged) bool { return x.Peer == peer }); i >= 0 {
		return p.Peers[i]
	}
	return exchanged{Peer: peer}
}

// after says after which call of a communicator, which is no one of the program's where it has made none.
func (p *position) after() string {
	if p.Comm == controlID {
		return ""
	}
	return fmt.Sprintf(" after call %d%s", p.Calls, p.on())
}

func (p *position) on() string { return fmt.Sprintf(" on %q", p.Comm) }

// ahead says what the last call of a rank is, of those that all make.
func (p *position) ahead() string {
	s := "is in " + p.In
	if p.In == "" || p.Alone {
		s = "has made " + p.Last
	}
	if p.Comm != controlID {
		s += fmt.Sprintf(", call %d", p.Calls)
	}
	return s
}
