package spmd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/random"
	"lockstep/spmd/spmdtest"
)

// peerSums are small collectives that kernels between peers carry, on memory of both kinds.
func peerSums(w *spmd.World) error {
	for _, alloc := range []func(*spmd.World, int) (spmd.Buffer[int64], error){spmd.Alloc[int64],
		spmd.AllocSymmetric[int64]} {
		if err := peerSumsOn(w, alloc); err != nil {
			return err
		}
		if err := peerMovesOn(w, w.Comm(), alloc); err != nil {
			return err
		}
		back, err := w.Comm().Split(0, -w.Rank())
		if err != nil {
			return err
		}
		if err := errors.Join(peerMovesOn(w, back, alloc), back.Close()); err != nil {
			return err
		}
	}
	return w.Emit(map[string]any{"right": true})
}

// peerMovesOn makes every other collective with equal parts, all in one graph, which runs twice.
func peerMovesOn(w *spmd.World, c spmd.Comm, alloc func(*spmd.World, int) (spmd.Buffer[int64], error)) error {
	const part = 301 // elements: more than a block, and no whole number of its pieces
	ranks, me := c.Size(), c.Rank()
	s, err := w.NewStream("moves")
	if err != nil {
		return err
	}
	in := func(r, i int) int64 { return int64(i + 100_000*r) } // what rank r has
	buffer := func(n int) spmd.Buffer[int64] {
		b, e := alloc(w, n)
		if err == nil {
			err = e
		}
		if err == nil {
			values := make([]int64, n)
			for i := range values {
				values[i] = in(me, i)
			}
			err = b.CopyFrom(values)
		}
		return b
	}
	x, reduced, cast, gathered, scattered, one, own, across := buffer(part*ranks), buffer(part),
		buffer(part), buffer(part*ranks), buffer(part), buffer(part), buffer(part*ranks), buffer(part*ranks)
	if err != nil {
		return err
	}
	c = c.On(s)
	first := x.Slice(0, part)
	g, err := s.Capture(func() error {
		return errors.Join(spmd.Reduce(c, reduced, first, spmd.Max, 1), spmd.Broadcast(c, cast, 2),
			spmd.AllGather(c, gathered, first),
			spmd.ReduceScatter(c, scattered, x, spmd.Sum), spmd.Barrier(c), spmd.Scatter(c, one, x, 1),
			spmd.Gather(c, own, first, 0), spmd.AllToAll(c, across, x))
	})
	if err != nil {
		return err
	}
	// in place
	if err := errors.Join(g.Launch(s), g.Launch(s), s.Synchronize(), spmd.AllToAll(c, x, x),
		s.Synchronize()); err != nil {
		return err
	}
	for _, what := range []struct {
		name string
		b    spmd.Buffer[int64]
		want func(i int) int64
	}{
		{"Broadcast", cast, func(i int) int64 { return in(2, i) }},
		{"AllGather", gathered, func(i int) int64 { return in(i/part, i%part) }},
		{"ReduceScatter", scattered, func(i int) int64 {
			return int64(ranks)*in(0, me*part+i) + 100_000*int64(ranks*(ranks-1)/2)
		}},
		{"Scatter", one, func(i int) int64 { return in(1, me*part+i) }},
		{"AllToAll", across, func(i int) int64 { return in(i/part, me*part+i%part) }},
		{"AllToAll in place", x, func(i int) int64 { return in(i/part, me*part+i%part) }},
		{"Reduce", reduced, func(i int) int64 {
			if me == 1 {
				return in(ranks-1, i)
			}
			return in(me, i) // as it was
		}},
		{"Gather", own, func(i int) int64 {
			if me == 0 {
				return in(i/part, i%part)
			}
			return in(me, i)
		}},
	} {
		got := make([]int64, what.b.Len())
		if err := what.b.CopyTo(got); err != nil {
			return err
		}
		for i, v := range got {
			if v != what.want(i) {
				return fmt.Errorf("%s: [%d] is %d, want %d", what.name, i, v, what.want(i))
			}
		}
	}
	return g.Close()
}

