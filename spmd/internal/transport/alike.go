package transport

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// What packs the kind, type, operation and root of a call, which all ranks have to call alike.
func What(c *coll.Call) uint64 {
	return uint64(c.Kind) | uint64(c.Type)<<8 | uint64(c.Op)<<16 | uint64(uint32(c.Root))<<32
}

// Alike returns a number that ranks have to bring alike: the elements of a part, or a hash of all
// counts.
func Alike(c *coll.Call) int {
	if len(c.Counts) == 0 {
		return c.N
	}
	h := uint64(0)
	for _, k := range c.Counts {
		h = elem.MixBits(h + uint64(k) + 1) // counts that differ give another number, but for accidents
	}
	return int(h)
}

// Differs is ccall.ErrMismatch, with What a rank has brought, and its number.
func Differs(rank int, what uint64, n int) error {
	its := coll.Call{Kind: coll.Kind(what), Type: elem.Type(what >> 8), Op: elem.Op(what >> 16),
		Root: int32(what >> 32), N: n}
	other := ""
	if its.Kind.Traits().Lengths == coll.Shared {
		other = ", or other counts, which --check names"
	}
	return fmt.Errorf("%w: rank %d brought %v%s", ccall.ErrMismatch, rank, &its, other)
}

// WrongLength returns the error of a message that has another length than its receiver expects.
func WrongLength(m *coll.Call, bytes int) error {
	want := m.N * m.Type.Size()
	return fmt.Errorf("message from rank %d has %d bytes, %d (%d %v elements) expected",
		m.Root, bytes, want, m.N, m.Type)
}

func Failed(c *coll.Call, rank int, err error) error {
	return &ccall.Error{Op: c.String(), Rank: rank, At: ccall.At(), Err: err}
}
