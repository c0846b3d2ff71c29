package spmd_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/spmdtest"
)

// TestGPUThroughMPI is GPU memory that MPI carries: with a test double of the driver, whose streams
// have threads of their own, and the real MPI, so that data really moves.
func TestGPUThroughMPI(t *testing.T) {
	if os.Getenv(doublesEnv) == "" {
		dir := peerDoubles(t)
		for name, v := range map[string]string{
			"SPMDTEST_DEVICE": "cuda", "SPMDTEST_COLLECTIVES": "mpi", "FAKECUDA_DEVICES": "3", "FAKECUDA_DELAY": "50",
			doublesEnv: dir, "LD_LIBRARY_PATH": dir,
		} {
			t.Setenv(name, v)
		}
		t.Run("start", mpiStart)
		t.Run("queues", mpiQueues)
		t.Run("ranks differ", mpiDiffers)
		t.Run("ways", mpiWays)
		t.Run("beside NCCL", peersBesideNCCL)
		t.Run("branches of a graph", graphBranches)
		t.Run("groups beside NCCL", groupsBesideNCCL)
		t.Run("messages between peers", messagesBetweenPeers)
		t.Run("peers without NCCL", peersWithoutNCCL)
		t.Run("messages of other lengths", messagesOfOtherLengths)
	}
	testkit.More(t, 12, "kinds of calls by ways between GPUs")
	testkit.More(t, 9, "ways to ask for a way between GPUs")
	testkit.More(t, 4*(5*4-2), "operations by lengths on doubles of GPUs")
	for _, tc := range []struct {
		name  string
		ranks []int
		body  func(t *testing.T, w *spmd.World)
	}{
		{"calls in order", []int{3}, callsInOrder},
		{"collectives", []int{3}, mpiCollectives},
		{"several streams and communicators", []int{3}, mpiSeveral},
		{"groups of messages", []int{3}, mpiGroups},
		{"messages of no elements", []int{3}, emptyMessages},
		{"messages that are left out", []int{3}, leftOut},
		{"data of the host", []int{2}, hostData},
		{"capture", []int{2}, mpiCapture},
	} {
		t.Run(tc.name, func(t *testing.T) { spmdtest.Run(t, tc.ranks, tc.body) })
		if !testkit.AllCases() && tc.name != "capture" { // calls of which the transports have tests of their own
			continue
		}
		t.Run(tc.name+", MPI takes the memory", func(t *testing.T) {
			t.Setenv("SPMDTEST_COLLECTIVES", "mpi-aware") // the double's memory is the host's
			t.Setenv("LOCKSTEP_MPI_CUDA", "yes")
			spmdtest.Run(t, tc.ranks[:1], tc.body)
		})
		t.Run(tc.name+", between devices", func(t *testing.T) {
			t.Setenv("SPMDTEST_COLLECTIVES", "mpi-peer")
			t.Setenv("FAKECUDA_PEERS", "1")
			t.Setenv("FAKECUDA_SHARED", "1")
			spmdtest.Run(t, tc.ranks[:1], tc.body)
		})
	}
	t.Run("trace", func(t *testing.T) { traceProcesses(t, []int{2}) })
	t.Run("trace between peers", func(t *testing.T) {
		t.Setenv("SPMDTEST_COLLECTIVES", "mpi-peer")
		t.Setenv("FAKECUDA_PEERS", "1")
		t.Setenv("FAKECUDA_SHARED", "1")
		traceProcesses(t, []int{2})
	})
}

func mpiStart(t *testing.T) {
	status, out := run(t, 2, "sum", nil, "--device", "cuda", "--collectives", "mpi")
	if status != 0 || !strings.Contains(out, "collectives=host-staged") ||
		!strings.Contains(out, `--collectives mpi: `) || !strings.Contains(out, "sum=1") {
		t.Errorf("status %d\n%s", status, out)
	}
}

// mpiQueues: streams wait for the host, and the device keeps them apart. The driver reads the
// number of queues when it is initialised.
func mpiQueues(t *testing.T) {
	for collectives, want := range map[string]string{"mpi": "32", "host-staged": "32", "auto": "", "nccl": ""} {
		if !testkit.AllCases() && collectives != "mpi" && collectives != "auto" {
			continue
		}
		logs := t.TempDir()
		status, out := run(t, 3, "sum", []string{rankEnv + "=FAKECUDA_LOG=" + logs + "/%r"}, "--device",
			"cuda", "--collectives", collectives)
		if status != 0 {
			t.Errorf("--collectives %s: status %d\n%s", collectives, status, out)
			continue
		}
		for rank := range 3 {
			log := testkit.CallLog{File: filepath.Join(logs, strconv.Itoa(rank))}
			if calls := log.New(t, "cuInit "); len(calls) == 0 || testkit.LogValue(calls[0], "queues") != want {
				t.Errorf("--collectives %s, rank %d: %q, want %q queues", collectives, rank, calls, want)
			}
		}
	}
}

