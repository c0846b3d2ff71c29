package spmd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// TestGPU is the framework on GPUs, with test doubles of the driver and of NCCL: they log every
// call, move memory as the calls say, run no kernel and talk to no other rank. Kernels are compiled
// by the real compiler.
func TestGPU(t *testing.T) {
	if dir := os.Getenv(doublesEnv); dir != "" { // a rank
		openLog(filepath.Join(dir, fmt.Sprintf("log.%d", os.Getpid())))
	} else {
		dir = doubles(t)
		t.Setenv("SPMDTEST_DEVICE", "cuda")
		t.Setenv("SPMDTEST_SYMMETRIC", "always") // times of doubles say nothing
		t.Setenv("FAKECUDA_DEVICES", "3")
		t.Setenv(doublesEnv, dir)
		t.Setenv("LD_LIBRARY_PATH", dir)
		must(t, kernels.Fill(filepath.Join(dir, "cache"), 90))
		t.Setenv("LOCKSTEP_CACHE", filepath.Join(dir, "cache"))
		t.Run("faults", func(t *testing.T) { gpuFaults(t, dir) })
		t.Run("hangs", gpuHangs)
		t.Run("choice", gpuChoice)
		t.Run("kernels", gpuKernels)
		t.Run("paths", gpuPaths)
		t.Run("unmixed graphs", gpuUnmixed)
		t.Run("after an error", gpuAfterError)
	}
	for _, tc := range []struct {
		name  string
		ranks []int
		body  func(t *testing.T, w *spmd.World)
		alone bool // no other test beside it
	}{
		{"collectives", []int{3}, gpuCollectives, false},
		{"one rank", []int{1}, gpuOneRank, false},
		{"split", []int{3}, gpuSplit, false},
		{"order of communicators", []int{2}, gpuOrder, false},
		{"symmetric memory", []int{2}, gpuSymmetric, false},
		{"pool", []int{1}, gpuPool, false},
		{"managed memory", []int{1}, gpuManaged, false},
		{"transfers", []int{1}, gpuTransfers, false},
		{"arguments", []int{1}, kernelArguments, false},
		{"tensor maps", []int{1}, tensorMapsTaken, false},
		{"graphs", []int{2}, gpuGraphs, false},
		{"library", []int{2}, gpuLibrary, false},
		{"allocations", []int{1, 2}, gpuAllocations, true},
		{"library's allocations", []int{1}, libraryAllocations, true},
		{"nothing closed", []int{2}, gpuNothingClosed, false},
		{"closed in odd order", []int{2}, gpuOddOrder, false},
		{"closed after a failure", []int{1}, gpuCloseFailed, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.alone {
				t.Parallel()
			}
			spmdtest.RunUnwatched(t, tc.ranks, tc.body) // the watch calls the driver, too
		})
	}
}

