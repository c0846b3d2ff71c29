package spmd

import (
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// BroadcastValue returns on every rank a copy of the v that root has. It carries numbers, strings, slices, arrays, maps,
// pointers, and of structs the exported fields; no functions and channels but nil. Types that encode themselves for
// encoding/gob do so. What an interface holds must be registered by gob.Register. On root, too, the result is a copy, so
// that all ranks have the same. What cannot be carried is an error on every rank. For one number BroadcastNumber is quicker.
//
//	settings, err := spmd.BroadcastValue(w.Comm(), settings, 0)
//
// Collective, blocking. A stream of c has no part in it.
func BroadcastValue[V any](c Comm, v V, root int) (V, error) {
	var got V
	err := c.c.Exchange("BroadcastValue", coll.BroadcastValue, root, func() error {
		var mine []byte
		if c.Rank() == root {
			mine = control.Encode(&v)
		}
		sent, err := control.Broadcast(c.c.Host(), mine, root)
		if err == nil {
			err = control.Decode(sent, root, &got)
		}
		return err
	})
	return got, err
}

// AllGatherValue returns on every rank copies of the v of every rank, in rank order, as BroadcastValue carries them. The
// values may differ in size. What cannot be carried is an error on every rank.
//
// Collective, blocking. A stream of c has no part in it.
func AllGatherValue[V any](c Comm, v V) ([]V, error) {
	var all []V
	err := c.c.Exchange("AllGatherValue", coll.AllGatherValue, 0, func() error {
		sent, err := control.Gather(c.c.Host(), control.Encode(&v))
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
