package spmd

import "lockstep/spmd/internal/calls"

// BroadcastValue returns on every rank a copy of the v that root has. It carries numbers, strings,
// slices, arrays, maps, pointers, and of structs the exported fields; no functions and channels but
// nil. Types that encode themselves for encoding/gob do so. What an interface holds must be
// registered by gob.Register. The result is a copy on root too, so that all ranks have the same. A
// value that cannot be carried is an error on every rank. For one number BroadcastNumber is
// quicker.
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