// gpuCollectives: each collective in NCCL's terms.
func gpuCollectives(t *testing.T, w *spmd.World) {
	const root = 1
	x, y := alloc[float32](t, w, 64), alloc[float32](t, w, 64)
	bases := map[uint64]string{addr(t, x): "x", addr(t, y): "y"}
	s := stream(t, w, "s")
	c, r := w.Comm().On(s), w.Rank()
	counts, offs := []int{2, 0, 3}, []int{0, 2, 2}
	mine, off := counts[r], offs[r]
	none := []int{0, 0, 0}

	name := func(line, key string) string {
		if v := value(line, key); v == "(nil)" || v == "" {
			return "-"
		}
		at := number64(t, line, key)
		for base, name := range bases {
			if at >= base && at < base+4*64 {
				return fmt.Sprintf("%s%d", name, (at-base)/4)
			}
		}
		return "scratch"
	}
	show := func(line string) string {
		call, _, _ := strings.Cut(line, " ")
		if strings.HasPrefix(call, "ncclGroup") {
			return strings.TrimPrefix(call, "ncclGroup")
		}
		text := fmt.Sprintf("%s %s %s %s", strings.TrimPrefix(call, "nccl"), name(line, "src"),
			name(line, "dst"), value(line, "n")+value(line, "bytes"))
		for _, key := range []string{"op", "peer"} {
			if v := value(line, key); v != "-1" && v != "" {
				text += " " + key + v
			}
		}
		return text
	}
	at := func(buffer string, i int) string { return fmt.Sprintf("%s%d", buffer, i) }
	send := func(buffer string, i, n, peer int) string {
		return fmt.Sprintf("Send %s - %d peer%d", at(buffer, i), n, peer)
	}
	recv := func(buffer string, i, n, peer int) string {
		return fmt.Sprintf("Recv - %s %d peer%d", at(buffer, i), n, peer)
	}
	// NCCL does not wait for a message of no bytes: it gets one byte.
	toNext, fromPrevious := fmt.Sprintf("Send scratch - 1 peer%d", (r+1)%3),
		fmt.Sprintf("Recv - scratch 1 peer%d", (r+2)%3)
	group := func(list ...string) []string { return append(append([]string{"Start"}, list...), "End") }
	onRoot := func(there, elsewhere []string) []string {
		if r == root {
			return there
		}
		return elsewhere
	}
	rootDst := "-"
	if r == root {
		rootDst = "y0"
	}
	notEmpty := func(n int, list ...string) []string {
		if n == 0 {
			return nil
		}
		return list
	}

	// copies are those of 4 elements for the ranks from the given one on.
	copies := func(src string, from int) (list []string) {
		for range 3 - from {
			list = append(list, "cuMemcpyAsync "+src+" scratch 16")
		}
		return list
	}

	for _, tc := range []struct {
		name string
		call func() error
		want []string
	}{
		{"AllReduce", func() error { return spmd.AllReduce(c, y.Slice(0, 6), x.Slice(1, 7), spmd.Max) },
			[]string{"AllReduce x1 y0 6 op2"}},
		{"Reduce", func() error { return spmd.Reduce(c, y.Slice(0, 5), x.Slice(0, 5), spmd.Avg, root) },
			[]string{"Reduce x0 " + rootDst + " 5 op4 peer1"}},
		{"Broadcast", func() error { return spmd.Broadcast(c, x.Slice(3, 10), 2) },
			[]string{"Broadcast x3 x3 7 peer2"}},
		{"AllGather", func() error { return spmd.AllGather(c, y.Slice(0, 12), x.Slice(0, 4)) },
			[]string{"AllGather x0 y0 4"}},
		{"AllGather in place", func() error { return spmd.AllGather(c, y.Slice(0, 12), y.Slice(4*r, 4*r+4)) },
			[]string{"AllGather " + at("y", 4*r) + " y0 4"}},
		{"ReduceScatter", func() error { return spmd.ReduceScatter(c, y.Slice(0, 4), x.Slice(0, 12), spmd.Sum) },
			[]string{"ReduceScatter x0 y0 4 op0"}},
		{"AllToAll", func() error { return spmd.AllToAll(c, y.Slice(0, 12), x.Slice(0, 12)) },
			[]string{"AlltoAll x0 y0 4"}},
		{"AllToAll in place", func() error { return spmd.AllToAll(c, x.Slice(0, 12), x.Slice(0, 12)) },
			[]string{"cuMemcpyAsync x0 scratch 48", "AlltoAll scratch x0 4"}},
		{"Gather", func() error { return spmd.Gather(c, y.Slice(0, 12), x.Slice(0, 4), root) },
			onRoot(group(recv("y", 0, 4, 0), recv("y", 4, 4, 1), recv("y", 8, 4, 2), send("x", 0, 4, 1)),
				[]string{send("x", 0, 4, 1)})},
		{"Gather in place", func() error {
			if r == root {
				return spmd.Gather(c, y.Slice(0, 12), y.Slice(4, 8), root)
			}
			return spmd.Gather(c, spmd.Buffer[float32]{}, x.Slice(0, 4), root)
		}, onRoot(group(recv("y", 0, 4, 0), recv("y", 8, 4, 2)), []string{send("x", 0, 4, 1)})},
		{"Scatter", func() error { return spmd.Scatter(c, y.Slice(0, 4), x.Slice(0, 12), root) },
			onRoot(group(send("x", 0, 4, 0), send("x", 4, 4, 1), send("x", 8, 4, 2), recv("y", 0, 4, 1)),
				[]string{recv("y", 0, 4, 1)})},
		{"Scatter in place", func() error {
			if r == root {
				return spmd.Scatter(c, x.Slice(4, 8), x.Slice(0, 12), root)
			}
			return spmd.Scatter(c, y.Slice(0, 4), spmd.Buffer[float32]{}, root)
		}, onRoot(group(send("x", 0, 4, 0), send("x", 8, 4, 2)), []string{recv("y", 0, 4, 1)})},
		// In AllGatherV a rank sends its own part, and receives the others' where they lie.
		{"AllGatherV", func() error { return spmd.AllGatherV(c, y.Slice(0, 5), x.Slice(0, mine), counts) },
			group([]string{"Broadcast x0 y0 2 peer0", "Broadcast y0 y0 2 peer0"}[min(r, 1)],
				[]string{"Broadcast y2 y2 3 peer2", "Broadcast x0 y2 3 peer2"}[r/2])},
		{"ReduceScatterV",
			func() error { return spmd.ReduceScatterV(c, y.Slice(0, mine), x.Slice(0, 5), counts, spmd.Sum) },
			group("Reduce x0 "+[]string{"y0", "-", "-"}[r]+" 2 op0 peer0",
				"Reduce x2 "+[]string{"-", "-", "y0"}[r]+" 3 op0 peer2")},
		{"GatherV", func() error { return spmd.GatherV(c, y.Slice(0, 5), x.Slice(0, mine), counts, root) },
			onRoot(group(recv("y", 0, 2, 0), recv("y", 2, 3, 2)), notEmpty(mine, send("x", 0, mine, root)))},
		{"GatherV to a rank with a part", func() error {
			return spmd.GatherV(c, y.Slice(0, 5), x.Slice(0, mine), counts, 0)
		},
			[][]string{group(recv("y", 0, 2, 0), recv("y", 2, 3, 2), send("x", 0, 2, 0)), nil,
				{send("x", 0, 3, 0)}}[r]},
		{"ScatterV", func() error { return spmd.ScatterV(c, y.Slice(0, mine), x.Slice(0, 5), counts, root) },
			onRoot(group(send("x", 0, 2, 0), send("x", 2, 3, 2)), notEmpty(mine, recv("y", 0, mine, root)))},
		{"ScatterV in place", func() error {
			return spmd.ScatterV(c, []spmd.Buffer[float32]{y.Slice(0, mine), y.Slice(0, mine),
				x.Slice(off, off+mine)}[r], x.Slice(0, 5), counts, 2)
		}, [][]string{{recv("y", 0, 2, 2)}, nil, {send("x", 0, 2, 0)}}[r]},
		// Rank r sends r+1 elements to each, and receives s+1 from rank s.
		{"AllToAllV", func() error {
			n := r + 1
			return spmd.AllToAllV(c, y.Slice(0, 6), x.Slice(0, 3*n), []int{1, 2, 3}, []int{n, n, n})
		}, group(send("x", 0, r+1, 0), recv("y", 0, 1, 0), send("x", r+1, r+1, 1), recv("y", 1, 2, 1),
			send("x", 2*r+2, r+1, 2), recv("y", 3, 3, 2))},
		// The ranks before this one get zeros from it, and the others its elements.
		{"Scan", func() error { return spmd.Scan(c, y.Slice(0, 4), x.Slice(0, 4), spmd.Sum) },
			append(copies("x0", r), "ReduceScatter scratch y0 4 op0")},
		{"ExScan in place", func() error { return spmd.ExScan(c, x.Slice(0, 4), x.Slice(0, 4), spmd.Max) },
			append(copies("x0", r+1), "ReduceScatter scratch "+[]string{"scratch", "x0", "x0"}[r]+" 4 op2")},
		{"SendRecv", func() error { return spmd.SendRecv(c, y.Slice(0, 2), (r+2)%3, x.Slice(0, 2), (r+1)%3) },
			group(send("x", 0, 2, (r+1)%3), recv("y", 0, 2, (r+2)%3))},
		{"Group", func() error {
			return c.Group(func() error {
				for i := range 2 {
					if err := spmd.AllReduce(c, x.Slice(i, i+1), x.Slice(i, i+1), spmd.Sum); err != nil {
						return err
					}
				}
				return spmd.AllReduce(c, x.Slice(0, 0), x.Slice(0, 0), spmd.Sum) // of no elements
			})
		}, group("AllReduce x0 x0 1 op0", "AllReduce x1 x1 1 op0")},
		// A call takes the place of one with counts.
		{"Groups one after the other", func() error {
			return errors.Join(c.Group(func() error {
				return spmd.AllToAllV(c, y.Slice(0, 3), x.Slice(0, 3), []int{1, 1, 1}, []int{1, 1, 1})
			}),
				c.Group(func() error { return spmd.AllReduce(c, x.Slice(0, 2), x.Slice(0, 2), spmd.Sum) }),
				c.Group(func() error { return spmd.SendRecv(c, y.Slice(0, 2), (r+2)%3, x.Slice(0, 2), (r+1)%3) }))
		}, slices.Concat(group(send("x", 0, 1, 0), recv("y", 0, 1, 0), send("x", 1, 1, 1),
			recv("y", 1, 1, 1), send("x", 2, 1, 2), recv("y", 2, 1, 2)),
			[]string{"AllReduce x0 x0 2 op0"}, group(send("x", 0, 2, (r+1)%3), recv("y", 0, 2, (r+2)%3)))},
		{"Barrier", func() error { return spmd.Barrier(c) }, []string{"AllReduce scratch scratch 1 op0"}},
		{"no elements", func() error {
			var o spmd.Buffer[float32]
			for _, err := range []error{spmd.AllReduce(c, o, o, spmd.Sum), spmd.Reduce(c, o, o, spmd.Sum, 0),
				spmd.Broadcast(c, o, 0), spmd.AllGather(c, o, o),
				spmd.ReduceScatter(c, o, o, spmd.Sum), spmd.AllToAll(c, o, o), spmd.Gather(c, o, o, 0),
				spmd.Scatter(c, o, o, 0),
				spmd.AllGatherV(c, o, o, none), spmd.ReduceScatterV(c, o, o, none, spmd.Sum),
				spmd.GatherV(c, o, o, none, 0),
				spmd.ScatterV(c, o, o, none, 0), spmd.AllToAllV(c, o, o, none, none)} {
				if err != nil {
					return err
				}
			}
			return nil
		}, nil},
		{"messages of no elements", func() error {
			var o spmd.Buffer[float32]
			err := errors.Join(spmd.Send(c, o, (r+1)%3), spmd.Recv(c, y.Slice(0, 0), (r+2)%3),
				spmd.SendRecv(c, o, (r+2)%3, o, (r+1)%3))
			return errors.Join(err, c.Group(func() error { return spmd.Send(c, o, (r+1)%3) }))
		}, append([]string{toNext, fromPrevious}, append(group(toNext, fromPrevious), toNext)...)},
	} {
		newCalls(t)
		must(t, tc.call())
		var got []string
		for _, line := range newCalls(t, "nccl", "cuMemcpyAsync") {
			got = append(got, show(line))
		}
		if len(got) == 3 && got[0] == "Start" { // a group of one may be one
			got = got[1:2]
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s on rank %d:\n  %s\nwant\n  %s", tc.name, r, strings.Join(got, "\n  "),
				strings.Join(tc.want, "\n  "))
		}
	}
	must(t, s.Synchronize())
}

