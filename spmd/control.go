package spmd

import (
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/verify"
)

// Everywhere but in the calls of the program a rank waits for others of a communicator in pass: what the program called
// is seen by the watch, and compared with what the other ranks called. The framework's own traffic between all ranks is
// that of a control.Channel, whose guard the communicator control.ID is.

// Pass implements control.Guard: fn runs in its turn in MPI, and the watchdog sees the call, and --check.
// Collective over st, blocking.
func (st *commState) Pass(on control.Call, fn func() error) error {
	order := st.w.order
	if err := order.Enter(order.Take(1)); err != nil {
		return err
	}
	defer order.Leave()
	if on == control.End { // which is no call of the program: the watch knows without
		return fn()
	}
	c := call{Call: coll.Call{Kind: on}, comm: st}
	p := st.recorder.Begin(&c.Call, nil)
	defer st.recorder.Leave()
	if err := c.verify(); err != nil {
		return err
	}
	st.recorder.Note(p, &c.Call, nil, 0, nil)
	return fn()
}

// Strangers implements control.Guard.
func (st *commState) Strangers(on control.Call) error { return verify.Strangers(st.host, on) }
