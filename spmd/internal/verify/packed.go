package verify

import (
	"fmt"
	"strings"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// Group is the calls that a coll.Group is made of.
type Group interface {
	Len() int
	Call(i int) (c *coll.Call, memory Memory)
}

// everyone reports whether all ranks of the communicator make the call: not messages, nor groups of
// only these.
func everyone(c *coll.Call, g Group) bool {
	if c.Kind != coll.Group {
		return !c.Kind.Traits().Message
	}
	return anyCollective(g)
}

func anyCollective(g Group) bool {
	for i := range g.Len() {
		if in, _ := g.Call(i); !in.Kind.Traits().Message {
			return true
		}
	}
	return false
}

// Packed is a call in two words, without the place of its data.
type Packed struct {
	what uint64 // kind, type, op and root, and whether every rank takes part
	n    int64  // elements, and above them whom a SendRecv receives from
}

const (
	ofEveryone = 1 << 31 // in what: every rank of the communicator takes part
	lengthBits = 45      // more than any length has
)

// Pack packs a call; g is its calls if it is a coll.Group.
func Pack(c *coll.Call, g Group) Packed {
	p := packMessage(c.Kind, c.Type, int(c.Root), c.N)
	p.what |= uint64(c.Op) << 16
	if everyone(c, g) {
		p.what |= ofEveryone
	}
	if c.Kind == coll.SendRecv {
		p.n |= int64(c.From) << lengthBits
	}
	return p
}

// packMessage packs a call between two ranks.
func packMessage(kind coll.Kind, t elem.Type, peer, n int) Packed {
	return Packed{uint64(kind) | uint64(t)<<8 | uint64(uint32(peer))<<32, int64(n)}
}

// Everyone reports whether every rank of the communicator takes part in the call.
func (p Packed) Everyone() bool { return p.what&ofEveryone != 0 }

// Alone returns the call as one that other ranks need not make.
func (p Packed) Alone() Packed { return Packed{p.what &^ ofEveryone, p.n} }

func (p Packed) kind() coll.Kind { return coll.Kind(p.what) }

// call returns the call without the parts that a Packed does not keep.
func (p Packed) call() coll.Call {
	c := coll.Call{Kind: p.kind(), Type: elem.Type(p.what >> 8), Op: elem.Op(uint8(p.what >> 16)),
		Root: int32(p.what >> 32), N: int(p.n)}
	if c.Kind == coll.SendRecv {
		c.N, c.From = c.N&(1<<lengthBits-1), int32(c.N>>lengthBits)
	}
	return c
}

func (p Packed) String() string {
	c := p.call()
	return c.String()
}

// mostNamed is how many calls of a group a report names.
const mostNamed = 8

// describeGroup names the first calls of a group of count calls.
func describeGroup(first []coll.Call, count int) string {
	var parts []string
	for i := range first {
		parts = append(parts, first[i].String())
	}
	more := ""
	if n := count - len(first); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return "Group of " + strings.Join(parts, ", ") + more
}
