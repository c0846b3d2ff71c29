package spmd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"lockstep/cuda"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// TestGPUsOfOneProcess is ranks that are goroutines, each with a GPU: with doubles of the driver
// and of NCCL, or, with SPMDTEST_DEVICE=cuda, with the GPUs of this machine. With one GPU the ranks
// share it, through host memory.
func TestGPUsOfOneProcess(t *testing.T) {
	if spmdtest.Device() != "cuda" && os.Getenv(doublesEnv) == "" {
		dir := peerDoubles(t)
		for name, v := range map[string]string{
			"FAKECUDA_DEVICES": "3", "FAKECUDA_DELAY": "50", doublesEnv: dir, "LD_LIBRARY_PATH": dir,
		} {
			t.Setenv(name, v)
		}
		t.Run("NCCL", ncclInProcess)
		t.Run("too many ranks", tooManyInProcess)
		t.Run("no MPI", noMPIInProcess)
	}
	// This test asks for the GPUs before Local does. The driver then reads how many queues a GPU
	// has, and ranks that share one need many.
	env := []string{"SPMDTEST_DEVICE=cuda", "CUDA_DEVICE_MAX_CONNECTIONS=32"}
	testkit.RunWithLibraries(t, func(string) {}, env, func(t *testing.T) {
		spmdtest.Must(t, cuda.Load())
		gpus, err := cuda.Count()
		must(t, err)
		for _, tc := range []struct {
			name  string
			ranks int
			body  func(t *testing.T, w *spmd.World)
		}{
			{"calls in order", 1, callsInOrder},
			{"calls in order", 2, callsInOrder},
			{"calls in order", 3, callsInOrder},
			{"collectives", 3, mpiCollectives},
			{"several streams and communicators", 3, mpiSeveral},
			{"groups of messages", 3, mpiGroups},
			{"messages of no elements", 3, emptyMessages},
			{"messages that are left out", 3, leftOut},
			{"data of the host", 2, hostData},
			{"long calls", 2, longInProcess},
			{"threads", 3, threadsOfGPUs},
		} {
			t.Run(tc.name+", "+strconv.Itoa(tc.ranks)+" ranks",
				func(t *testing.T) { onGPUsInProcess(t, tc.ranks, "host-staged", tc.body) })
			if gpus >= tc.ranks && os.Getenv(doublesEnv) == "" {
				t.Run(tc.name+", NCCL, "+strconv.Itoa(tc.ranks)+" ranks",
					func(t *testing.T) { onGPUsInProcess(t, tc.ranks, "nccl", tc.body) })
			}
		}
		if os.Getenv(doublesEnv) != "" {
			t.Setenv("FAKENCCL_JOIN", "3")
		}
		if gpus >= 3 {
			t.Run("calls of some ranks", func(t *testing.T) { onGPUsInProcess(t, 3, "nccl", countedCalls()) })
		}
		t.Run("capture", func(t *testing.T) { onGPUsInProcess(t, 2, "host-staged", mpiCapture) })
		if gpus >= 2 {
			t.Run("graphs at the same time",
				func(t *testing.T) { onGPUsInProcess(t, min(gpus, 3), "nccl", graphsAtOnce) })
		}
		t.Run("failures", failuresInProcess)
		t.Run("races", TestRaces)
		t.Run("shared GPU", func(t *testing.T) {
			if os.Getenv(doublesEnv) != "" {
				t.Setenv("FAKECUDA_DEVICES", "1")
			}
			onGPUsInProcess(t, gpus+1, "host-staged", mpiGroups)
		})
	})
}

