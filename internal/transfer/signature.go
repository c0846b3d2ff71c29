package transfer

import (
	"fmt"

	"lockstep/internal/elem"
)

// Signature is what all ranks must agree on.
type Signature struct {
	What, Type, Op, Root int64
	N                    int64  // of the longest part
	hash                 uint64 // of all parts
}

// Signature returns that of a rank's call.
func (x *Transfer) Signature() Signature {
	s := Signature{What: int64(x.What), Type: int64(x.Type), N: int64(x.N)}
	if x.IsReduction() {
		s.Op = int64(x.Op)
	}
	if x.IsRooted() {
		s.Root = int64(x.Root)
	}
	if x.What != AllToAll { // whose counts differ from rank to rank
		for _, p := range [...]Parts{x.Send, x.Recv} {
			for _, n := range p.Counts {
				s.hash = (s.hash ^ uint64(n)) * 1099511628211
			}
		}
	}
	return s
}

// Differs says what rank r brought, where that is not what this rank did; "" where it is.
func (s Signature) Differs(other Signature, r int) string {
	if s.What == int64(AllToAll) {
		s.N, other.N = 0, 0
	}
	if s == other {
		return ""
	}
	here, there := s.String(), other.String()
	if here == there {
		there = "other counts"
	}
	return fmt.Sprintf("%s here, but rank %d brought %s", here, r, there)
}

// String is the call in words.
func (s Signature) String() string {
	return fmt.Sprintf("%v of %d %v, op %v, root %d", Kind(s.What), s.N, elem.Type(s.Type), elem.Op(s.Op), s.Root)
}

// Tell sets send and recv to the counts of an AllToAll.
func (x *Transfer) Tell(send, recv []int64) {
	for r := range send {
		send[r], recv[r] = int64(x.Send.Len(r)), int64(x.Recv.Len(r))
	}
}

// Unmatched says in which way some rank of an AllToAll sends another count than is expected of it, "" where none does;
// counts are what each rank told.
func (x *Transfer) Unmatched(counts func(rank int) (send, recv []int64)) string {
	for from := range x.Size {
		send, _ := counts(from)
		for to := range x.Size {
			if _, recv := counts(to); send[to] != recv[from] {
				return fmt.Sprintf("rank %d sends %d %v elements to rank %d, which expects %d", from, send[to], x.Type, to, recv[from])
			}
		}
	}
	return ""
}