// peerDoubles is doubles with the kernels by which package peer moves and reduces GPU memory,
// compiled for the host. It sets LOCKSTEP_CACHE.
func peerDoubles(t *testing.T) (dir string) {
	t.Helper()
	dir = doubles(t)
	testkit.BuildLibrary(t, dir, "libemulate.so", "-std=c++14", "-Wno-unknown-pragmas",
		filepath.Join("internal", "peer", "testdata", "emulate.cc"), filepath.Join("testdata", "fill.cc"))
	t.Setenv("FAKECUDA_KERNELS", filepath.Join(dir, "libemulate.so"))
	must(t, kernels.Fill(filepath.Join(dir, "cache"), 90))
	t.Setenv("LOCKSTEP_CACHE", filepath.Join(dir, "cache"))
	compileCarriers(t)
	return dir
}

// compileCarriers fills LOCKSTEP_CACHE with the kernels of package peer. That takes many seconds on
// a busy machine, and no program that a test runs has so long.
func compileCarriers(t *testing.T) {
	t.Helper()
	var source []byte
	for _, file := range []string{"fold.cu", "peers.cu"} {
		part, err := os.ReadFile(filepath.Join("internal", "peer", file))
		must(t, err)
		source = append(source, part...)
	}
	must(t, kernels.CompileInto(os.Getenv("LOCKSTEP_CACHE"), "device.cu", string(source),
		nvrtc.Options{Capability: 90}))
}

// mpiWays: --collectives takes the names that the start line shows. A way that is not to be had is
// one error for all ranks.
func mpiWays(t *testing.T) {
	const refused = 2
	peers, none := "FAKECUDA_PEERS=1", "FAKECUDA_PEERS=0"
	for i, tc := range []struct {
		ask    string
		env    []string
		status int
		want   []string // in the one line that says it
	}{
		{"mpi", []string{none}, 0, []string{" INF start", "collectives=host-staged", "--collectives mpi: ",
			"no peer memory"}},
		{"mpi", []string{peers, "FAKECUDA_SHARED=1"}, 0,
			[]string{" INF start", "collectives=mpi-peer", "--collectives mpi: the devices reach each other"}},
		{"mpi", []string{none, "LOCKSTEP_MPI_CUDA=yes"}, 0,
			[]string{" INF start", "collectives=mpi-aware", "--collectives mpi: LOCKSTEP_MPI_CUDA=yes"}},
		{"host-staged", []string{peers, "FAKECUDA_SHARED=1"}, 0,
			[]string{" INF start", "collectives=host-staged", "--collectives host-staged: copies through host memory"}},
		{"mpi-peer", []string{peers, "FAKECUDA_SHARED=1"}, 0,
			[]string{" INF start", "collectives=mpi-peer", "--collectives mpi-peer: the devices reach each other"}},
		{"mpi-peer", []string{none, "FAKECUDA_SHARED=1"}, refused,
			[]string{"app: --collectives mpi-peer: ", "no peer access"}},
		{"mpi-aware", []string{none, "LOCKSTEP_MPI_CUDA=yes"}, 0,
			[]string{" INF start", "collectives=mpi-aware", "--collectives mpi-aware: LOCKSTEP_MPI_CUDA=yes"}},
		{"mpi-aware", []string{none, "LOCKSTEP_MPI_CUDA=no"}, 0,
			[]string{" WRN start", "collectives=mpi-aware", "--collectives mpi-aware, though LOCKSTEP_MPI_CUDA=no"}},
	} {
		if !testkit.AllCases() && i%2 == 1 && tc.status == 0 { // one of each name, and the refusals
			continue
		}
		t.Run(tc.ask, func(t *testing.T) {
			status, out := run(t, 2, "sum", tc.env, "--device", "cuda", "--collectives", tc.ask)
			said := 0
			for line := range strings.Lines(out) {
				if !slices.ContainsFunc(tc.want, func(part string) bool { return !strings.Contains(line, part) }) {
					said++
				}
			}
			if status != tc.status || said != 1 || strings.Contains(out, "sum=1") != (status == 0) {
				t.Errorf("status %d, want %d; said %d times\n%s", status, tc.status, said, out)
			}
		})
	}
}

// mpiDiffers: calls that differ between ranks are an error, not wrong numbers. The call finds it.
// If that does not begin for long, as on a busy machine, rank 0 hears of both.
func mpiDiffers(t *testing.T) {
	byCall := []string{`stream "work", AllReduce of 6`, "(sum) enqueued at ", " brought AllReduce of 6"}
	byRank0 := []string{": rank 0 at spmd/gpu_fault_test.go:", "; rank 1 at spmd/gpu_fault_test.go:"}
	lacks := func(out string, parts []string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(out, part) })
	}
	for _, what := range []string{"lengths differ", "lengths differ behind a call that does not end"} {
		status, out := run(t, 2, what, nil, "--device", "cuda", "--collectives", "mpi")
		always := []string{" ERR ", "the ranks called different collectives", "spmd/gpu_fault_test.go:",
			"AllReduce of 64 float32", "AllReduce of 63 float32"}
		if status != 1 || lacks(out, always) || strings.Count(out, " ERR ") != 1 ||
			lacks(out, byRank0) && (what != "lengths differ" || lacks(out, byCall)) {
			t.Errorf("%s: status %d\n%s", what, status, out)
		}
	}
}