// peerSumsOn makes them eager, in a graph, on two streams and communicators in turn, and into
// memory of the host.
func peerSumsOn(w *spmd.World, alloc func(*spmd.World, int) (spmd.Buffer[int64], error)) error {
	const n = 100
	a, b, err := twoStreams(w)
	if err != nil {
		return err
	}
	x, err := alloc(w, n)
	if err != nil {
		return err
	}
	y, err := alloc(w, n)
	if err != nil {
		return err
	}
	pinned, err := spmd.AllocPinned[int64](w, n)
	if err != nil {
		return err
	}
	in := make([]int64, n)
	for i := range in {
		in[i] = int64(i + 1000*w.Rank())
	}
	if err := x.CopyFrom(in); err != nil {
		return err
	}
	compare := func(what string, got []int64, times int64) error {
		for i, v := range got {
			ranks := int64(w.Size())
			if want := times * (int64(i)*ranks + 1000*ranks*(ranks-1)/2); v != want {
				return fmt.Errorf("%s: [%d] is %d, want %d", what, i, v, want)
			}
		}
		return nil
	}
	check := func(what string, got spmd.Buffer[int64], times int64) error {
		out := make([]int64, n)
		return errors.Join(a.Synchronize(), b.Synchronize(), got.CopyTo(out), compare(what, out, times))
	}
	if err := errors.Join(spmd.AllReduce(w.Comm().On(a), y, x, spmd.Sum), check("eager", y, 1)); err != nil {
		return err
	}
	if err := spmd.Await(a, pinned, func() error {
		return spmd.AllReduce(w.Comm().On(a), pinned, x, spmd.Sum)
	}); err != nil {
		return err
	}
	if err := compare("into host memory", pinned.Host(), 1); err != nil {
		return err
	}
	for range 20 { // y of one stream is read by the next
		err := errors.Join(spmd.AllReduce(w.Comm().On(a), y, x, spmd.Sum), b.After(a),
			spmd.AllReduce(w.NodeComm().On(b), y, y, spmd.Max), a.After(b))
		if err != nil {
			return err
		}
	}
	if err := check("on two streams", y, 1); err != nil {
		return err
	}
	g, err := a.Capture(func() error {
		return errors.Join(spmd.AllReduce(w.Comm().On(a), y, x, spmd.Sum),
			spmd.AllReduce(w.Comm().On(a), y, y, spmd.Sum))
	})
	if err != nil {
		return err
	}
	return errors.Join(g.Launch(a), g.Launch(a), check("in a graph", y, int64(w.Size())), g.Close())
}

func twoStreams(w *spmd.World) (a, b *spmd.Stream, err error) {
	if a, err = w.NewStream("a"); err == nil {
		b, err = w.NewStream("b")
	}
	return a, b, err
}

// peerBranches makes sums that kernels between peers carry in two branches of a graph.
func peerBranches(w *spmd.World) error {
	a, b, err := twoStreams(w)
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[int64](w, 1)
	if err != nil {
		return err
	}
	y, err := spmd.Alloc[int64](w, 1)
	if err != nil {
		return err
	}
	sum := func(c spmd.Comm, x spmd.Buffer[int64]) error { return spmd.AllReduce(c, x, x, spmd.Sum) }
	g, err := a.Capture(func() error {
		if err := b.After(a); err != nil {
			return err
		}
		for range 5 {
			if err := errors.Join(sum(w.Comm().On(a), x), sum(w.Comm().On(b), y)); err != nil {
				return err
			}
		}
		return a.After(b)
	})
	if err != nil {
		return err
	}
	one := []int64{1}
	if err := errors.Join(x.CopyFrom(one), y.CopyFrom(one), g.Launch(a), a.Synchronize(), x.CopyTo(one)); err != nil {
		return err
	}
	got := one[0]
	err = errors.Join(y.CopyTo(one), g.Close())
	return errors.Join(err, w.Emit(map[string]any{"x": got, "y": one[0]}))
}

