package shm

import (
	"sync/atomic"
	"unsafe"

	"lockstep/internal/elem"
)

// What of slots.h moves bytes alone is here. A broadcast waits in Go: a call from Go to C takes as
// long as the exchange of a few bytes. C is called if a rank is not there soon.

// exchange shows this rank's operand to the others. It sets each part of dst, n elements, from the
// operand of its rank, skip bytes from the start. This rank's own part comes from mine, which may
// be in its place already.
func exchange(s *shared, meeting int, dst unsafe.Pointer, brings []byte, mine unsafe.Pointer, skip, n int,
	t elem.Type) met {
	bytes, size, own := n*t.Size(), int(s.size), int(s.rank)
	s.rounds[meeting]++
	round := uint64(s.rounds[meeting])
	brought := func(rank int) *slot { return &s.slots[rank].collective[meeting][round&1] }
	copy(bytesAt(unsafe.Pointer(&brought(own).data), len(brings)), brings)
	if how := sysMeet(s, meeting, n, t); how.code != success || how.rank >= 0 {
		return how
	}
	for r := range size {
		from := unsafe.Add(unsafe.Pointer(&brought(r).data), skip)
		if r == own {
			from = mine
		}
		copy(bytesAt(unsafe.Add(dst, r*bytes), bytes), bytesAt(from, bytes))
	}
	return met{success, -1, 0}
}

// broadcast makes a broadcast of at most bcastBytes. The root goes on at once, unless it is
// bcasts ahead. If it brought another count or type than a rank expects, the outcome names the
// root, on that rank.
func broadcast(s *shared, buf unsafe.Pointer, n int, t elem.Type, root int) met {
	how := met{success, -1, 0}
	s.bcasts++
	round := uint64(s.bcasts)
	from := &s.slots[root].bcast[round%bcasts]
	own, data := bytesAt(buf, n*t.Size()), bytesAt(unsafe.Pointer(&from.data), n*t.Size())
	if root == int(s.rank) {
		if round > uint64(s.heard)+bcasts {
			heard := round
			for _, other := range s.slots[:s.size] {
				word := (*uint64)(&other.heard)
				if how.code = await(word, round-bcasts, s); how.code != success {
					return how
				}
				heard = min(heard, atomic.LoadUint64(word))
			}
			s.heard = cUint64(heard)
		}
		copy(data, own)
		from.n, from.t = cInt32(n), cUint8(t)
		atomic.StoreUint64((*uint64)(&from.round), round)
	} else {
		if how.code = await((*uint64)(&from.round), round, s); how.code != success {
			return how
		}
		if int(from.n) == n && elem.Type(from.t) == t {
			copy(own, data)
		} else {
			how.rank, how.got = root, int(from.n)
		}
	}
	atomic.StoreUint64((*uint64)(&s.slots[s.rank].heard), round)
	return how
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
