package spmd

import "lockstep/spmd/internal/calls"

// BroadcastValue returns a copy of root's v on every rank, also on root. A value that cannot be
// carried is an error on every rank. For one number BroadcastNumber is quicker.
//
// It carries numbers, strings, slices, arrays, maps, pointers, and the exported fields of structs;
// functions and channels only if they are nil. Types that encode themselves for encoding/gob do so.
// gob.Register must have registered the type of a value in an interface.
//
//	settings, err := spmd.BroadcastValue(w.Comm(), settings, 0)
//
// Collective, blocking. A stream of c has no part in it.
func BroadcastValue[V any](c Comm, v V, root int) (V, error) {
	return calls.BroadcastValue(c.c, v, root)
}

// AllGatherValue returns on every rank copies of the v of every rank, in rank order, as
// BroadcastValue carries them. The values may differ in size. A value that cannot be carried is an
// error on every rank.
//
// Collective, blocking. A stream of c has no part in it.
func AllGatherValue[V any](c Comm, v V) ([]V, error) {
	return calls.AllGatherValue(c.c, v)
}
