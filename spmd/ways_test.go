package spmd_test

import (
	"slices"
	"testing"

	"lockstep/cudampi"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/spmdtest"
)

// mode is one of the three ways in which a program issues a collective.
type mode struct {
	name string
	run  func(t *testing.T, w *spmd.World, fn func(c spmd.Comm) error)
}

var must = spmdtest.Must

func alloc[T spmd.Stored](t *testing.T, w *spmd.World, n int) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, n)
	must(t, err)
	return b
}

func stream(t *testing.T, w *spmd.World, name string) *spmd.Stream {
	t.Helper()
	s, err := w.NewStream(name)
	must(t, err)
	return s
}

var modes = []mode{
	{"blocking", func(t *testing.T, w *spmd.World, fn func(spmd.Comm) error) { must(t, fn(w.Comm())) }},
	{"stream", func(t *testing.T, w *spmd.World, fn func(spmd.Comm) error) {
		s := stream(t, w, "stream")
		must(t, fn(w.Comm().On(s)))
		must(t, s.Close())
	}},
	{"graph", func(t *testing.T, w *spmd.World, fn func(spmd.Comm) error) {
		s := stream(t, w, "graph")
		g, err := s.Capture(func() error { return fn(w.Comm().On(s)) })
		must(t, err)
		must(t, g.Launch(s))
		must(t, g.Close())
		must(t, s.Close())
	}},
	{"group", func(t *testing.T, w *spmd.World, fn func(spmd.Comm) error) {
		must(t, w.Comm().Group(func() error { return fn(w.Comm()) }))
	}},
}

// modesOf leaves out graphs where the host carries device memory: they hold no collectives then.
func modesOf(w *spmd.World) []mode {
	if w.Comm().Capturable() != nil {
		return slices.DeleteFunc(slices.Clone(modes), func(m mode) bool { return m.name == "graph" })
	}
	return modes
}

// everyKind runs fn on ranks that are processes and, on the host, on ranks that are goroutines.
// There make test has processes of one number alone: the carrier of messages does not know the
// number of ranks.
func everyKind(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	processes := ranks
	if spmdtest.Device() == "host" {
		one := ranks[len(ranks)-1]
		if slices.Contains(ranks, 3) {
			one = 3
		}
		processes = testkit.Some(t, "numbers of processes, of tests that goroutines run on each", ranks,
			func(n int) bool { return n == one })
	}
	t.Run("processes", func(t *testing.T) { spmdtest.Run(t, processes, fn) })
	t.Run("goroutines", func(t *testing.T) { spmdtest.RunInProcess(t, ranks, fn) })
}

// each calls every third of fns, beginning with one that k says, and in make test-all all: over the
// numbers of ranks and the modes each has its turn.
func each(k int, fns ...func()) {
	for i, fn := range fns {
		if testkit.AllCases() || (i+k)%3 == 0 {
			fn()
		}
	}
}

// everyWay is everyKind on the host, and else spmdtest.Run once for each way by which collectives
// reach the memory of a GPU.
func everyWay(t *testing.T, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	if spmdtest.Device() == "host" {
		everyKind(t, everyRanks, fn)
		return
	}
	t.Run("nccl", func(t *testing.T) { spmdtest.Run(t, everyRanks, fn) })
	for _, way := range []string{"host-staged", "mpi-aware", "mpi-peer"} {
		t.Run(way, func(t *testing.T) {
			t.Setenv("SPMDTEST_COLLECTIVES", way)
			spmdtest.Run(t, everyRanks[1:], func(t *testing.T, w *spmd.World) {
				if way == "mpi-aware" {
					said, err := cudampi.CUDAAware()
					must(t, err)
					if !said.Yes {
						t.Skip(said.Reason)
					}
				}
				fn(t, w)
			})
		})
	}
}

// calling is a call on memory that has some elements for each rank. root is of those that have one.
type calling struct {
	kind coll.Kind
	do   func(c spmd.Comm, dst, src floats, root int) error
}

type floats = spmd.Buffer[float32]

// everyCall is a call of each kind that all ranks make, with n elements of each; a SendRecv goes to
// the next rank.
func everyCall(n int) []calling {
	type to = spmd.Comm
	part := func(b floats) floats { return b.Slice(0, n) }
	many := slices.Repeat([]int{n}, 64)
	counts := func(c spmd.Comm) []int { return many[:c.Size()] }
	return []calling{
		{coll.AllReduce, func(c to, d, s floats, _ int) error { return spmd.AllReduce(c, part(d), part(s), spmd.Sum) }},
		{coll.Reduce, func(c to, d, s floats, r int) error { return spmd.Reduce(c, part(d), part(s), spmd.Sum, r) }},
		{coll.Broadcast, func(c to, d, _ floats, r int) error { return spmd.Broadcast(c, part(d), r) }},
		{coll.AllGather, func(c to, d, s floats, _ int) error { return spmd.AllGather(c, d, part(s)) }},
		{coll.ReduceScatter, func(c to, d, s floats, _ int) error {
			return spmd.ReduceScatter(c, part(d), s, spmd.Sum)
		}},
		{coll.AllToAll, func(c to, d, s floats, _ int) error { return spmd.AllToAll(c, d, s) }},
		{coll.Gather, func(c to, d, s floats, r int) error { return spmd.Gather(c, d, part(s), r) }},
		{coll.Scatter, func(c to, d, s floats, r int) error { return spmd.Scatter(c, part(d), s, r) }},
		{coll.AllGatherV, func(c to, d, s floats, _ int) error { return spmd.AllGatherV(c, d, part(s), counts(c)) }},
		{coll.ReduceScatterV, func(c to, d, s floats, _ int) error {
			return spmd.ReduceScatterV(c, part(d), s, counts(c), spmd.Sum)
		}},
		{coll.GatherV, func(c to, d, s floats, r int) error { return spmd.GatherV(c, d, part(s), counts(c), r) }},
		{coll.ScatterV, func(c to, d, s floats, r int) error { return spmd.ScatterV(c, part(d), s, counts(c), r) }},
		{coll.AllToAllV, func(c to, d, s floats, _ int) error { return spmd.AllToAllV(c, d, s, counts(c), counts(c)) }},
		{coll.Scan, func(c to, d, s floats, _ int) error { return spmd.Scan(c, part(d), part(s), spmd.Sum) }},
		{coll.ExScan, func(c to, d, s floats, _ int) error { return spmd.ExScan(c, part(d), part(s), spmd.Sum) }},
		{coll.SendRecv, func(c to, d, s floats, _ int) error {
			return spmd.SendRecv(c, part(d), (c.Rank()+c.Size()-1)%c.Size(), part(s), (c.Rank()+1)%c.Size())
		}},
		{coll.Barrier, func(c to, _, _ floats, _ int) error { return spmd.Barrier(c) }},
	}
}

// TestEveryCall: everyCall has all kinds of package coll but Send and Recv, which go in pairs.
func TestEveryCall(t *testing.T) {
	has := coll.SetOf(coll.Send, coll.Recv, coll.Group, coll.Graph)
	for _, call := range everyCall(1) {
		has |= coll.SetOf(call.kind)
	}
	for k := coll.None + 1; k < coll.Kinds; k++ {
		if traits := k.Traits(); !traits.Own && !traits.Local && !has.Has(k) {
			t.Errorf("there is no %v", k)
		}
	}
}
