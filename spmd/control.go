package spmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Everywhere but in the calls of the program a rank waits for others of a communicator in pass: what the program called
// is seen by the watch, and compared with what the other ranks called. The framework's own traffic has a communicator of
// its own, and each exchange there begins with meet, which finds ranks that came on behalf of different calls.

// controlID names the communicator of the framework's own traffic.
const controlID = "control"

// pass runs fn, in which this rank waits for the others of st on behalf of op, in its turn in MPI.
// Collective over st, blocking.
func (st *commState) pass(op cmdKind, fn func() error) error {
	if err := mpiTurns.enter(mpiTurns.take(1)); err != nil {
		return err
	}
	defer mpiTurns.leave()
	if op == cmdEnd { // which is no call of the program: the watch knows without
		return fn()
	}
	c := call{kind: op, comm: st}
	what := st.activity.begin(&c)
	defer st.activity.leave()
	if err := c.checkContract(); err != nil {
		return err
	}
	st.activity.ledger.note(&c, what, nil)
	return fn()
}

// meet returns the least and the greatest v over all ranks, or ErrContract on every rank where they came on behalf of
// different calls. Collective, in pass.
func (w *World) meet(op cmdKind, v int64) (lo, hi int64, err error) {
	m := w.control.st.mpi
	x := [4]int64{int64(op), ^int64(op), v, ^v} // the greatest has the least complement
	if err := m.AllReduce(unsafe.Pointer(&x), unsafe.Pointer(&x), len(x), elem.Int64, Min); err != nil {
		return 0, 0, err
	}
	if x[0] == ^x[1] {
		return x[2], ^x[3], nil
	}
	all, err := gatherContracts(m, terms{kind: int64(op)}, ccall.At())
	if err != nil {
		return 0, 0, err
	}
	a, b := 0, slices.IndexFunc(all, func(o contract) bool { return o.kind != all[0].kind })
	if all[b].kind == int64(cmdEnd) {
		a, b = b, a
	}
	if all[a].kind == int64(cmdEnd) {
		return 0, 0, fmt.Errorf("%w: rank %d has returned from the program; rank %d is in %s", ErrContract, a, b, all[b].after())
	}
	return 0, 0, fmt.Errorf("%w: rank %d %v; rank %d %v", ErrContract, a, &all[a], b, &all[b])
}

// spread returns the least and the greatest v over all ranks. Collective, blocking.
func (w *World) spread(op cmdKind, v int64) (lo, hi int64, err error) {
	err = w.control.st.pass(op, func() error {
		lo, hi, err = w.meet(op, v)
		return err
	})
	return lo, hi, err
}

// exchange runs fn, which talks to all ranks through m. Collective, blocking.
func (w *World) exchange(op cmdKind, fn func(m *cudampi.Comm) error) error {
	return w.control.st.pass(op, func() error {
		if _, _, err := w.meet(op, 0); err != nil {
			return err
		}
		return fn(w.control.st.mpi)
	})
}

// allAgree returns an error on every rank when failure is one on any: its own, or what the first rank that has one says.
// Collective, blocking.
func (w *World) allAgree(op cmdKind, failure error) error {
	mine := reasonOf(failure)
	said, first := mine, -1
	err := w.control.st.pass(op, func() error {
		v := int64(w.Size())
		if mine.kind != reasonNone {
			v = int64(w.Rank())
		}
		lo, _, err := w.meet(op, v)
		if err != nil || lo == int64(w.Size()) {
			return err
		}
		first = int(lo)
		said, err = relay(w.control.st.mpi, mine, first)
		return err
	})
	switch {
	case err != nil:
		return err
	case first < 0 || failure != nil:
		return failure
	}
	return errors.New(byRank(first, said.text))
}

// byRank is what a rank said, with the rank before it unless it names one itself: what another has said before.
func byRank(rank int, said string) string {
	if namesRank.MatchString(said) {
		return said
	}
	return fmt.Sprintf("rank %d: %s", rank, said)
}

var namesRank = regexp.MustCompile(`^rank [0-9]+: `)

// broadcast copies root's p to all ranks. Collective, blocking.
func (w *World) broadcast(op cmdKind, p []byte, root int) error {
	return w.exchange(op, func(m *cudampi.Comm) error {
		return m.Broadcast(unsafe.Pointer(unsafe.SliceData(p)), len(p), elem.Uint8, root)
	})
}

// tell copies what rank root has in v, as JSON, to every rank. Collective, blocking.
func (w *World) tell(op cmdKind, root int, v any) error {
	var b []byte
	if w.Rank() == root {
		var err error
		if b, err = json.Marshal(v); err != nil {
			return err
		}
	}
	err := w.exchange(op, func(m *cudampi.Comm) error {
		n := int64(len(b))
		if err := m.Broadcast(unsafe.Pointer(&n), 1, elem.Int64, root); err != nil {
			return err
		}
		if w.Rank() != root {
			b = make([]byte, n)
		}
		return m.Broadcast(unsafe.Pointer(unsafe.SliceData(b)), int(n), elem.Uint8, root)
	})
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// collect returns what each rank has in mine, as JSON, in rank order. Collective, in exchange.
func collect(m *cudampi.Comm, mine any) ([]json.RawMessage, error) {
	b, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	n := int64(len(b))
	lengths := make([]int64, m.Size())
	if err := m.AllGather(unsafe.Pointer(&lengths[0]), unsafe.Pointer(&n), 1, elem.Int64); err != nil {
		return nil, err
	}
	counts := make([]int, m.Size())
	for r, n := range lengths {
		counts[r] = int(n)
	}
	whole := make([]byte, sum(counts))
	if err := m.AllGatherV(unsafe.Pointer(unsafe.SliceData(whole)), unsafe.Pointer(unsafe.SliceData(b)), counts, elem.Uint8); err != nil {
		return nil, err
	}
	all := make([]json.RawMessage, m.Size())
	for r, n := range counts {
		all[r], whole = whole[:n:n], whole[n:]
	}
	return all, nil
}