// onGPUsInProcess runs fn on ranks that are goroutines with GPUs.
func onGPUsInProcess(t *testing.T, ranks int, collectives string, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	cfg := spmdtest.Config()
	cfg.Device, cfg.Collectives = "cuda", collectives
	err := spmd.Local(t.Context(), cfg, ranks, func(_ context.Context, w *spmd.World) error {
		if w.OnHost() || w.Size() > 1 && w.Collectives() != collectives || w.LocalRank() != w.Rank() || w.Nodes() != 1 {
			t.Errorf("rank %d: on %s, by %s, local rank %d of %d nodes", w.Rank(), w.Device(),
				w.Collectives(), w.LocalRank(), w.Nodes())
		}
		fn(t, w)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// longInProcess is calls longer than the host holds at a time.
func longInProcess(t *testing.T, w *spmd.World) {
	const n = 5<<20 + 3 // 20 MiB
	s := stream(t, w, "s")
	x, all := alloc[int32](t, w, n), alloc[int32](t, w, 2*n)
	must(t, x.SetAll(int32(w.Rank()+1)))
	must(t, spmd.AllGather(w.Comm().On(s), all, x))
	must(t, spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum))
	must(t, spmd.Broadcast(w.Comm().On(s), all, 1))
	must(t, s.Synchronize())
	for _, i := range []int{0, 1 << 21, n - 1} {
		if x.At(i) != 3 || all.At(i) != 1 || all.At(n+i) != 2 {
			t.Errorf("rank %d: [%d] = %d, gathered %d and %d", w.Rank(), i, x.At(i), all.At(i), all.At(n+i))
		}
	}
}

// threadsOfGPUs: a goroutine may be moved to a thread which last worked for another rank, on
// another GPU. It then works on its own rank's: many goroutines of each rank take turns on few
// threads.
func threadsOfGPUs(t *testing.T, w *spmd.World) {
	const n = 1000
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			s, err := w.NewStream("s" + strconv.Itoa(g))
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 20 {
				v := int32(1000*w.Rank() + 20*g + i)
				x, err := spmd.Alloc[int32](w, n)
				if err == nil {
					err = errors.Join(spmd.Fill(s, x, v), s.HostFunc(func() error { return nil }), s.Synchronize())
				}
				if err != nil || x.At(n-1) != v {
					t.Errorf("rank %d: %v, want %d: %v", w.Rank(), x.At(n-1), v, err)
					return
				}
				if err := x.Free(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// graphsAtOnce: the ranks capture at the same time, and replay together.
func graphsAtOnce(t *testing.T, w *spmd.World) {
	s := stream(t, w, "s")
	x := alloc[float32](t, w, 100)
	must(t, x.SetAll(1))
	var graphs []*spmd.Graph
	for range 5 {
		g, err := s.Capture(func() error { return spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum) })
		must(t, err)
		graphs = append(graphs, g)
	}
	want := float32(1)
	for _, g := range graphs {
		must(t, g.Launch(s))
		want *= float32(w.Size())
	}
	must(t, s.Synchronize())
	if x.At(99) != want {
		t.Errorf("rank %d: %v, want %v", w.Rank(), x.At(99), want)
	}
}

// failuresInProcess: a rank that panics is named, and ends those that wait for it.
func failuresInProcess(t *testing.T) {
	cfg := spmdtest.Config()
	cfg.Device, cfg.Collectives = "cuda", "host-staged"
	var told error
	err := spmd.Local(t.Context(), cfg, 2, func(_ context.Context, w *spmd.World) error {
		x, err := spmd.Alloc[int32](w, 5000)
		if err != nil {
			return err
		}
		if w.Rank() == 1 {
			panic("oh")
		}
		told = spmd.AllReduce(w.Comm(), x, x, spmd.Sum)
		return told
	})
	testkit.Refused(t, err, "rank 1: panic: oh")
	if told == nil {
		t.Error("rank 0 was left in its call")
	}
}

// ncclInProcess: NCCL joins the ranks, each on its GPU and all from one id. Kernels between the
// GPUs reach the memory of each other without handles for other processes.
func ncclInProcess(t *testing.T) {
	const what = "peer messages"
	for _, ranks := range []string{"2", "3"} {
		logs := t.TempDir()
		env := []string{"FAKECUDA_PEERS=1", "FAKENCCL_JOIN=" + ranks, "FAKENCCL_LOG=" + logs + "/nccl",
			"FAKECUDA_LOG=" + logs + "/cuda"}
		status, out := run(t, 0, what, env, "--device", "cuda", "--ranks", ranks, "--json", "-",
			"--log-level", "debug")
		if status != 0 || !strings.Contains(out, `"right":true`) || !strings.Contains(out, "collectives=nccl") ||
			!strings.Contains(out, "small_collectives=") {
			t.Errorf("%s ranks: status %d\n%s", ranks, status, out)
			continue
		}
		nccl, err := os.ReadFile(filepath.Join(logs, "nccl"))
		must(t, err)
		driver, err := os.ReadFile(filepath.Join(logs, "cuda"))
		must(t, err)
		if ids := strings.Count(string(nccl), " ncclGetUniqueId"); ids != 1 {
			t.Errorf("%s ranks: %d ids", ranks, ids)
		}
		if inits := strings.Count(string(nccl),
			" ncclCommInitRankConfig size="+ranks+" "); strconv.Itoa(inits) != ranks {
			t.Errorf("%s ranks: NCCL began %d", ranks, inits)
		}
		for _, call := range []string{"cuIpcGetMemHandle", "cuIpcOpenMemHandle"} {
			if strings.Contains(string(driver), call) {
				t.Errorf("%s ranks: %s is called", ranks, call)
			}
		}
		if !strings.Contains(string(driver), "cuCtxEnablePeerAccess device=0 peer=1") ||
			!strings.Contains(string(driver), "cuCtxEnablePeerAccess device=1 peer=0") {
			t.Errorf("%s ranks: the GPUs do not reach each other", ranks)
		}
	}
}

// tooManyInProcess: more ranks than GPUs are one line, before memory is taken.
func tooManyInProcess(t *testing.T) {
	logs := filepath.Join(t.TempDir(), "cuda")
	for _, device := range []string{"auto", "cuda"} {
		status, out := run(t, 0, "sum", []string{"FAKECUDA_LOG=" + logs}, "--device", device, "--ranks", "4")
		if status != 2 || strings.Count(out, "\n") != 1 ||
			!strings.Contains(out, "has 4 ranks, and local rank 3 sees 3 GPUs") ||
			!strings.Contains(out, "start fewer ranks, or run on the host with --device host") {
			t.Errorf("status %d\n%s", status, out)
		}
	}
	log, err := os.ReadFile(logs)
	must(t, err)
	if strings.Contains(string(log), "cuMemAlloc") || strings.Contains(string(log), "cuDevicePrimaryCtxRetain") {
		t.Errorf("memory was taken:\n%s", log)
	}
	if status, out := run(t, 0, "sum", nil, "--device", "host", "--ranks", "4"); status != 0 ||
		!strings.Contains(out, "collectives=inproc") {
		t.Errorf("on the host: status %d\n%s", status, out)
	}
}

// noMPIInProcess: MPI does not carry between goroutines, and a missing NCCL is not missed.
func noMPIInProcess(t *testing.T) {
	status, out := run(t, 0, "sum", nil, "--device", "cuda", "--ranks", "2", "--collectives", "mpi")
	if status != 2 || !strings.Contains(out,
		"--collectives mpi does not go with --ranks 2: MPI joins processes, not ranks that are goroutines of one") {
		t.Errorf("status %d\n%s", status, out)
	}
	dir := t.TempDir()
	for _, name := range []string{"libnccl.so.2", "libnccl.so"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("no library"), 0o644))
	}
	env := []string{"LD_LIBRARY_PATH=" + dir + ":" + os.Getenv("LD_LIBRARY_PATH")}
	status, out = run(t, 0, "sum", env, "--device", "cuda", "--ranks", "2")
	if status != 0 || !strings.Contains(out, "sum=1") || !strings.Contains(out, "collectives=host-staged") ||
		!strings.Contains(out, "NCCL is not used: ") || strings.Contains(out, "MPI is not used") {
		t.Errorf("status %d\n%s", status, out)
	}
}
