package own

import (
	"lockstep/spmd"
	"lockstep/spmd/internal/control"
)

// Meeting is a call of a package in which all ranks of a world take part, such as the save of a
// checkpoint. The ranks meet for it on the host, apart from the program's own collectives. The
// watch reports a rank that does not come, by the name of the Meeting. Ranks that come for
// different ones get an error.
//
// Its methods are collective over all ranks, and block.
type Meeting struct{ on control.Kind }

// NewMeeting declares a Meeting, as a package variable: all ranks declare the same ones in the same
// order. The name appears in errors and reports.
func NewMeeting(name string) Meeting { return Meeting{control.Register(name)} }

// Agree returns an error on every rank if err is one on any: the rank's own, or the error of the
// first rank that has one.
func (m Meeting) Agree(w *spmd.World, err error) error {
	return inside(w).Rank().Channel.Agree(m.on, err)
}

// Range returns the least and the greatest v of all ranks.
func (m Meeting) Range(w *spmd.World, v int64) (least, greatest int64, err error) {
	s, err := inside(w).Rank().Channel.Range(m.on, v)
	return s.Lo, s.Hi, err
}

// Broadcast returns root's b on every rank.
func (m Meeting) Broadcast(w *spmd.World, b []byte, root int) ([]byte, error) {
	return inside(w).Rank().Channel.Broadcast(m.on, b, root)
}

// AllGather returns the b of every rank, in rank order. They may differ in length.
func (m Meeting) AllGather(w *spmd.World, b []byte) (all [][]byte, err error) {
	err = inside(w).Rank().Channel.Exchange(m.on, func(c control.Exchange) error {
		all, err = control.Gather(c, b)
		return err
	})
	return all, err
}
