package transport_test

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cudampi/commtest"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// hosts makes communicators of one in host memory, and has each make calls of every kind.
func hosts(t *testing.T, h transport.Host) {
	t.Helper()
	contract(t, h)
	rank, size := h.Rank(), h.Size()
	var id [128]byte
	for i := range id {
		id[i] = byte(i + rank)
	}
	commtest.Must(t, h.BroadcastID(&id, size-1))
	if id[127] != byte(127+size-1) {
		t.Fatalf("rank %d of %d: the id ends with %d", rank, size, id[127])
	}

	// Two communicators of the same ranks: a message of one is not one of the other.
	twin, err := h.Dup()
	commtest.Must(t, err)
	next, prev := (rank+1)%size, (rank+size-1)%size
	values := [...]int32{int32(rank), int32(rank + 100), -1, -1}
	at := func(i int) unsafe.Pointer { return unsafe.Pointer(&values[i]) }
	if size > 1 {
		send := func() {
			commtest.Must(t, twin.Send(at(1), 1, elem.Int32, next))
			commtest.Must(t, h.Send(at(0), 1, elem.Int32, next))
		}
		recv := func() {
			commtest.Must(t, h.Recv(at(2), 1, elem.Int32, prev))
			commtest.Must(t, twin.Recv(at(3), 1, elem.Int32, prev))
		}
		if rank == 0 {
			send()
			recv()
		} else {
			recv()
			send()
		}
		if values[2] != int32(prev) || values[3] != int32(prev+100) {
			t.Fatalf("rank %d of %d received %v", rank, size, values[2:])
		}
	}
	each[int64](onHost(t, twin), 3)
	closed(t, twin)

	// The even ranks and the odd ones, in reverse; then the last rank alone, and no other.
	part, err := h.Split(rank%2, -rank)
	commtest.Must(t, err)
	members := (size + 1 - rank%2) / 2
	if part.Size() != members || part.Rank() != members-1-rank/2 {
		t.Fatalf("rank %d of %d is %d of %d in its part", rank, size, part.Rank(), part.Size())
	}
	each[float32](onHost(t, part), 3)
	closed(t, part)
	color := -1
	if rank == size-1 {
		color = 7
	}
	alone, err := h.Split(color, 0)
	commtest.Must(t, err)
	if (alone != nil) != (rank == size-1) || alone != nil && alone.Size() != 1 {
		t.Fatalf("rank %d of %d: a part of the last one alone: %v", rank, size, alone)
	}
	if alone != nil {
		each[uint8](onHost(t, alone), 3)
		closed(t, alone)
	}
	node, err := h.SplitShared()
	commtest.Must(t, err)
	if node.Size() != size || node.Rank() != rank || node.Slow() != nil {
		t.Fatalf("rank %d of %d is %d of %d on its node, %v", rank, size, node.Rank(), node.Size(), node.Slow())
	}
	closed(t, node)
}

// closed closes a communicator twice.
func closed(t *testing.T, h transport.Host) {
	t.Helper()
	commtest.Must(t, h.Close())
	commtest.Must(t, h.Close())
}

// contract has rank 2 of three bring another count, type, operation, root or kind than the others,
// to every collective in which all wait for all. Every rank learns it, and the ranks go on.
func contract(t *testing.T, h transport.Host) {
	t.Helper()
	if h.Size() != 3 {
		return
	}
	const long = 40_000 // which MPI carries
	dst, src := make([]int64, 3*long+3), make([]int64, 3*long+3)
	bring := func(k coll.Kind, n int) coll.Call {
		c := coll.Call{Kind: k, Type: elem.Int64, N: n, Dst: unsafe.Pointer(&dst[0]), Src: unsafe.Pointer(&src[0])}
		if k.Traits().Lengths != coll.Equal {
			c.N, c.Counts = 0, []int{n, n, n}
		}
		return c
	}
	for k := coll.AllReduce; k <= coll.ExScan; k++ {
		for _, n := range []int{5, long} {
			traits := k.Traits()
			if traits.Lengths == coll.Own || k == coll.Broadcast && n < long { // in which not all wait for all
				continue
			}
			other := k%coll.ExScan + 1
			for other.Traits().Lengths == coll.Own || other == coll.Broadcast {
				other++
			}
			count, kind := bring(k, n+1), bring(other, n)
			ty, op, root := bring(k, n), bring(k, n), bring(k, n)
			ty.Type, op.Op, root.Root = elem.Float64, elem.Max, 1
			odd := []coll.Call{count, kind, ty}
			if traits.Reduces {
				odd = append(odd, op)
			}
			if traits.Rooted {
				odd = append(odd, root)
			}
			for _, its := range odd {
				c, want := bring(k, n), its.Kind
				if h.Rank() == 2 {
					c, want = its, k
				}
				if err := h.Make(&c); !errors.Is(err, ccall.ErrMismatch) ||
					!strings.Contains(err.Error(), "brought "+want.String()) {
					t.Errorf("rank %d: %v of %d against %v: %v", h.Rank(), k, n, &its, err)
				}
			}
		}
	}
	each[float32](onHost(t, h), 3)
}