// gpuOneRank: one rank has nobody to talk to, and no communicator of NCCL's.
func gpuOneRank(t *testing.T, w *spmd.World) {
	if w.Collectives() != "none" || w.Device() != "Fake GPU" {
		t.Errorf("device %s, collectives %s", w.Device(), w.Collectives())
	}
	x, y := fill(t, w, 5, 3), fill(t, w, 5, 0)
	c := w.Comm()
	must(t, spmd.AllReduce(c, y, x, spmd.Avg))
	if y.At(4) != 3 {
		t.Errorf("AllReduce gives %v", y.At(4))
	}
	x.Set(0, 7)
	must(t, c.Group(func() error {
		if err := spmd.Send(c, x, 0); err != nil {
			return err
		}
		return spmd.Recv(c, y, 0)
	}))
	if y.At(0) != 7 {
		t.Errorf("a message to oneself gives %v", y.At(0))
	}
	must(t, x.CopyFrom([]float32{1, 2, 3, 4, 5}))
	must(t, c.Group(func() error { // the first Send is for the first Recv
		return errors.Join(spmd.Recv(c, y.Slice(0, 2), 0), spmd.Send(c, x.Slice(3, 5), 0),
			spmd.Send(c, x.Slice(0, 1), 0), spmd.Recv(c, y.Slice(4, 5), 0))
	}))
	if y.At(0) != 4 || y.At(1) != 5 || y.At(4) != 1 {
		t.Errorf("two messages to oneself give %v, %v and %v", y.At(0), y.At(1), y.At(4))
	}
	wantText(t, c.Group(func() error { return errors.Join(spmd.Send(c, x, 0), spmd.Recv(c, y.Slice(0, 2), 0)) }),
		"Send has 5 float32 elements, Recv 2 float32")
	wantText(t, spmd.Send(c, x, 0), "gpu_test.go", "outside a Group")
	wantText(t, c.Group(func() error { return spmd.Send(c, x, 0) }), "gpu_test.go", "1 Send and 0 Recv")
	must(t, spmd.Barrier(c))
	half, err := c.Split(0, 0)
	must(t, err)
	must(t, spmd.AllToAll(half, x, x))
	z, err := spmd.AllocSymmetric[float32](w, 5)
	must(t, err)
	must(t, z.Free())
	wantCalls(t, "one rank", []string{"nccl"})
}

