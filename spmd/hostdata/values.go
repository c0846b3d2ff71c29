package hostdata

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// Broadcast returns a copy of root's v on every rank, also on root. A value that cannot be carried
// is an error on every rank.
//
// It carries numbers, strings, slices, arrays, maps, pointers, and the exported fields of structs;
// functions and channels only if they are nil. Types that encode themselves for encoding/gob do so.
// gob.Register must have registered the type of a value in an interface.
//
//	settings, err := hostdata.Broadcast(w.Comm(), settings, 0)
//
// Source: mpi.h, MPI_Bcast.
func Broadcast[V any](c spmd.Comm, v V, root int) (V, error) {
	t, ok := number[V]()
	if !ok {
		return broadcast(c, v, root)
	}
	in := inside(c)
	p, err := in.EnterHost("hostdata.Broadcast", coll.Broadcast, root, t, elem.Sum, 16)
	if err != nil {
		return v, err
	}
	*(*V)(p) = v
	err = in.MakeHost(coll.Call{Kind: coll.Broadcast, Type: t, Root: int32(root), N: 1, Dst: p})
	v = *(*V)(p)
	in.LeaveHost()
	return v, err
}

// broadcast carries a value that is no number.
func broadcast[V any](c spmd.Comm, v V, root int) (got V, err error) {
	in := inside(c)
	err = in.Exchange("hostdata.Broadcast", coll.BroadcastValue, root, func() error {
		var mine []byte
		if c.Rank() == root {
			mine = control.Encode(&v)
		}
		sent, err := control.Broadcast(in.Host(), mine, root)
		if err == nil {
			err = control.Decode(sent, root, &got)
		}
		return err
	})
	return got, err
}

// AllGather returns on every rank copies of the v of every rank, in rank order, as Broadcast
// carries them. The values may differ in size. A value that cannot be carried is an error on every
// rank.
// Source: mpi.h, MPI_Allgather.
func AllGather[V any](c spmd.Comm, v V) ([]V, error) {
	t, ok := number[V]()
	if !ok {
		return allGather(c, v)
	}
	in := inside(c)
	p, err := in.EnterHost("hostdata.AllGather", coll.AllGather, 0, t, elem.Sum, 16)
	if err != nil {
		return nil, err
	}
	*(*V)(p) = v
	all := make([]V, c.Size())
	err = in.MakeHost(coll.Call{Kind: coll.AllGather, Type: t, N: 1, Dst: unsafe.Pointer(&all[0]), Src: p})
	in.LeaveHost()
	return all, err
}

// allGather carries values that are no numbers.
func allGather[V any](c spmd.Comm, v V) (all []V, err error) {
	in := inside(c)
	err = in.Exchange("hostdata.AllGather", coll.AllGatherValue, 0, func() error {
		sent, err := control.Gather(in.Host(), control.Encode(&v))
		if err != nil {
			return err
		}
		all = make([]V, len(sent))
		for r := range all {
			if err := control.Decode(sent[r], r, &all[r]); err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}