// graphBranches: kernels between the GPUs follow each other in a graph, too.
func graphBranches(t *testing.T) {
	for _, by := range []string{"nccl", "mpi-peer"} {
		logs := t.TempDir()
		env := []string{"FAKECUDA_SHARED=1", "FAKECUDA_PEERS=1", rankEnv + "=FAKECUDA_LOG=" + logs + "/%r"}
		status, out := run(t, 3, "peer branches", env, "--device", "cuda", "--collectives", by, "--json", "-")
		if !strings.Contains(out, `"x":243,"y":243`) || status != 0 { // 3 to the fifth
			t.Errorf("%s: status %d\n%s", by, status, out)
		}
		log, err := os.ReadFile(filepath.Join(logs, "1"))
		must(t, err)
		// One branch begins after the other, each sum but the first after one of the other branch,
		// and one branch ends after the other.
		if waits := strings.Count(string(log), "cuStreamWaitEvent "); waits != 1+9+1 {
			t.Errorf("%s: %d waits of ten sums in two branches", by, waits)
		}
	}
}

// gpuUnmixed: NCCL is told that graphs and calls are kept apart if nothing but NVLink and the
// ranks' own streams is between them.
func gpuUnmixed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, env, why string }{
		{"NVLink", "FAKECUDA_PEERS=1", ""},
		{"PCIe", "FAKECUDA_PEERS=2", "no native atomic operations to GPU 1"},
		{"copy engines", "NCCL_P2P_USE_CUDA_MEMCPY=1", "NCCL_P2P_USE_CUDA_MEMCPY is set"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			logs := t.TempDir()
			status, out := run(t, 2, "sum", []string{"FAKENCCL_VERSION=22902", tc.env,
				rankEnv + "=FAKENCCL_LOG=" + logs + "/%r"}, "--device", "cuda", "--log-level", "debug")
			if status != 0 {
				t.Fatalf("status %d\n%s", status, out)
			}
			log, err := os.ReadFile(filepath.Join(logs, "1"))
			must(t, err)
			if got := strings.Contains(string(log), " graphUsageMode=1"); got != (tc.why == "") {
				t.Errorf("NCCL was told: %v\n%s", got, log)
			}
			const said = "keeps the collectives of graphs apart"
			if tc.why == "" && strings.Contains(out, said) || !strings.Contains(out, tc.why) ||
				tc.why != "" && !strings.Contains(out, said) {
				t.Errorf("%s", out)
			}
		})
	}
}

// peersBesideNCCL: the GPUs reach each other, and small collectives go that way.
func peersBesideNCCL(t *testing.T) {
	start := func(what, reach string, args ...string) (out string, reduces, calls int) {
		t.Helper()
		logs := t.TempDir()
		status, out := run(t, 3, what, []string{"FAKECUDA_SHARED=1", "FAKECUDA_PEERS=" + reach,
			"FAKECUDA_MEMORY=100000000", "NCCL_GRAPH_MIXING_SUPPORT=1", rankEnv + "=FAKENCCL_LOG=" + logs + "/%r"},
			append(args, "--device", "cuda", "--collectives", "nccl", "--json", "-", "--log-level", "debug")...)
		if status != 0 {
			t.Fatalf("%s: status %d\n%s", what, status, out)
		}
		log, err := os.ReadFile(filepath.Join(logs, "2"))
		must(t, err)
		for _, name := range []string{"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
			"AlltoAll", "Gather", "Scatter", "Send", "Recv"} {
			calls += strings.Count(string(log), "nccl"+name+" ")
		}
		return out, strings.Count(string(log), "ncclAllReduce "), calls
	}
	out, _, calls := start("peer sums", "1")
	if !strings.Contains(out, `"right":true`) || calls != 1 || // the first of symmetric memory
		!strings.Contains(out, `small_collectives="kernels between peers, messages of up to 524288 `+
			`bytes" small_messages="kernels between peers, up to 1048576 bytes"`) {
		t.Errorf("NCCL is called %d times, want once\n%s", calls, out)
	}
	// Large calls; with PCIe all, and the start's barrier.
	for _, tc := range []struct {
		reach, symmetric string
		reduces          int
	}{{"2", "auto", 5}, {"1", "auto", 1}, {"1", "never", 5}} {
		if out, reduces, _ := start("paths", tc.reach, "--symmetric", tc.symmetric); reduces != tc.reduces {
			t.Errorf("reach %s, --symmetric %s: NCCL reduces %d times, want %d\n%s", tc.reach,
				tc.symmetric, reduces, tc.reduces, out)
		}
		if !testkit.AllCases() {
			break
		}
	}
}

