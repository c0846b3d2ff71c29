package verify

import (
	"fmt"
	"slices"
	"strings"

	"lockstep/spmd/internal/coll"
)

// On the host a rank is in one call of MPI at a time, and makes the next one only when that is
// over. So ranks that wait in a circle wait for ever: each is in a call that ends only when the
// next one makes another call.

// need describes what a call waits for: that a rank of its communicator makes another call, sends
// to this rank or receives from it.
type need struct {
	Kind needKind `json:"k"`
	Peer int      `json:"p,omitempty"`
}

type needKind int

const (
	needAll  needKind = iota // to make as many calls as this rank has
	needCall                 // the same, of Peer
	needSend
	needRecv
)

// longMessage is the length in bytes from which on a Send surely waits for its receiver.
const longMessage = 1 << 20

// needs returns the needs of this rank's call; nil if they are not sure, and on a GPU.
func (r *Recorder) needs() []need {
	if r.device != nil {
		return nil
	}
	c := r.packed().call()
	switch t := c.Kind.Traits(); {
	case t.Own, c.Kind == coll.Barrier: // of its own calls, in which the ranks agree
		return []need{{Kind: needAll}}
	case c.Kind == coll.Group:
		return r.groupNeeds()
	case t.Message:
		return messageNeeds(nil, &c)
	case !t.Moves(), t.Lengths != coll.Equal:
		return nil
	case !t.Rooted:
		return []need{{Kind: needAll}}
	case t.FromRoot && int(c.Root) != r.Rank:
		return []need{{needCall, int(c.Root)}}
	case !t.FromRoot && int(c.Root) == r.Rank:
		return []need{{Kind: needAll}}
	}
	return nil
}

// groupNeeds is needs for the group that was begun last.
func (r *Recorder) groupNeeds() (list []need) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.group == nil {
		return nil
	}
	for i := range r.group.Len() {
		c, _ := r.group.Call(i)
		if !c.Kind.Traits().Message {
			return nil
		}
		list = messageNeeds(list, c)
	}
	return list
}

// messageNeeds appends the needs of a call that consists of messages.
func messageNeeds(list []need, c *coll.Call) []need {
	c.Messages(func(m coll.Call) bool {
		switch {
		case m.Kind == coll.Recv:
			list = append(list, need{needSend, int(m.Root)})
		case m.N*m.Type.Size() >= longMessage:
			list = append(list, need{needRecv, int(m.Root)})
		}
		return true
	})
	return list
}

// circle looks for ranks that wait for each other: the given one for the next, and so on, and the
// last for the given one. It says who waits for whom; "" if there is no circle.
func circle(all map[int]*standing, from int) string {
	at := map[int]*position{} // where a rank waits that was looked at
	var path []int
	var back func(rank int) bool
	back = func(rank int) bool {
		if rank == from && len(path) > 0 {
			return true
		}
		if _, seen := at[rank]; seen || all[rank] == nil || all[rank].Ended {
			return false
		}
		at[rank] = nil
		path = append(path, rank)
		for i := range all[rank].Comms {
			at[rank] = &all[rank].Comms[i]
			if slices.ContainsFunc(at[rank].waitsFor(rank, all), back) {
				return true
			}
		}
		path = path[:len(path)-1]
		return false
	}
	if !back(from) {
		return ""
	}
	first := slices.Index(path, slices.Min(path))
	path = append(path[first:], path[:first]...)
	var parts []string
	for i, rank := range path {
		parts = append(parts, fmt.Sprintf("rank %d is in %s and waits for rank %d", rank, at[rank].In,
			path[(i+1)%len(path)]))
	}
	return "the ranks wait for each other: " + strings.Join(parts, "; ")
}

// waitsFor returns the ranks that a rank waits for in its call, by their numbers in the world.
func (p *position) waitsFor(rank int, all map[int]*standing) (list []int) {
	if len(p.Needs) == 0 {
		return nil
	}
	for other, s := range all {
		i := slices.IndexFunc(s.Comms, func(o position) bool { return o.Comm == p.Comm })
		if other == rank || i < 0 {
			continue
		}
		o := &s.Comms[i]
		mine, its := p.with(o.Rank), o.with(p.Rank)
		if slices.ContainsFunc(p.Needs, func(n need) bool {
			switch {
			case n.Kind != needAll && n.Peer != o.Rank:
				return false
			case n.Kind == needSend:
				return int32(mine.Received-its.Sent) > 0
			case n.Kind == needRecv:
				return int32(mine.Sent-its.Received) > 0
			default:
				return p.Calls > o.Calls
			}
		}) {
			list = append(list, other)
		}
	}
	slices.Sort(list)
	return list
}
