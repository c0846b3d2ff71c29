package spmd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// checked runs fn in worlds with --check, on ranks that are goroutines and on ranks that are
// processes.
func checked(t *testing.T, ranks int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	cfg := spmdtest.Config()
	cfg.Check = "on"
	t.Run("goroutines", func(t *testing.T) {
		spmdtest.HostOnly(t, "the ranks are goroutines")
		must(t, spmd.Local(t.Context(), cfg, ranks, func(_ context.Context, w *spmd.World) error {
			fn(t, w)
			return nil
		}))
	})
	t.Run("processes", func(t *testing.T) {
		spmdtest.RunAlone(t, []int{ranks}, func(t *testing.T, _ *spmd.World) {
			w, err := spmd.Open(cfg)
			must(t, err)
			must(t, w.Watch())
			fn(t, w)
			must(t, w.Close())
		})
	})
}

// TestCheckNamesCounts: if ranks bring other counts, --check says which, alone and in a Group, on
// every rank.
func TestCheckNamesCounts(t *testing.T) {
	checked(t, 3, func(t *testing.T, w *spmd.World) {
		c, rank := w.Comm(), w.Rank()
		const n = 100
		counts := []int{n, n, n}
		if rank == 2 { // of the same sum, and the same for this rank
			counts = []int{n, n - 7, n}
			counts[0] += 7
		}
		each, all, few := alloc[int32](t, w, n), alloc[int32](t, w, 3*n), alloc[int32](t, w, 3)
		const shared = "rank 0 at spmd/checked_test.go:%s: %s of 300 int32%s, counts[0] is 100; rank 2 " +
			"at spmd/checked_test.go:%s: %s of 300 int32%s, counts[0] is 107 ("
		for _, tc := range []struct {
			name, more string
			call       func(c spmd.Comm) error
		}{
			{"AllGatherV", "", func(c spmd.Comm) error { return spmd.AllGatherV(c, all, each, counts) }},
			{"ReduceScatterV", ", sum", func(c spmd.Comm) error {
				return spmd.ReduceScatterV(c, each, all, counts, spmd.Sum)
			}},
			{"GatherV", ", root 1", func(c spmd.Comm) error { return spmd.GatherV(c, all, each, counts, 1) }},
			{"ScatterV", ", root 1", func(c spmd.Comm) error { return spmd.ScatterV(c, each, all, counts, 1) }},
		} {
			for _, grouped := range []bool{false, true} {
				what, err := tc.name, error(nil)
				if grouped {
					what = "Group, collective 2 of 2: " + what
					err = c.Group(func() error {
						return errors.Join(spmd.AllReduce(c, few, few, spmd.Max), tc.call(c))
					})
				} else {
					err = tc.call(c)
				}
				pattern := fmt.Sprintf(shared, "*", what, tc.more, "*", what, tc.more)
				if !errors.Is(err, spmd.ErrContract) || !like(err.Error(), pattern) {
					t.Errorf("%s on rank %d: %v\nwant %s", what, rank, err, pattern)
				}
			}
		}
		sent, received := []int{5, 6, 7}, []int{5 + rank, 5 + rank, 5 + rank}
		if rank == 1 {
			received = []int{6, 6, 8}
		}
		dst, src := alloc[int32](t, w, sumOf(received)), alloc[int32](t, w, sumOf(sent))
		for _, grouped := range []bool{false, true} {
			call := func() error { return spmd.AllToAllV(c, dst, src, received, sent) }
			err := error(nil)
			if grouped {
				err = c.Group(call)
			} else {
				err = call()
			}
			const want = "AllToAllV: rank 2 sends 6 int32 to rank 1, which expects 8 ("
			if !errors.Is(err, spmd.ErrContract) || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d, in a group: %v: %v\nwant %s", rank, grouped, err, want)
			}
		}
		// Other arguments that all ranks bring alike.
		for _, tc := range []struct {
			want string
			call func() error
		}{
			{"rank 0 at *: hostdata.Broadcast, root 0; rank 1 at *: hostdata.Broadcast, root 1 (", func() error {
				_, err := hostdata.Broadcast(c, fmt.Sprint(rank), min(rank, 1))
				return err
			}},
			{"rank 0 at *: Broadcast of 1 int64, root 0; rank 2 at *: Broadcast of 1 int64, root 2 (", func() error {
				_, err := hostdata.Broadcast(c, rank, rank/2*2)
				return err
			}},
			{"parallel.NewMesh: the ranks called different collectives: rank 0 has the axes [a 3 b 1], rank 1 [b 1 " +
				"a 3]",
				func() error {
					axes := []parallel.Axis{{Name: "a", Size: 3}, {Name: "b", Size: 1}}
					if rank == 1 {
						slices.Reverse(axes)
					}
					_, err := parallel.NewMesh(w, axes...)
					return err
				}},
			{"rank 0 at *: Group, collective 2 of 2: Broadcast of 300 int32, root 0; rank 1 at *: Group " +
				"whose last collective is number 1 (", func() error {
				return c.Group(func() error {
					err := spmd.Broadcast(c, each, 0)
					if rank != 1 {
						err = errors.Join(err, spmd.Broadcast(c, all, 0))
					}
					return err
				})
			}},
		} {
			if err := tc.call(); !errors.Is(err, spmd.ErrContract) || !like(err.Error(), tc.want) {
				t.Errorf("rank %d: %v\nwant %s", rank, err, tc.want)
			}
		}
		for _, f := range []func() error{each.Free, all.Free, dst.Free, src.Free} {
			must(t, f())
		}
	})
}

