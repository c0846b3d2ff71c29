package spmd

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// contractEvery is of how many collectives of a communicator --check sample compares
// one: the first, and then every 64th.
const contractEvery = 64

// ErrContract is what a collective returns on every rank when the ranks called
// different ones, and with --check what a Recv returns when the message is another than
// it expects.
var ErrContract = errors.New("the ranks called different collectives")

// terms are what all ranks of a collective must bring.
type terms struct{ kind, typ, op, root, n, memory int64 }

// What NCCL does differently for memory that it knows, and would wait for ever where ranks
// differ in it: bits of terms.memory.
const (
	fromSymmetric = 1 << iota
	intoSymmetric
	intoPinned
	sameMemory
)

// memory says which of these hold for a call.
func (c *call) memory() (m int64) {
	if c.comm == nil || c.comm.w.symmetric == nil || c.Kind != coll.AllReduce && c.Kind != coll.AllGather && c.Kind != coll.ReduceScatter {
		return 0
	}
	known := &c.comm.w.symmetric.pool
	if c.sblk != nil && c.sblk.pool == known {
		m |= fromSymmetric
	}
	switch {
	case c.dblk == nil:
	case c.dblk.pool == known:
		m |= intoSymmetric
	case c.dblk.pool == c.comm.w.pinned && m != 0:
		m |= intoPinned
	}
	if m != 0 && c.Kind == coll.AllReduce && c.Dst == c.Src {
		m |= sameMemory
	}
	return m
}

// contract is the terms, and where a rank made the call, in a form that MPI can move.
type contract struct {
	terms
	site [104]byte
}

// ofCall are the terms of a call.
func ofCall(c *call) terms {
	t := c.Kind.Traits()
	if !t.Moves() {
		return terms{kind: int64(c.Kind)}
	}
	k := terms{kind: int64(c.Kind), typ: int64(c.Type), root: int64(c.Root), n: int64(c.Common()), memory: c.memory()}
	if t.Reduces {
		k.op = int64(c.Op)
	}
	return k
}

func (k *terms) hash() uint64 {
	h := uint64(0)
	for _, v := range [...]int64{k.kind, k.typ, k.op, k.root, k.n, k.memory} {
		h = mix(h + uint64(v))
	}
	return h
}

func (k *contract) String() string {
	return fmt.Sprintf("at %s: %v", k.place(), &k.terms)
}

// after is String in the middle of a sentence.
func (k *contract) after() string { return fmt.Sprintf("%v at %s", &k.terms, k.place()) }

func (k *contract) place() []byte {
	site, _, _ := bytes.Cut(k.site[:], []byte{0})
	return site
}

func (k *terms) String() string {
	t := coll.Kind(k.kind).Traits()
	s := t.Name
	switch {
	case !t.Moves():
		return s
	case t.Lengths == coll.Own:
		s += " of " + elem.Type(k.typ).String()
	default:
		s += fmt.Sprintf(" of %d %v", k.n, elem.Type(k.typ))
	}
	if t.Reduces {
		s += fmt.Sprintf(", %v", elem.Op(k.op))
	}
	if t.Rooted {
		s += fmt.Sprintf(", root %d", k.root)
	}
	for bit, text := range []string{", from symmetric memory", ", into symmetric memory", ", into pinned memory", ", in place"} {
		if k.memory>>bit&1 != 0 {
			s += text
		}
	}
	return s
}

// The modes of --check, in the order of job.CheckModes.
const (
	checkOff = iota
	checkSome
	checkAll
	checkBoth // and NCCL with MPI: see crossCheck
)

// checkContract compares the call over the ranks of its communicator before it is
// made, where --check asks for it, on a communicator for that alone: a rank that calls nothing more must not be met with
// something else. The caller is in its turn in MPI. The collectives of groups are not compared.
func (c *call) checkContract() error {
	st := c.comm
	switch {
	case st.w.check == checkOff || st.terms == nil:
		return nil
	case c.Kind == coll.Group || c.Kind.Traits().Message:
		return c.checkMessages()
	}
	st.compared++
	if st.w.check == checkSome && (st.compared-1)%contractEvery != 0 {
		return nil
	}
	mine := ofCall(c)
	st.hash[0] = control.Of(int64(mine.hash()))
	if err := control.Union(st.terms, st.hash[:]); err != nil {
		return err
	}
	if st.hash[0].One() {
		return nil
	}
	site := c.place()
	all, err := gatherContracts(st.terms, mine, site)
	if err != nil {
		return err
	}
	r := slices.IndexFunc(all, func(o contract) bool { return o.hash() != all[0].hash() })
	return fmt.Errorf("%s: %w: rank 0 %v; rank %d %v (%s, %d ranks)", site, ErrContract, &all[0], r, &all[r], st.id, st.size)
}

// gatherContracts returns the contracts of all ranks. Collective.
func gatherContracts(m *shm.Comm, k terms, site string) ([]contract, error) {
	mine := contract{terms: k}
	copy(mine.site[:len(mine.site)-1], site)
	all := make([]contract, m.Size())
	err := m.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine), int(unsafe.Sizeof(mine)), elem.Uint8)
	return all, err
}
