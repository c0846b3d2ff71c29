package verify

import (
	"fmt"
	"slices"

	"lockstep/spmd/internal/control"
)

// standing is the position of a rank that has not got on since its last heartbeat, or whose program
// has returned. From it rank 0 finds ranks that wait for something that cannot come any more.
type standing struct {
	Ended bool       `json:"e,omitempty"`
	Comms []position `json:"c,omitempty"`
}

// position is how far a rank has got on a communicator.
type position struct {
	Comm    string      `json:"c"`
	Rank    int         `json:"r"`           // its own there
	Calls   uint64      `json:"n,omitempty"` // that all ranks make
	In      string      `json:"i,omitempty"` // the call that it is in, with its place
	Last    string      `json:"l,omitempty"` // of Calls, with its place
	Alone   bool        `json:"a,omitempty"` // In is none of Calls
	Needs   []need      `json:"w,omitempty"` // for what In waits
	Peers   []exchanged `json:"p,omitempty"`
	Refused uint64      `json:"f,omitempty"` // see lastRefused
}

// exchanged is how many messages a rank has sent to a peer, and how many it has received or waits
// for, modulo 1<<32.
type exchanged struct {
	Peer           int
	Sent, Received uint32
	Last           string `json:",omitempty"` // the last that was sent; with --check
}

// The ended of positions.
const underWay, atEnd = false, true

// positions returns where this rank stands on all its communicators of several ranks.
func positions(recorders []*Recorder, ended bool) *standing {
	s := &standing{Ended: ended}
	for _, r := range recorders {
		if r.Size > 1 {
			s.Comms = append(s.Comms, r.position())
		}
	}
	return s
}

func (r *Recorder) position() position {
	p := position{Comm: r.ID, Rank: r.Rank, Calls: r.calls.Load(), Last: r.history.last()}
	_, p.Refused = r.lastRefused()
	if r.entered.Load() > r.over() {
		p.In, p.Alone, p.Needs = r.inside(), !r.packed().Everyone(), r.needs()
	}
	for peer := range r.peers {
		if v := r.peers[peer].Load(); v != 0 {
			p.Peers = append(p.Peers, exchanged{peer, uint32(v), uint32(v >> 32), r.lastSent(peer)})
		}
	}
	return p
}

// inside returns the call that this rank is in, with its place.
func (r *Recorder) inside() string {
	what, at := r.last(), ""
	if r.device != nil {
		at = r.device.lastPlace()
	}
	if at == "" {
		at = r.Place()
	}
	if at == "" {
		return what
	}
	return what + " " + at
}

// leftAlone says which call or message another rank waits for that a rank whose program has
// returned will not make any more; "" if there is none.
func leftAlone(ended int, e *standing, rank int, s *standing) string {
	if !e.Ended {
		return ""
	}
	for i := range s.Comms {
		p := &s.Comms[i]
		at := slices.IndexFunc(e.Comms, func(o position) bool { return o.Comm == p.Comm })
		if at < 0 {
			continue // that rank is not in the communicator
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
			return fmt.Sprintf("%s waits for message %d from it%s: it has sent %d", head, mine.Received,
				p.on(), its.Sent)
		case int32(mine.Sent-its.Received) > 0:
			last := mine.Last
			if last != "" {
				last = ", " + last
			}
			return fmt.Sprintf("%s has sent message %d to it%s%s: it has received %d", head, mine.Sent,
				p.on(), last, its.Received)
		}
	}
	return ""
}

// with is this rank's exchange with a rank of the communicator.
func (p *position) with(peer int) exchanged {
	if i := slices.IndexFunc(p.Peers, func(x exchanged) bool { return x.Peer == peer }); i >= 0 {
		return p.Peers[i]
	}
	return exchanged{Peer: peer}
}

// after says after which call of the communicator a program has returned; "" for the framework's
// own.
func (p *position) after() string {
	if p.Comm == control.ID {
		return ""
	}
	return fmt.Sprintf(" after call %d%s", p.Calls, p.on())
}

func (p *position) on() string { return fmt.Sprintf(" on %q", p.Comm) }

// ahead names the last call of a rank, of those that all ranks make.
func (p *position) ahead() string {
	s := "is in " + p.In
	if p.In == "" || p.Alone {
		s = "has made " + p.Last
	}
	if p.Comm != control.ID {
		s += fmt.Sprintf(", call %d", p.Calls)
	}
	return s
}
