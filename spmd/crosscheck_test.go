package spmd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"lockstep/spmd"
)

// crossChecked makes all calls that --check both compares. Only this rank knows the others' results
// for the operands: the double of NCCL talks to no other rank, so that its results are right only
// then.
func crossChecked(w *spmd.World) error {
	const n, root = 12, 1 // n divides by 2 and 3
	rank, size := w.Rank(), w.Size()
	s, err := w.NewStream("work")
	if err != nil {
		return err
	}
	part := make([]int32, n) // what every rank has to give
	for i := range part {
		part[i] = int32(100 + i)
	}
	var all []int32
	for range size {
		all = append(all, part...)
	}
	var failed error
	buffer := func(values []int32) spmd.Buffer[int32] {
		b, err := spmd.Alloc[int32](w, len(values))
		if err == nil {
			err = b.CopyFrom(values)
		}
		if failed == nil {
			failed = err
		}
		return b
	}
	x, y, whole, other := buffer(part), buffer(part), buffer(all), buffer(all)
	real := make([]float32, 30) // more than there are elsewhere, less than three parts
	for i := range real {
		real[i] = 1 / float32(i+3)
	}
	f, err := spmd.Alloc[float32](w, len(real))
	if err != nil {
		return err
	}
	if err := f.CopyFrom(real); err != nil || failed != nil {
		return err
	}
	c := w.Comm().On(s)
	counts := make([]int, size)
	counts[0], counts[size-1] = n, 2*n
	if size > 2 {
		counts[1] = 0
	}
	mine := counts[rank]
	parts := buffer(append(append([]int32{}, part...), append(part, part...)...))
	off := 0
	if rank > 0 {
		off = n
	}
	if rank == 1 && size > 2 {
		off = 0
	}
	each := make([]int, size)
	for i := range each {
		each[i] = n / 2
	}
	half := append(append([]int32{}, part[:n/2]...), part[:n/2]...)
	for len(half) < size*n/2 {
		half = append(half, part[:n/2]...)
	}
	halves, swapped := buffer(half), buffer(half)
	next, before := (rank+1)%size, (rank+size-1)%size
	calls := []func() error{
		func() error { return spmd.AllReduce(c, y, x, spmd.Max) },
		func() error { return spmd.AllReduce(c, x, x, spmd.Min) },
		func() error { return spmd.AllReduce(w.Comm(), f, f, spmd.Avg) }, // blocks; MPI may round otherwise
		func() error { return spmd.Reduce(c, y, x, spmd.Max, root) },
		func() error { return spmd.Broadcast(c, x, root) },
		func() error { return spmd.AllGather(c, whole, x) },
		func() error { return spmd.AllGather(c, whole, whole.Slice(rank*n, (rank+1)*n)) },
		func() error { return spmd.ReduceScatter(c, y, whole, spmd.Max) },
		func() error { return spmd.AllToAll(c, swapped, halves) },
		func() error { return spmd.Scan(c, y, x, spmd.Max) },
		func() error { return spmd.AllToAll(c, halves, halves) },
		func() error { return spmd.Gather(c, whole, x, root) },
		func() error { return spmd.Scatter(c, y, whole, root) },
		func() error { return spmd.AllGatherV(c, parts, parts.Slice(off, off+mine), counts) },
		func() error { return spmd.ReduceScatterV(c, other.Slice(0, mine), parts, counts, spmd.Max) },
		func() error { return spmd.GatherV(c, parts, parts.Slice(off, off+mine), counts, root) },
		func() error { return spmd.ScatterV(c, other.Slice(0, mine), parts, counts, root) },
		func() error { return spmd.AllToAllV(c, swapped, halves, each, each) },
		func() error { return spmd.SendRecv(c, other, before, whole, next) },
		func() error {
			return c.Group(func() error {
				for _, call := range []func() error{
					func() error { return spmd.Send(c, x, next) },
					func() error { return spmd.AllReduce(c, other, whole, spmd.Max) },
					func() error { return spmd.Recv(c, y, before) },
				} {
					if err := call(); err != nil {
						return err
					}
				}
				return nil
			})
		},
		func() error {
			if rank == 0 {
				return spmd.Send(c, x, 1)
			}
			if rank == 1 {
				return spmd.Recv(c, y, 0)
			}
			return nil
		},
		func() error { return spmd.Barrier(c) },
		func() error { return spmd.AllReduce(c, x.Slice(0, 0), x.Slice(0, 0), spmd.Max) },
	}
	if failed != nil {
		return failed
	}
	for _, call := range calls {
		if err := call(); err != nil {
			return err
		}
	}
	if rank == 0 { // a wrong call is refused before anything that other ranks take part in
		gone, err := spmd.Alloc[int32](w, 4)
		if err != nil {
			return err
		}
		if err := gone.Free(); err != nil {
			return err
		}
		if err := spmd.AllReduce(c, gone, gone, spmd.Sum); err == nil ||
			!strings.Contains(err.Error(), "was freed at") {
			return fmt.Errorf("AllReduce of a freed buffer: %w", err)
		}
	}
	pair, err := w.Comm().Split(rank/2, rank)
	if err != nil {
		return err
	}
	if err := spmd.AllReduce(pair.On(s), y, x, spmd.Max); err != nil {
		return err
	}
	for range 2 { // the log says once that a capture is not compared
		g, err := s.Capture(func() error { return spmd.AllReduce(c, y, x, spmd.Max) })
		if err != nil {
			return err
		}
		if err := g.Launch(s); err != nil {
			return err
		}
	}
	if err := s.Synchronize(); err != nil {
		return err
	}
	w.Log().Info().Msg("all compared")
	return pair.Close()
}

