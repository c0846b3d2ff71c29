package spmd_test

import (
	"slices"
	"testing"

	"lockstep/cudampi"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// mode is one of the three ways in which a program issues a collective.
type mode struct {
	name string
	run  func(t *testing.T, w *spmd.World, fn func(c spmd.Comm) error)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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
