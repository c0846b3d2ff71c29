package shm

import (
	"sync/atomic"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/elem"
)

// The protocol of ring.h in Go, if nothing is to be waited for or to be skipped: a call from Go to
// C takes as long as the message.

// recordOf returns where the next message lies in a ring, and how many units
// one of so many bytes takes.
func recordOf(x *ringEnd, bytes int) (r *record, need uint64) {
	at := unsafe.Add(unsafe.Pointer(x.ring), uint64(x.next&(x.size-1))*unit)
	return (*record)(at), (recordHead + uint64(bytes) + unit - 1) / unit
}

// put sends a message if it fits the ring, and says whether it did.
func put(x *ringEnd, src unsafe.Pointer, bytes int, t elem.Type) bool {
	r, need := recordOf(x, bytes)
	next, size := uint64(x.next), uint64(x.size)
	if bytes > int(x.most) || next&(size-1)+need > size || next+need+1 > uint64(x.room) {
		return false
	}
	copy(bytesAt(unsafe.Add(unsafe.Pointer(r), recordHead), bytes), bytesAt(src, bytes))
	r.has = cInt64(cudampi.Content(bytes, t))
	x.next += cUint64(need)
	behind, _ := recordOf(x, 0)
	behind.there = 0
	atomic.StoreUint64((*uint64)(&r.there), 1)
	return true
}

// take receives a message if it comes soon, in the ring, and has the length and the type
// expected, and says whether it did.
func take(x *ringEnd, dst unsafe.Pointer, bytes int, t elem.Type) bool {
	r, need := recordOf(x, bytes)
	if !appears((*uint64)(&r.there), 1, x.of) || int(r.has) != cudampi.Content(bytes, t) || bytes > int(x.most) {
		return false
	}
	copy(bytesAt(dst, bytes), bytesAt(unsafe.Add(unsafe.Pointer(r), recordHead), bytes))
	x.next += cUint64(need)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(x.taken)), uint64(x.next))
	return true
}