func mpiCollectives(t *testing.T, w *spmd.World) {
	onStream, group := modes[1], modes[3]
	every(t, w, onStream, brain(), 7)
	every(t, w, group, plain[int64](), 0)
}

// mpiSeveral: calls on several streams and communicators, issued without a wait, are made in the
// order of their issue, each when its stream has got there.
func mpiSeveral(t *testing.T, w *spmd.World) {
	pair, err := w.Comm().Split(w.Rank()/2, -w.Rank()) // ranks 1 and 0, in this order; 2 alone
	must(t, err)
	a, b := stream(t, w, "a"), stream(t, w, "b")
	const n = 3000 // more than one small kernel does
	x, y, z := alloc[int64](t, w, n), alloc[int64](t, w, n), alloc[int64](t, w, n)
	one := make([]int64, n)
	for i := range one {
		one[i] = int64(i) * int64(w.Rank()+1)
	}
	must(t, x.CopyFrom(one))
	rounds := 20
	if os.Getenv(doublesEnv) != "" && !testkit.AllCases() {
		rounds = 4
	}
	for range rounds {
		must(t, spmd.Copy(a, y, x))
		must(t, spmd.AllReduce(w.Comm().On(a), y, y, spmd.Sum)) // 6 i
		must(t, b.After(a))
		must(t, spmd.AllReduce(pair.On(b), z, y, spmd.Sum)) // 12 i, 6 i alone
		must(t, a.After(b))
		must(t, spmd.Broadcast(w.Comm().On(a), z, 0))
		must(t, spmd.Barrier(pair.On(b)))
	}
	must(t, spmd.AllReduce(w.Comm(), y, y, spmd.Max)) // blocks, while streams are at work
	must(t, a.Synchronize())
	must(t, b.Synchronize())
	for i := range n {
		if z.At(i) != int64(12*i) {
			t.Fatalf("rank %d: [%d] = %d, want %d", w.Rank(), i, z.At(i), 12*i)
		}
	}
	must(t, pair.Close())
}

// mpiGroups: every rank sends to every other, before it receives.
func mpiGroups(t *testing.T, w *spmd.World) {
	s := stream(t, w, "s")
	const n = 70_000
	out, in := alloc[float32](t, w, n), alloc[float32](t, w, n*w.Size())
	mine := make([]float32, n)
	for i := range mine {
		mine[i] = float32(w.Rank()*n + i)
	}
	must(t, out.CopyFrom(mine))
	sum := alloc[int32](t, w, 1)
	must(t, sum.CopyFrom([]int32{int32(w.Rank())}))
	for range 3 {
		must(t, w.Comm().On(s).Group(func() error {
			for r := range w.Size() {
				if err := spmd.Send(w.Comm().On(s), out, r); err != nil {
					return err
				}
			}
			for r := range w.Size() {
				if err := spmd.Recv(w.Comm().On(s), in.Slice(r*n, (r+1)*n), r); err != nil {
					return err
				}
			}
			return spmd.AllReduce(w.Comm().On(s), sum, sum, spmd.Max)
		}))
	}
	must(t, s.Synchronize())
	got := make([]float32, n*w.Size())
	must(t, in.CopyTo(got))
	for i, x := range got {
		if x != float32(i) {
			t.Fatalf("rank %d: [%d] = %v", w.Rank(), i, x)
		}
	}
	if sum.At(0) != int32(w.Size()-1) {
		t.Errorf("the collective in the group gives %d", sum.At(0))
	}
}

func mpiCapture(t *testing.T, w *spmd.World) {
	s := stream(t, w, "s")
	x := alloc[float32](t, w, 8)
	if w.Collectives() == "mpi-peer" { // messages of any length, and all collectives
		must(t, exchangeLetters(w, []int{1, 70, 3000}, 3000))
		const n = 3 << 18 // 3 MiB
		long := alloc[float32](t, w, 2*n)
		must(t, long.Slice(0, n).SetAll(float32(1+w.Rank())))
		g, err := s.Capture(func() error {
			return w.Comm().On(s).Group(func() error {
				return errors.Join(spmd.Send(w.Comm().On(s), long.Slice(0, n), 1-w.Rank()),
					spmd.Recv(w.Comm().On(s), long.Slice(n, 2*n), 1-w.Rank()))
			})
		})
		must(t, err)
		must(t, g.Launch(s))
		must(t, s.Synchronize())
		if a, b := long.At(n), long.At(2*n-1); a != float32(2-w.Rank()) || b != a {
			t.Errorf("rank %d has received %v and %v", w.Rank(), a, b)
		}
		must(t, g.Close())
		return
	}
	_, err := s.Capture(func() error { return spmd.Broadcast(w.Comm().On(s), x, 0) })
	if err == nil || !strings.Contains(err.Error(), "cannot be captured") ||
		!strings.Contains(err.Error(), w.Collectives()) {
		t.Errorf("captured: %v", err)
	}
	must(t, spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum)) // and the stream works on
	must(t, s.Synchronize())
}