// TestCrossCheck: --check both finds the one wrong element of a double of NCCL, and nothing if
// there is none.
func TestCrossCheck(t *testing.T) {
	if os.Getenv(doublesEnv) != "" {
		return // a rank of another test
	}
	t.Setenv("LD_LIBRARY_PATH", carriers(t))
	t.Setenv("FAKECUDA_DEVICES", "3")
	for _, ranks := range []int{2, 3} {
		status, out := run(t, ranks, "cross check", nil, "--device", "cuda", "--check=both", "--timeout", "5s")
		if status != 0 || strings.Count(out, "all compared") != 1 ||
			strings.Count(out, "does not compare what is captured") != 1 {
			t.Errorf("%d ranks, nothing is wrong: status %d\n%s", ranks, status, out)
		}
	}
	for _, tc := range []struct {
		wrong string // of the double, on one rank
		rank  string
		want  []string // in one line
	}{
		{"ncclAllReduce=5", "1", []string{"AllReduce of 12 int32 (max)",
			"rank 1: element 5 is 1073741929 by NCCL and 105 by host-staged", "(world, 3 ranks)"}},
		{"ncclAllReduce=27", "2", []string{"AllReduce of 30 float32 (avg)", "rank 2: element 27 is",
			" by NCCL and 0.033333", ", and may differ by "}},
		// in the group
		{"ncclAllReduce=33", "1", []string{"AllReduce of 36 int32 (max)",
			"rank 1: element 33 is 1073741933 by NCCL and 109 by host-staged"}},
		{"ncclReduce=11", "1", []string{"Reduce of 12 int32 (max, root 1)",
			"rank 1: element 11 is 1073741935 by NCCL and 111 by host-staged"}},
		{"ncclBroadcast=0", "2", []string{"Broadcast of 12 int32 (root 1)",
			"rank 2: element 0 is 1073741924 by NCCL and 100 by host-staged"}},
		{"ncclAllGather=25", "0", []string{"AllGather of 12 int32",
			"rank 0: element 25 is 1073741925 by NCCL and 101 by host-staged"}},
		{"ncclReduceScatter=3", "0", []string{"ReduceScatter of 12 int32 (max)", "rank 0: element 3 is"}},
		{"ncclAlltoAll=7", "2", []string{"AllToAll of 6 int32",
			"rank 2: element 7 is 1073741925 by NCCL and 101 by host-staged"}},
		{"ncclRecv=4", "1", []string{"Gather of 12 int32 (root 1)", "rank 1: element 4 is"}},
		{"ncclRecv=30", "2", []string{"SendRecv of 36 int32",
			"rank 2: element 30 is 1073741930 by NCCL and 106 by host-staged"}},
		{"ncclRecv=4", "0", []string{"Scatter of 12 int32 (root 1)", "rank 0: element 4 is"}},
	} {
		t.Run(tc.wrong+" on rank "+tc.rank, func(t *testing.T) {
			t.Parallel()
			env := []string{rankEnv + "=" + tc.rank + ":FAKENCCL_WRONG=" + tc.wrong}
			status, out := run(t, 3, "cross check", env, "--device", "cuda", "--check=both")
			want := append([]string{" ERR ", "spmd/crosscheck_test.go:",
				"NCCL and MPI give different results"}, tc.want...)
			said := false
			for line := range strings.Lines(out) {
				found := true
				for _, part := range want {
					found = found && strings.Contains(line, part)
				}
				said = said || found
			}
			if status != 1 || !said || strings.Count(out, " ERR ") != 1 {
				t.Errorf("status %d, want one error with %q\n%s", status, want, out)
			}
		})
	}
	t.Run("without the comparison", func(t *testing.T) {
		t.Parallel()
		status, out := run(t, 3, "cross check", []string{rankEnv + "=1:FAKENCCL_WRONG=ncclAllReduce=5"},
			"--device", "cuda", "--check=on")
		if status != 0 {
			t.Errorf("status %d\n%s", status, out)
		}
	})
}
