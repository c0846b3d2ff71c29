package spmd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// operands are buffers for a call of three ranks.
type operands struct {
	one, other, all, more, long spmd.Buffer[float32]
	counts                      []int
}

func allocOperands(w *spmd.World) (p operands, err error) {
	p.counts = slices.Repeat([]int{13}, w.Size())
	for _, b := range []struct {
		to *spmd.Buffer[float32]
		n  int
	}{{&p.one, 13}, {&p.other, 13}, {&p.all, 13 * w.Size()}, {&p.more, 13 * w.Size()}, {&p.long, 1 << 20}} {
		x, e := spmd.Alloc[float32](w, b.n)
		*b.to, err = x, errors.Join(err, e)
	}
	return p, err
}

// late is a call of the other ranks after the victim has returned from the program.
type late = func(w *spmd.World, c spmd.Comm, p operands) error

const leaver = 2 // the victim, of three ranks

// lateCalls are calls that all ranks make.
var lateCalls = []struct {
	name, said string // as the job says it
	call       late
}{
	{"an AllReduce", "AllReduce of 13 float32 (sum)",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.AllReduce(c, p.one, p.one, spmd.Sum) }},
	{"a long AllReduce", "AllReduce of 1048576 float32 (max)",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.AllReduce(c, p.long, p.long, spmd.Max) }},
	{"a Reduce", "Reduce of 13 float32 (sum, root 2)", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return spmd.Reduce(c, p.one, p.one, spmd.Sum, leaver)
	}},
	{"a Broadcast", "Broadcast of 13 float32 (root 2)",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Broadcast(c, p.one, leaver) }},
	{"an AllGather", "AllGather of 13 float32",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.AllGather(c, p.all, p.one) }},
	{"a ReduceScatter", "ReduceScatter of 13 float32 (sum)", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return spmd.ReduceScatter(c, p.one, p.all, spmd.Sum)
	}},
	{"an AllToAll", "AllToAll of 13 float32",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.AllToAll(c, p.more, p.all) }},
	{"a Gather", "Gather of 13 float32 (root 0)",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Gather(c, p.all, p.one, 0) }},
	{"a Scatter", "Scatter of 13 float32 (root 2)",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Scatter(c, p.one, p.all, leaver) }},
	{"an AllGatherV", "AllGatherV of float32",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.AllGatherV(c, p.all, p.one, p.counts) }},
	{"a ReduceScatterV", "ReduceScatterV of float32 (sum)", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return spmd.ReduceScatterV(c, p.one, p.all, p.counts, spmd.Sum)
	}},
	{"a GatherV", "GatherV of float32 (root 0)",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.GatherV(c, p.all, p.one, p.counts, 0) }},
	{"a ScatterV", "ScatterV of float32 (root 2)", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return spmd.ScatterV(c, p.one, p.all, p.counts, leaver)
	}},
	{"an AllToAllV", "AllToAllV of float32", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return spmd.AllToAllV(c, p.more, p.all, p.counts, p.counts)
	}},
	{"a Scan", "Scan of 13 float32 (sum)", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return spmd.Scan(c, p.other, p.one, spmd.Sum)
	}},
	{"a Barrier", "Barrier", func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Barrier(c) }},
	{"a Group", "Group of AllReduce of 13 float32 (sum)", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return c.Group(func() error { return spmd.AllReduce(c, p.one, p.one, spmd.Sum) })
	}},
}

// lateMessages are messages to and from the victim, with the report's words on their sender or
// receiver.
var lateMessages = []struct {
	name, said string
	call       late
}{
	{"a Recv", "is in Recv of 13 float32 from rank 2 {at}, and waits for message 1 from it on \"world\": " +
		"it has sent 0", func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Recv(c, p.one, leaver) }},
	{"a Send", "has sent message 1 to it on \"world\"",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Send(c, p.one, leaver) }},
	{"a long Send", "is in Send of 1048576 float32 to rank 2 {at}, and has sent message 1 to it on \"world\"",
		func(_ *spmd.World, c spmd.Comm, p operands) error { return spmd.Send(c, p.long, leaver) }},
	{"a SendRecv", "is in SendRecv of 13 float32 to rank 2, and from rank 2 {at}, and waits for message " +
		"1 from it on \"world\": it has sent 0", func(_ *spmd.World, c spmd.Comm, p operands) error {
		return spmd.SendRecv(c, p.other, leaver, p.one, leaver)
	}},
}

// lateDoors are calls in which the framework has the ranks agree; reports never name that.
var lateDoors = []struct {
	name, said string
	call       late
}{
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
var kindsOfLate = []string{"returns before an AllReduce", "returns before an AllReduce on a stream",
	"returns before a Broadcast on a stream, --check", "returns before a Recv", "returns before a Split"}

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
			said += at + "spmd/fault_contract_test.go:"
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
	for i, c := range lateCalls {
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