// All ways give the same results, whatever the path.
func TestSymmetricPaths(t *testing.T) {
	spmdtest.Run(t, []int{2, 3, 4}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "s")
		c, ranks := w.Comm().On(s), w.Size()
		for _, n := range []int{1, 1000, 1 << 14, 1 << 20} {
			x, err := spmd.AllocSymmetric[int32](w, n*ranks)
			must(t, err)
			y, err := spmd.AllocSymmetric[int32](w, n*ranks)
			must(t, err)
			in := make([]int32, n*ranks)
			for i := range in {
				in[i] = int32(i*7 + w.Rank())
			}
			check := func(what string, got spmd.Buffer[int32], want func(i int) int) {
				t.Helper()
				must(t, s.Synchronize())
				out := make([]int32, got.Len())
				must(t, got.CopyTo(out))
				for i, v := range out {
					if int(v) != want(i) {
						t.Fatalf("%s of %d: [%d] is %d, want %d", what, n, i, v, want(i))
					}
				}
			}
			must(t, x.CopyFrom(in))
			must(t, spmd.AllReduce(c, y, x, spmd.Sum))
			sum := func(i int) int { return ranks*7*i + ranks*(ranks-1)/2 }
			check("AllReduce", y, sum)
			must(t, spmd.ReduceScatter(c, y.Slice(0, n), x, spmd.Sum))
			check("ReduceScatter", y.Slice(0, n), func(i int) int { return sum(w.Rank()*n + i) })
			must(t, spmd.AllGather(c, y, x.Slice(0, n)))
			check("AllGather", y, func(i int) int { return i%n*7 + i/n })
			sameInGraph(t, w, n*ranks)
			half, err := c.Split(w.Rank()%2, w.Rank())
			must(t, err)
			must(t, spmd.AllReduce(half.On(s), y.Slice(0, n), x.Slice(0, n), spmd.Max))
			check("AllReduce of a half", y.Slice(0, n), func(i int) int { return i*7 + w.Rank()%2 + 2*(half.Size()-1) })
			must(t, half.Close())
			must(t, x.Free())
			must(t, y.Free())
		}
	})
}

// sameInGraph: a captured all-reduce of n float32, which round, has the bits of one that was not
// captured.
func sameInGraph(t *testing.T, w *spmd.World, n int) {
	t.Helper()
	s := stream(t, w, "captured")
	x, err := spmd.AllocSymmetric[float32](w, n)
	must(t, err)
	y, err := spmd.AllocSymmetric[float32](w, n)
	must(t, err)
	must(t, random.Uniform(s, x, uint64(w.Rank()), 0))
	var got [2][]float32
	for i, graph := range []bool{false, true} {
		call := func() error { return spmd.AllReduce(w.Comm().On(s), y, x, spmd.Sum) }
		if graph {
			must(t, spmd.Fill(s, y, -1))
			g, err := s.Capture(call)
			must(t, err)
			must(t, g.Launch(s))
			must(t, s.Synchronize())
			must(t, g.Close())
		} else {
			must(t, call())
			must(t, s.Synchronize())
		}
		got[i] = make([]float32, n)
		must(t, y.CopyTo(got[i]))
	}
	if !slices.Equal(got[0], got[1]) {
		t.Errorf("%d numbers: a graph has other sums than the calls in it", n)
	}
	must(t, x.Free())
	must(t, y.Free())
}
