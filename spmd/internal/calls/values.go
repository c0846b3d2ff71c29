package calls

import (
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// BroadcastValue returns on every rank a copy of the v that root has.
func BroadcastValue[V any](c *Comm, v V, root int) (got V, err error) {
	err = c.Exchange("BroadcastValue", coll.BroadcastValue, root, func() error {
		var mine []byte
		if c.rank == root {
			mine = control.Encode(&v)
		}
		sent, err := control.Broadcast(c.host, mine, root)
		if err == nil {
			err = control.Decode(sent, root, &got)
		}
		return err
	})
	return got, err
}

// AllGatherValue returns on every rank copies of the v of every rank, in rank order.
func AllGatherValue[V any](c *Comm, v V) (all []V, err error) {
	err = c.Exchange("AllGatherValue", coll.AllGatherValue, 0, func() error {
		sent, err := control.Gather(c.host, control.Encode(&v))
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