// gpuSplit: communicators share the resources of the first, and one rank has none.
func gpuSplit(t *testing.T, w *spmd.World) {
	r := w.Rank()
	made := newCalls(t, "ncclCommInit")
	if len(made) != 1 || value(made[0], "size") != "3" || value(made[0], "rank") != fmt.Sprint(r) ||
		value(made[0], "splitShare") != "1" {
		t.Errorf("the communicator of the world: %q, want one of 3 ranks that is to share its resources", made)
	}
	x, s := fill(t, w, 4, 1), stream(t, w, "s")
	os.Setenv("FAKENCCL_CHILD", []string{"0/2", "1/2", "0/1"}[r])
	newCalls(t)
	c, err := w.Comm().Split(r/2, -r)
	must(t, err)
	color := []string{"color=0", "color=0", "color=-1"}[r] // the last rank is alone
	if split := newCalls(t, "ncclCommSplit"); len(split) != 1 || !strings.Contains(split[0], color+" ") {
		t.Errorf("rank %d: %q, want one split with %s", r, split, color)
	}
	if want := []int{1, 0, 0}[r]; c.Rank() != want || c.Size() != []int{2, 2, 1}[r] {
		t.Errorf("rank %d is %d of %d", r, c.Rank(), c.Size())
	}
	must(t, spmd.AllReduce(c.On(s), x, x, spmd.Sum))
	must(t, s.Synchronize())
	if n := len(newCalls(t, "ncclAllReduce")); n != []int{1, 1, 0}[r] {
		t.Errorf("rank %d: %d calls of NCCL for an AllReduce among %d", r, n, c.Size())
	}
	must(t, c.Close())
	if n := len(newCalls(t, "ncclCommDestroy")); n != []int{1, 1, 0}[r] {
		t.Errorf("rank %d: %d communicators destroyed", r, n)
	}

	os.Setenv("FAKENCCL_CHILD", fmt.Sprintf("%d/3", r))
	m, err := parallel.NewMesh(w, parallel.Axis{Name: "data", Size: 3}, parallel.Axis{Name: "model", Size: 1})
	must(t, err)
	split := newCalls(t, "ncclCommSplit")
	if len(split) != 2 || !strings.Contains(split[0], fmt.Sprintf("color=0 key=%d", r)) ||
		!strings.Contains(split[1], "color=-1") {
		t.Errorf("the mesh: %q, want a communicator of all ranks and none of one", split)
	}
	if m.Comm("data").Size() != 3 || m.Comm("model").Size() != 1 || m.Coord("data") != r {
		t.Errorf("the mesh has %d by %d ranks", m.Comm("data").Size(), m.Comm("model").Size())
	}
	must(t, spmd.AllReduce(m.Comm("data"), x, x, spmd.Sum))
	must(t, spmd.AllReduce(m.Comm("model"), x, x, spmd.Sum))
	if got := newCalls(t, "ncclAllReduce"); len(got) != 1 {
		t.Errorf("%q, want one call on the axis of 3 ranks", got)
	}
	must(t, spmd.AllReduce(w.NodeComm(), x, x, spmd.Sum))
	if got := newCalls(t, "ncclAllReduce"); len(got) != 1 || value(got[0], "comm") != "1" {
		t.Errorf("%q, want the world's communicator on the only node", got)
	}
}

