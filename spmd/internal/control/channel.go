package control

import (
	"reflect"

	"lockstep/spmd/internal/coll"
)

// Kind says which is the framework's own call for which the ranks of a program meet on a Channel.
type Kind = coll.Kind

// These are the calls that talk over a Channel, and those that make or end what it serves.
const (
	Split          = coll.Split
	CloseComm      = coll.CloseComm
	AllocSymmetric = coll.AllocSymmetric
	Choose         = coll.Choose
	Start          = coll.Start
	End            = coll.End
)

// Register returns a Kind for a package on top of the framework, as coll.Register does.
func Register(name string) Kind { return coll.Register(name) }

// ID names the communicator under a Channel, whose calls are no program's own.
const ID = "control"

// Guard stands before a rank that is about to wait for others.
type Guard interface {
	// Pass runs fn, in which this rank waits on behalf of a call: in its order in MPI, and visible
	// to the watch.
	Pass(on Kind, fn func() error) error
	// Strangers returns, on every rank, why the ranks that have come did so for different calls. It
	// is collective, and called in Pass.
	Strangers(on Kind) error
}

// Channel is the framework's own traffic between the ranks of a job, on a communicator of its own.
// Others compare the program's calls. Here each exchange begins with meet, which finds ranks that
// came for different calls.
//
// Every method is collective over all ranks, and blocks.
type Channel struct {
	comm  Exchange
	guard Guard
}

// NewChannel returns the channel over c, on which nothing else may talk.
func NewChannel(c Exchange, g Guard) *Channel { return &Channel{c, g} }

// meet returns the range of v over the ranks, which have all come for the same call. It is
// called in Pass.
func (ch *Channel) meet(on Kind, v int64) (Span, error) {
	s := []Span{Of(int64(on)), Of(v)}
	if err := Union(ch.comm, s); err != nil {
		return Span{}, err
	}
	if !s[0].One() {
		return Span{}, ch.guard.Strangers(on)
	}
	return s[1], nil
}

// Exchange runs fn, which talks to all ranks over c.
func (ch *Channel) Exchange(on Kind, fn func(c Exchange) error) error {
	return ch.guard.Pass(on, func() error {
		if _, err := ch.meet(on, 0); err != nil {
			return err
		}
		return fn(ch.comm)
	})
}

// Range returns the least and the greatest v over the ranks.
func (ch *Channel) Range(on Kind, v int64) (s Span, err error) {
	err = ch.guard.Pass(on, func() error {
		s, err = ch.meet(on, v)
		return err
	})
	return s, err
}

// Agree returns an error on every rank if mine is one on any: its own, or the Failure of the first
// rank that has one.
func (ch *Channel) Agree(on Kind, mine error) error {
	var f *Failure
	err := ch.guard.Pass(on, func() error {
		s, err := ch.meet(on, bid(ch.comm, mine))
		if err == nil {
			f, err = relay(ch.comm, mine, int(s.Lo))
		}
		return err
	})
	if err != nil {
		return err
	}
	return f.Or(mine)
}

// Broadcast returns root's b on every rank.
func (ch *Channel) Broadcast(on Kind, b []byte, root int) ([]byte, error) {
	err := ch.Exchange(on, func(c Exchange) (err error) {
		b, err = Broadcast(c, b, root)
		return err
	})
	return b, err
}

// Tell sets *v on every rank to root's value. A value that cannot be sent is an error
// on every rank.
func (ch *Channel) Tell(on Kind, v any, root int) error {
	var b []byte
	if ch.comm.Rank() == root {
		b = Encode(v)
	}
	b, err := ch.Broadcast(on, b, root)
	if err != nil {
		return err
	}
	to := reflect.ValueOf(v).Elem()
	to.SetZero()
	return Decode(b, root, v)
}
