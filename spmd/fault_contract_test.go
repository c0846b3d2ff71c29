package spmd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/spmdtest"
)

// operands are buffers for a call of three ranks.
type operands struct{ one, other, long floats }

func allocOperands(w *spmd.World) (p operands, err error) {
	for to, n := range map[*floats]int{&p.one: 13 * w.Size(), &p.other: 13 * w.Size(), &p.long: 1 << 20} {
		x, e := spmd.Alloc[float32](w, n)
		*to, err = x, errors.Join(err, e)
	}
	return p, err
}

// late is a call of the other ranks after the victim has returned from the program.
type late = func(w *spmd.World, c spmd.Comm, p operands) error

const leaver = 2 // the victim, of three ranks

// lateRow is such a call, and the report's words on it.
type lateRow struct {
	name, said string
	call       late
}

// lateCalls are calls that all ranks make.
func lateCalls() (rows []lateRow) {
	for _, call := range everyCall(13) {
		root := leaver
		if call.kind == coll.Gather || call.kind == coll.GatherV { // others than the root do not wait
			root = 0
		}
		said := coll.Call{Kind: call.kind, Type: elem.Float32, N: 13, Root: int32(root)}
		if call.kind == coll.SendRecv {
			continue
		}
		rows = append(rows, lateRow{call.kind.String(), said.String(),
			func(_ *spmd.World, c spmd.Comm, p operands) error { return call.do(c, p.other, p.one, root) }})
	}
	sum := func(c spmd.Comm, x floats) error { return spmd.AllReduce(c, x, x, spmd.Sum) }
	return append(rows,
		lateRow{"a long AllReduce", "AllReduce of 1048576 float32 (sum)",
			func(_ *spmd.World, c spmd.Comm, p operands) error { return sum(c, p.long) }},
		lateRow{"a Group", "Group of AllReduce of 39 float32 (sum)",
			func(_ *spmd.World, c spmd.Comm, p operands) error {
				return c.Group(func() error { return sum(c, p.one) })
			}})
}

// lateMessages are messages to and from the victim, with the report's words on their sender or
// receiver.
var lateMessages = []lateRow{
	{"a Recv", "is in Recv of 39 float32 from rank 2 {at}, and waits for message 1 from it on \"world\": " +
		"it has sent 0", func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Recv(c, p.one, leaver) }},
	{"a Send", "has sent message 1 to it on \"world\"",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Send(c, p.one, leaver) }},
	{"a long Send", "is in Send of 1048576 float32 to rank 2 {at}, and has sent message 1 to it on \"world\"",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Send(c, p.long, leaver) }},
	{"a SendRecv", "is in SendRecv of 39 float32 to rank 2, and from rank 2 {at}, and waits for message " +
		"1 from it on \"world\": it has sent 0", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return spmd.SendRecv(c, p.other, leaver, p.one, leaver)
	}},
}

// lateDoors are calls in which the framework has the ranks agree; reports never name that.
var lateDoors = []lateRow{
	{"a Split", "Split {at}, call 2", func(w *spmd.World, _ spmd.Comm, _ operands) error {
		_, err := w.Comm().Split(0, 0)
		return err
	}},
	{"an AllocSymmetric", "AllocSymmetric {at}", func(w *spmd.World, _ spmd.Comm, _ operands) error {
		_, err := spmd.AllocSymmetric[int32](w, 5)
		return err
	}},
	{"a checkpoint.Open", "checkpoint.Open {at}",
		func(w *spmd.World, _ spmd.Comm, _ operands) error { _, err := openCheckpoints(w); return err }},
}

// openCheckpoints opens a folder of the test's.
func openCheckpoints(w *spmd.World) (*checkpoint.Manager, error) {
	return checkpoint.Open(w, filepath.Join(os.Getenv(faultEnv), "checkpoints"), checkpoint.Config{})
}

// kindsOfLate are the rows of returnRows; the others are like one of them.
var kindsOfLate = []string{"returns before AllReduce", "returns before AllReduce on a stream",
	"returns before Broadcast on a stream, --check", "returns before a Recv", "returns before a Split"}

// returnRows are the faults of a program that returns on one rank while the others go on: each call
// in one of four manners, an AllReduce in all.
func returnRows() []mishap {
	var rows []mishap
	add := func(name, said string, call late, manner int, streams bool) {
		row := mishap{name: "returns before " + name, ranks: leaver + 1, within: 5 * time.Second,
			cause: "the ranks called different collectives: rank {rank} has returned from the program"}
		at := "at "
		if spmdtest.Device() != "host" {
			at = "from "
		}
		run := call
		if manner&1 != 0 && streams {
			row.name, at, run = row.name+" on a stream", "from ", onStream(call)
		}
		if manner&2 != 0 {
			row.name, row.args = row.name+", --check", []string{"--check"}
		}
		said, rest, _ := strings.Cut(said, "{at}")
		if rest != "" || strings.HasSuffix(said, " ") {
			said += at + "spmd/"
		}
		row.want = []string{said, rest}
		row.run = func(_ context.Context, w *spmd.World, victim bool) error {
			if victim {
				happens()
				return nil
			}
			p, err := allocOperands(w)
			if err != nil {
				return err
			}
			return run(w, w.Comm(), p)
		}
		row.more = !slices.Contains(kindsOfLate, row.name)
		rows = append(rows, row)
	}
	for i, c := range lateCalls() {
		said := " is in " + c.said + " {at}, call 2"
		if i == 0 {
			for manner := range 3 {
				add(c.name, said, c.call, manner, true)
				rows[len(rows)-1].gpu = true
			}
			i = 3
		}
		add(c.name, said, c.call, i, true)
	}
	for i, c := range lateMessages {
		add(c.name, c.said, c.call, i, true)
	}
	for i, c := range lateDoors {
		add(c.name, " is in "+c.said, c.call, 2*i, false)
	}
	return rows
}

// onStream has a call enqueued, and waits for it.
func onStream(call late) late {
	return func(w *spmd.World, c spmd.Comm, p operands) error {
		s, err := w.NewStream("late")
		if err != nil {
			return err
		}
		return errors.Join(call(w, c.On(s), p), s.Synchronize())
	}
}