// like says whether a text has the parts of a pattern, which are joined by stars, in their order.
func like(text, pattern string) bool {
	for part := range strings.SplitSeq(pattern, "*") {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}

// TestCheckedGroups: --check lets every kind of call pass that is in order, in Groups too, on ranks
// of every sort, for as long as the program runs.
func TestCheckedGroups(t *testing.T) {
	t.Parallel()
	spmdtest.HostOnly(t, "what is compared is the same on a GPU")
	spmdtest.Ranks(t, 3)
	testkit.More(t, 3, "modes of --check by ways of having ranks")
	for k, mode := range []string{"--check=on", "--check=sample"} {
		for i, tc := range []struct {
			processes int
			args      []string
		}{{3, nil}, {0, []string{"--ranks", "3"}}} {
			if !testkit.AllCases() && (i+k)%2 == 1 {
				continue
			}
			if status, out := run(t, tc.processes, "checked groups", nil,
				append(tc.args, mode, "--timeout", "2m")...); status != 0 {
				t.Errorf("%s, %d processes %v: status %d\n%s", mode, tc.processes, tc.args, status, out)
			}
		}
	}
}

// checkedGroups makes more calls of every kind than the memory of messages holds, alone, in Groups
// that block, on streams and in a graph.
func checkedGroups(w *spmd.World) error {
	const n, rounds = 2, 400
	rank, size := w.Rank(), w.Size()
	var failed error
	buffer := func() floats {
		b, err := spmd.Alloc[float32](w, size*n)
		failed = errors.Join(failed, err)
		return b
	}
	src, other := buffer(), buffer()
	var calls []func(c spmd.Comm) error
	for _, call := range everyCall(n) {
		dst := buffer() // a group's results must not overlap
		calls = append(calls, func(c spmd.Comm) error { return call.do(c, dst, src, size-1) })
	}
	s, err := w.NewStream("groups")
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	everything := func(c spmd.Comm) func() error {
		return func() error {
			for _, call := range calls {
				if err := call(c); err != nil {
					return err
				}
			}
			return errors.Join(spmd.Send(c, src, (rank+1)%size), spmd.Recv(c, other, (rank+size-1)%size))
		}
	}
	c := w.Comm()
	on := c.On(s)
	g, err := s.Capture(func() error { return on.Group(everything(on)) })
	if err != nil {
		return err
	}
	if err := throughGroup(w, src.Slice(0, 1)); err != nil {
		return err
	}
	for range rounds {
		if err := errors.Join(c.Group(everything(c)), on.Group(everything(on)), g.Launch(s)); err != nil {
			return err
		}
		for i := range calls {
			if err := errors.Join(calls[i](on), on.Group(func() error { return calls[i](on) })); err != nil {
				return err
			}
		}
		if rank == 0 { // a group of messages alone, between two ranks
			err = c.Group(func() error { return spmd.Send(c, src, 1) })
		} else if rank == 1 {
			err = c.Group(func() error { return spmd.Recv(c, other, 0) })
		}
		if err := errors.Join(err, s.Synchronize()); err != nil {
			return err
		}
	}
	return errors.Join(g.Close(), s.Close())
}

// throughGroup: what a Group of rank 0 receives comes only after its other messages have gone.
func throughGroup(w *spmd.World, short floats) error {
	long, err := spmd.Alloc[float32](w, 1<<20)
	if err != nil {
		return err
	}
	c := w.Comm()
	send := func(x floats, to int) func() error { return func() error { return spmd.Send(c, x, to) } }
	recv := func(x floats, from int) func() error { return func() error { return spmd.Recv(c, x, from) } }
	rest := long.Slice(1, 1<<20)
	of := [][]func() error{
		{
			func() error { return c.Group(func() error { return errors.Join(recv(short, 1)(), send(long, 1)()) }) },
			func() error { return c.Group(func() error { return errors.Join(recv(short, 2)(), recv(long, 1)()) }) },
			func() error { return spmd.SendRecv(c, short, 2, rest, 1) },
		},
		{recv(long, 0), send(short, 0), send(long, 0), send(short, 2), recv(rest, 0), send(short, 2)},
		{recv(short, 1), send(short, 0), recv(short, 1), send(short, 0)},
	}
	for _, call := range of[w.Rank()] {
		if err := call(); err != nil {
			return err
		}
	}
	return long.Free()
}
