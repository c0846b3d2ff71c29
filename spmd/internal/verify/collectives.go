package verify

import (
	"encoding/json"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// parts returns the number of calls that a call is made of.
func parts(c *coll.Call, g Group) int {
	if c.Kind == coll.Group {
		return g.Len()
	}
	return 1
}

// part is one of them, and whether it is a collective.
func part(c *coll.Call, g Group, memory Memory, i int) (*coll.Call, Memory, bool) {
	if c.Kind == coll.Group {
		c, memory = g.Call(i)
	}
	return c, memory, !c.Kind.Traits().Message
}

// checkCollectives compares a collective, or the collectives of a group, with the other ranks'.
// Collective.
func (k *Checker) checkCollectives(mode Mode, c *coll.Call, g Group, memory Memory, site *ccall.Site) error {
	k.seen++
	if mode == Sample && (k.seen-1)%sampleEvery != 0 {
		return nil
	}
	hash, pairs := uint64(c.Kind), false
	for i := range parts(c, g) {
		in, memory, ok := part(c, g, memory, i)
		if !ok {
			continue
		}
		s := signatureOf(in, memory)
		hash = elem.MixBits(hash + s.hash())
		pairs = pairs || in.Kind == coll.AllToAllV
	}
	k.hash[0] = control.Of(int64(hash))
	if err := control.Union(k.comm, k.hash[:]); err != nil {
		return err
	}
	if !k.hash[0].One() {
		return k.differ(c, g, memory, where(site))
	}
	if !pairs {
		return nil
	}
	for i := range parts(c, g) {
		if in, _, _ := part(c, g, memory, i); in.Kind == coll.AllToAllV {
			if err := k.checkPairs(in, site); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPairs compares, in an AllToAllV, each rank's parts for each other with the parts that the
// other expects. Collective.
func (k *Checker) checkPairs(c *coll.Call, site *ccall.Site) error {
	size := k.comm.Size()
	both := make([]int64, 2*size)
	sent, coming := both[:size], both[size:]
	for r, n := range c.Counts {
		sent[r] = int64(n)
	}
	err := k.comm.Do(nil, coll.Call{Kind: coll.AllToAll, Type: elem.Int64, N: 1,
		Src: unsafe.Pointer(&sent[0]), Dst: unsafe.Pointer(&coming[0])})
	if err != nil {
		return err
	}
	var wrong error
	for r, n := range c.RecvCounts {
		if coming[r] != int64(n) {
			wrong = fmt.Errorf("%v: rank %d sends %d %v to rank %d, which expects %d", c.Kind, r,
				coming[r], c.Type, k.rec.Rank, n)
			break
		}
	}
	failure, err := control.First(k.comm, wrong)
	if err != nil || failure == nil {
		return err
	}
	return k.mismatch(where(site), failure.Text)
}

// brought is a rank's call in a form that goes to the others.
type brought struct {
	At    string
	Kind  coll.Kind
	Calls []member
}

// member is one of its collectives. Counts are those that all ranks bring alike.
type member struct {
	Signature [7]int64
	Counts    []int
}

// differ says which of the ranks bring other collectives: rank 0 and the first that brings others.
// Collective.
func (k *Checker) differ(c *coll.Call, g Group, memory Memory, at string) error {
	mine := brought{At: at, Kind: c.Kind}
	for i := range parts(c, g) {
		in, memory, ok := part(c, g, memory, i)
		if !ok {
			continue
		}
		s := signatureOf(in, memory)
		m := member{Signature: [...]int64{s.kind, s.typ, s.op, s.root, s.n, s.memory, s.counts}}
		if s.counts != 0 {
			m.Counts = slices.Clone(in.Counts)
		}
		mine.Calls = append(mine.Calls, m)
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	said, err := control.Gather(k.comm, text)
	if err != nil {
		return err
	}
	all := make([]brought, len(said))
	for r := range all {
		if err := json.Unmarshal(said[r], &all[r]); err != nil {
			return err
		}
	}
	r := slices.IndexFunc(all, func(o brought) bool { return o.Kind != all[0].Kind || all[0].first(&o) >= 0 })
	i := all[0].first(&all[r])
	return k.mismatch(at, fmt.Sprintf("rank 0 %s; rank %d %s", all[0].text(i, &all[r]), r, all[r].text(i, &all[0])))
}

// first returns the first of the calls that another rank has not brought; -1 if it has all, and no
// more.
func (b *brought) first(o *brought) int {
	for i := range max(len(b.Calls), len(o.Calls)) {
		if i >= len(b.Calls) || i >= len(o.Calls) || b.Calls[i].Signature != o.Calls[i].Signature {
			return i
		}
	}
	return -1
}

// text describes call i, its place, and the other rank's differing part of it.
func (b *brought) text(i int, o *brought) string {
	head := fmt.Sprintf("at %s: ", b.At)
	if b.Kind == coll.Group {
		if i < 0 || i >= len(b.Calls) {
			return head + fmt.Sprintf("Group whose last collective is number %d", len(b.Calls))
		}
		head += fmt.Sprintf("Group, collective %d of %d: ", i+1, len(b.Calls))
	}
	i = max(i, 0)
	v := b.Calls[i].Signature
	s := signature{v[0], v[1], v[2], v[3], v[4], v[5], v[6]}
	text := head + s.String()
	if i < len(o.Calls) && len(o.Calls[i].Counts) == len(b.Calls[i].Counts) {
		for j, n := range b.Calls[i].Counts {
			if n != o.Calls[i].Counts[j] {
				return text + fmt.Sprintf(", counts[%d] is %d", j, n)
			}
		}
	}
	return text
}