// gpuOrder: collectives of two communicators never run at the same time, and those of one need no
// help.
func gpuOrder(t *testing.T, w *spmd.World) {
	other, err := w.Comm().Split(0, w.Rank())
	must(t, err)
	a, b := stream(t, w, "a"), stream(t, w, "b")
	x := fill(t, w, 4, 1)
	issue := func(what string, c spmd.Comm, s *spmd.Stream, waits int) {
		t.Helper()
		newCalls(t)
		must(t, spmd.AllReduce(c.On(s), x, x, spmd.Sum))
		got := newCalls(t, "cuStreamWaitEvent", "cuEventRecord", "ncclAllReduce")
		if len(got) != 2*waits+1 || !strings.HasPrefix(got[len(got)-1], "ncclAllReduce") {
			t.Errorf("%s: %q, want %d waits before the collective", what, got, waits)
			return
		}
		if waits == 1 && (value(got[0], "event") != value(got[1], "event") ||
			value(got[0], "stream") == value(got[1], "stream")) {
			t.Errorf("%s: %q, want one stream to wait for the other", what, got)
		}
	}
	issue("the first", w.Comm(), a, 0)
	issue("the same communicator, another stream", w.Comm(), b, 0)
	issue("the node's, which is the world's", w.NodeComm(), a, 0)
	issue("another communicator, another stream", other, b, 1)
	issue("another communicator, the same stream", w.Comm(), b, 0)
	issue("another communicator, another stream", other, a, 1)
	issue("the same again", other, a, 0)
	issue("back", w.Comm(), b, 1)

	// In a capture the wait is a part of the graph, and outside there is none.
	newCalls(t)
	g, err := a.Capture(func() error {
		if err := b.After(a); err != nil {
			return err
		}
		newCalls(t)
		if err := spmd.AllReduce(w.Comm().On(a), x, x, spmd.Sum); err != nil {
			return err
		}
		if got := newCalls(t, "cuStreamWaitEvent"); len(got) != 0 {
			t.Errorf("the first of a capture waits: %q", got)
		}
		if err := spmd.AllReduce(other.On(b), x, x, spmd.Sum); err != nil {
			return err
		}
		if got := newCalls(t, "cuStreamWaitEvent"); len(got) != 1 {
			t.Errorf("%q, want one wait for the other communicator", got)
		}
		return a.After(b)
	})
	must(t, err)
	newCalls(t)
	must(t, g.Launch(a)) // the last outside was on b
	must(t, spmd.AllReduce(w.Comm().On(b), x, x, spmd.Sum))
	if got := newCalls(t, "cuStreamWaitEvent"); len(got) != 2 {
		t.Errorf("%q, want the graph to wait for b and b for the graph", got)
	}
	must(t, a.Synchronize())
	must(t, b.Synchronize())
	must(t, g.Close())
}
