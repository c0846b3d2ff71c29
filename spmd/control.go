package spmd

import (
	"fmt"
	"slices"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/job"
)

// Everywhere but in the calls of the program a rank waits for others of a communicator in pass: what the program called
// is seen by the watch, and compared with what the other ranks called. The framework's own traffic between all ranks is
// that of a control.Channel, whose guard the communicator controlID is.

// mpiOrder is the order of this process in MPI.
var mpiOrder = control.NewTickets()

// controlID names the communicator of the framework's own traffic.
const controlID = job.ControlID

// Pass implements control.Guard: fn runs in its turn in MPI, and the watch and the contract see the call.
// Collective over st, blocking.
func (st *commState) Pass(on control.Call, fn func() error) error {
	if err := mpiOrder.Enter(mpiOrder.Take(1)); err != nil {
		return err
	}
	defer mpiOrder.Leave()
	if on == control.End { // which is no call of the program: the watch knows without
		return fn()
	}
	c := call{Call: coll.Call{Kind: on}, comm: st}
	what := st.activity.begin(&c)
	defer st.activity.leave()
	if err := c.checkContract(); err != nil {
		return err
	}
	st.activity.ledger.note(&c, what, nil)
	return fn()
}

// Strangers implements control.Guard: it names two ranks that came on behalf of different calls.
func (st *commState) Strangers(on control.Call) error {
	all, err := gatherContracts(st.mpi, terms{kind: int64(on)}, ccall.At())
	if err != nil {
		return err
	}
	end := int64(control.End)
	a, b := 0, slices.IndexFunc(all, func(o contract) bool { return o.kind != all[0].kind })
	if all[b].kind == end {
		a, b = b, a
	}
	if all[a].kind == end {
		return fmt.Errorf("%w: rank %d has returned from the program; rank %d is in %s", ErrContract, a, b, all[b].after())
	}
	return fmt.Errorf("%w: rank %d %v; rank %d %v", ErrContract, a, &all[a], b, &all[b])
}
