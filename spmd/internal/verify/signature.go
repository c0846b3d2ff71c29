package verify

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
)

// ErrMismatch is spmd.ErrContract.
var ErrMismatch = ccall.ErrMismatch

// Memory is the property of a call's memory that changes NCCL's way. NCCL would wait for ever if
// ranks differed in it.
type Memory = transport.Memory

// The bits of Memory.
const (
	FromSymmetric = transport.FromSymmetric
	IntoSymmetric = transport.IntoSymmetric
	InPlace       = transport.InPlace
)

var memoryNames = [...]string{", from symmetric memory", ", into symmetric memory", ", in place"}

// signature is the part of a collective in which all ranks must agree. counts stands for the counts
// of a V form.
type signature struct{ kind, typ, op, root, n, memory, counts int64 }

func signatureOf(c *coll.Call, memory Memory) signature {
	t := c.Kind.Traits()
	s := signature{kind: int64(c.Kind)}
	if t.Moves() || t.Rooted {
		s.root = int64(c.Root)
	}
	if !t.Moves() {
		return s
	}
	s.typ, s.n, s.memory = int64(c.Type), int64(c.Common()), int64(memory)
	if t.Lengths == coll.Shared {
		s.counts = int64(c.Alike())
	}
	if t.Reduces {
		s.op = int64(c.Op)
	}
	return s
}

func (s *signature) hash() uint64 {
	h := uint64(0)
	for _, v := range [...]int64{s.kind, s.typ, s.op, s.root, s.n, s.memory, s.counts} {
		h = elem.MixBits(h + uint64(v))
	}
	return h
}

func (s *signature) String() string {
	t := coll.Kind(s.kind).Traits()
	text := t.Name
	switch {
	case !t.Moves():
	case t.Lengths == coll.Own:
		text += " of " + elem.Type(s.typ).String()
	default:
		text += fmt.Sprintf(" of %d %v", s.n, elem.Type(s.typ))
	}
	if t.Reduces {
		text += fmt.Sprintf(", %v", elem.Op(s.op))
	}
	if t.Rooted {
		text += fmt.Sprintf(", root %d", s.root)
	}
	for bit, name := range memoryNames {
		if s.memory>>bit&1 != 0 {
			text += name
		}
	}
	return text
}

// placed is a signature, and a rank's place of the call, in a form that MPI can move.
type placed struct {
	signature
	site [104]byte
}

func place(s signature, site string) placed {
	p := placed{signature: s}
	copy(p.site[:len(p.site)-1], site)
	return p
}

func (p *placed) String() string { return fmt.Sprintf("at %s: %v", p.at(), &p.signature) }

// after is String in the middle of a sentence.
func (p *placed) after() string { return fmt.Sprintf("%v at %s", &p.signature, p.at()) }

func (p *placed) at() []byte {
	site, _, _ := bytes.Cut(p.site[:], []byte{0})
	return site
}

// gather returns what all ranks give. Collective.
func gather(c control.Exchange, mine placed) ([]placed, error) {
	all := make([]placed, c.Size())
	err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine), int(unsafe.Sizeof(mine)), elem.Uint8)
	return all, err
}

// Strangers returns, on every rank, why ranks that have met did so on behalf of different calls: it
// names two of them. Collective.
func Strangers(c control.Exchange, on coll.Kind) error {
	all, err := gather(c, place(signature{kind: int64(on)}, ccall.At()))
	if err != nil {
		return err
	}
	const end = int64(coll.End)
	a, b := 0, slices.IndexFunc(all, func(o placed) bool { return o.kind != all[0].kind })
	if all[b].kind == end {
		a, b = b, a
	}
	if all[a].kind == end {
		return fmt.Errorf("%w: rank %d has returned from the program; rank %d is in %s", ErrMismatch, a, b,
			all[b].after())
	}
	return fmt.Errorf("%w: rank %d %v; rank %d %v", ErrMismatch, a, &all[a], b, &all[b])
}
