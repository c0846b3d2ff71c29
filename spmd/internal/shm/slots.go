package shm

import (
	"sync/atomic"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// What of slots.h moves bytes alone is here. A broadcast waits in Go: a call from Go to C takes as
// long as the exchange of a few bytes. C is called if a rank is not there soon.

// move makes a collective without an operation: each rank shows the others its operand of src
// elements, and a rank whose result has dst elements takes its parts.
func (c *NodeComm) move(call *coll.Call, dst, src int) error {
	s, t, size, rank := c.s, call.Kind.Traits(), call.Type.Size(), int(c.s.rank)
	s.round++
	brought := func(rank int) unsafe.Pointer { return unsafe.Pointer(&s.slots[rank].meeting[s.round&1].data) }
	copy(bytesAt(brought(rank), src*size), bytesAt(call.Src, src*size))
	if how := sysMeet(s, call); how.code != success || how.rank >= 0 || dst == 0 {
		return c.judge(call, how)
	}
	skip, off := 0, 0 // in what another has brought, and in the result
	if t.Src.Extent == coll.Whole {
		skip = call.Offset(rank) * size
	}
	if t.Dst.Extent != coll.Whole {
		copy(bytesAt(call.Dst, dst*size), bytesAt(unsafe.Add(brought(int(call.Root)), skip), dst*size))
		return nil
	}
	for r := range int(s.size) {
		n := call.Share(r) * size
		copy(bytesAt(unsafe.Add(call.Dst, off), n), bytesAt(unsafe.Add(brought(r), skip), n))
		off += n
	}
	return nil
}

// broadcast makes a broadcast of at most bcastBytes. The root goes on at once, unless it is
// bcasts ahead. If it brought another count or type than a rank expects, that is an error there.
func (c *NodeComm) broadcast(call *coll.Call) error {
	s, n, t, root := c.s, call.N, call.Type, int(call.Root)
	s.bcasts++
	round := uint64(s.bcasts)
	from := &s.slots[root].bcast[round%bcasts]
	own, data := bytesAt(call.Dst, n*t.Size()), bytesAt(unsafe.Pointer(&from.data), n*t.Size())
	its := *call
	if root == int(s.rank) {
		if round > uint64(s.heard)+bcasts {
			heard := round
			for _, other := range s.slots[:s.size] {
				word := (*uint64)(&other.heard)
				if code := await(word, round-bcasts, s); code != success {
					return c.Check("MPI_Bcast", code)
				}
				heard = min(heard, atomic.LoadUint64(word))
			}
			s.heard = cUint64(heard)
		}
		copy(data, own)
		from.n, from.t = cInt32(n), cUint8(t)
		atomic.StoreUint64((*uint64)(&from.round), round)
	} else {
		if code := await((*uint64)(&from.round), round, s); code != success {
			return c.Check("MPI_Bcast", code)
		}
		if its.N, its.Type = int(from.n), elem.Type(from.t); its.N == n && its.Type == t {
			copy(own, data)
		}
	}
	atomic.StoreUint64((*uint64)(&s.slots[s.rank].heard), round)
	if its.N != n || its.Type != t {
		return call.Differs(int(s.rank), root, its.What(), its.N)
	}
	return nil
}

// await returns when a rank has come to the round.
func await(its *uint64, round uint64, s *shared) (code int) {
	if appears(its, round, s) {
		return success
	}
	return sysAwait(s, unsafe.Pointer(its), round)
}

// appears reports whether a rank comes to the round soon: sooner than a wait gives the core away.
func appears(its *uint64, round uint64, s *shared) bool {
	for looks := uint64(0); atomic.LoadUint64(its) < round; looks++ {
		if looks >= 2*uint64(s.spins) {
			return false
		}
	}
	return true
}

func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }
