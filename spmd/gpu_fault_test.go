package spmd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/cuda"
	"lockstep/internal/testkit"
	"lockstep/nccl"
	"lockstep/spmd"
)

// rankEnv sets variables of single ranks of the app: "NAME=VALUE;1:NAME=VALUE", for all ranks or
// for rank 1, with %r for the rank.
const rankEnv = "SPMD_TEST_RANK_ENV"

const brokenKernel = `
extern "C" __global__ void broken(float *x, int n) {
	int i = threadIdx.x;
	x[i] = undeclared;
}
`

// gpuPrepare is the app's work before it is a rank.
func gpuPrepare(what string) {
	rank := os.Getenv("OMPI_COMM_WORLD_RANK") + os.Getenv("PMI_RANK") // of Open MPI or MPICH
	if rank == "" {
		rank = "0"
	}
	for _, set := range strings.Split(os.Getenv(rankEnv), ";") {
		only, rest, ok := strings.Cut(set, ":")
		if !ok || len(only) != 1 {
			only, rest = rank, set
		}
		if name, v, ok := strings.Cut(rest, "="); ok && only == rank {
			os.Setenv(name, strings.ReplaceAll(v, "%r", rank))
		}
	}
	if what == "broken kernel" {
		spmd.NewKernel("broken", brokenKernel, nil)
	}
}

var faults = []string{"a collective fails", "a rank is lost", "a launch fails", "the GPU fails",
	"no memory", "a late kernel", "no CUDA source", "a graph is left",
	"lengths differ", "lengths differ behind a call that does not end", "memory differs",
	"the others wait", "the others wait in a group", "the others do not wait", "the others cannot hand it over"}

// gpuFault is the app on a GPU when something is to go wrong on its last rank, in NCCL or in the
// driver.
func gpuFault(w *spmd.World, what string, last bool) error {
	if !slices.Contains(faults, what) {
		return nil
	}
	if what == "a rank is lost" {
		os.Setenv("FAKECUDA_DELAY", "0") // of the stream, which then has a thread of its own
	}
	s, err := w.NewStream("work")
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[float32](w, 64)
	if err != nil {
		return err
	}
	if what == "a graph is left" {
		if _, err := s.Capture(func() error { return spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum) }); err != nil {
			return err
		}
		if err := spmd.Fill(s, x, 1); err != nil {
			return err
		}
	}
	if strings.HasPrefix(what, "lengths differ") {
		if last {
			x = x.Slice(0, 63)
		}
		if what != "lengths differ" {
			if err := neverEnds(w); err != nil {
				return err
			}
		}
		if err := spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum); err != nil {
			return err
		}
		return s.Synchronize()
	}
	if what == "memory differs" {
		y, err := spmd.AllocSymmetric[float32](w, 64)
		if err != nil {
			return err
		}
		if last {
			y = x
		}
		if err := spmd.AllReduce(w.Comm().On(s), y, y, spmd.Sum); err != nil {
			return err
		}
		return s.Synchronize()
	}
	if strings.HasPrefix(what, "the others") {
		return gpuHang(w, s, x, what, last)
	}
	if !last {
		return nil // and wait in the barrier
	}
	one := spmd.Cover1D(1, 1)
	switch what {
	case "a collective fails":
		os.Setenv("FAKENCCL_FAIL", "ncclAllReduce=2")
		return spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum)
	case "a rank is lost": // the kernel of the collective never ends
		os.Setenv("FAKENCCL_FAIL", "async=6")
		if err := s.HostFunc(func() error { select {} }); err != nil {
			return err
		}
		if err := spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum); err != nil {
			return err
		}
		return s.Synchronize()
	case "a launch fails":
		os.Setenv("FAKECUDA_FAIL", "cuLaunchKernel=701")
		return nop.Launch(s, one, x.Arg(), x.Arg(), spmd.I32(1))
	case "the GPU fails":
		os.Setenv("FAKECUDA_FAIL", "cuStreamQuery=700,cuStreamWriteValue32_v2=700")
		if err := nop.Launch(s, one, x.Arg(), x.Arg(), spmd.I32(1)); err != nil {
			return err
		}
		return s.Synchronize()
	case "no memory":
		_, err := spmd.Alloc[float32](w, 20<<20)
		return err
	case "a late kernel":
		return spmd.NewKernel("broken", brokenKernel, nil).Launch(s, one, x.Arg(), spmd.I32(1))
	case "no CUDA source":
		return spmd.NewKernel("hostly", "", func(spmd.Args) error { return nil }).Launch(s, one, x.Arg())
	default:
		return errors.New("the last rank fails")
	}
}

// neverEnds enqueues a call behind which no other begins: a Recv of a message that nobody sends.
func neverEnds(w *spmd.World) error {
	s, err := w.NewStream("held up")
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[float32](w, 64)
	if err != nil {
		return err
	}
	return spmd.Recv(w.Comm().On(s), x, (w.Rank()+1)%w.Size())
}

// gpuHang is a collective on a stream that the last rank never calls. The double of NCCL waits for
// nobody. So a host function holds up the streams of the others, which have threads of their own.
func gpuHang(w *spmd.World, s *spmd.Stream, x spmd.Buffer[float32], what string, last bool) error {
	for range 3 { // calls that all ranks make
		if err := spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum); err != nil {
			return err
		}
	}
	if err := s.Synchronize(); err != nil {
		return err
	}
	if last {
		oversleep()
	}
	if what == "the others cannot hand it over" {
		os.Setenv("FAKENCCL_HANG", "ncclAllReduce")
	} else if err := s.HostFunc(func() error { select {} }); err != nil {
		return err
	}
	if what == "the others wait in a group" {
		c := w.Comm().On(s)
		if err := c.Group(func() error {
			return errors.Join(spmd.Send(c, x.Slice(0, 20), w.Size()-1), spmd.Recv(c, x.Slice(20, 30), w.Size()-1))
		}); err != nil {
			return err
		}
		return s.Synchronize()
	}
	if err := spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum); err != nil {
		return err
	}
	if what == "the others do not wait" {
		oversleep()
	}
	return s.Synchronize()
}

// gpuHangs: a collective on a GPU that does not end is reported as one on the host is, with the
// place where it was enqueued, and without a call to the driver.
func gpuHangs(t *testing.T) {
	t.Parallel()
	hang := filepath.Join(t.TempDir(), "log")
	must(t, os.WriteFile(hang+".hang", nil, 0o644))
	enqueued := `from spmd/gpu_fault_test.go:`
	for _, tc := range []struct {
		what string
		env  string
		want []string
	}{
		{"the others wait", "FAKECUDA_DELAY=0",
			[]string{`what was enqueued on stream "work", collectives among it, has not ended in `,
				`or run, the first collective is AllReduce of 64 float32 (sum) ` + enqueued}},
		{"the others wait in a group", "FAKECUDA_DELAY=0",
			[]string{"rank 0 waits in Group of Send of 20 float32 to rank 2, Recv of 10 float32 " +
				"from rank 2 " + enqueued,
				"rank 1 waits in Group of Send of 20 float32 to rank 2, Recv of 10 float32 from rank 2 " + enqueued}},
		{"the others do not wait", "FAKECUDA_DELAY=0",
			[]string{`what was enqueued on stream "work", collectives among it, has not ended in `,
				`or run, the first collective is AllReduce of 64 float32 (sum) ` + enqueued}},
		{"the others cannot hand it over", "FAKENCCL_LOG=" + hang, []string{"has not ended in "}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			status, out := run(t, 3, tc.what, []string{rankEnv + "=" + tc.env}, "--device", "cuda", "--timeout", "2s")
			want := append([]string{"NOT ARRIVED: rank 2\n", `on "world", AllReduce of 64 float32 (sum) ` + enqueued,
				": ranks 0-1 in it",
				"  rank 2 is at call ", "spmd_test.oversleep", "ERR this job hangs"}, tc.want...)
			if tc.what == "the others wait in a group" {
				want = append(tc.want, "spmd_test.oversleep", "ERR this job hangs")
			}
			for _, part := range want {
				if !strings.Contains(out, part) {
					t.Errorf("%q is not said", part)
				}
			}
			if status == 0 || strings.Count(out, "--- this job hangs") != 1 || t.Failed() {
				t.Errorf("status %d\n%s", status, out)
			}
		})
	}
}

// folders builds folders of test doubles: "both", "driver" alone, "part" of the driver, and "none".
// Others are made of files that are no libraries.
func folders(t *testing.T, both string) map[string]string {
	t.Helper()
	f := map[string]string{"both": both, "driver": t.TempDir(), "part": t.TempDir(), "none": t.TempDir(),
		"no NVRTC": t.TempDir()}
	link := func(folder string, names ...string) {
		for _, name := range names {
			must(t, os.Symlink(filepath.Join(both, name), filepath.Join(f[folder], name)))
		}
	}
	link("driver", "libcuda.so.1")
	testkit.BuildCUDA(t, f["part"], testkit.WithoutSymbols("cuGraphLaunch")...)
	link("no NVRTC", "libcuda.so.1", "libnccl.so.2")
	for _, name := range []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"} {
		must(t, os.WriteFile(filepath.Join(f["no NVRTC"], name), []byte("no library"), 0o644))
	}
	return f
}

// gpuFaults: things that can be missing or fail on the way to a GPU and on it. Each ends all ranks,
// with the cause said once, or runs on the host and says why.
func gpuFaults(t *testing.T, dir string) {
	t.Parallel()
	f := folders(t, dir)
	compileCarriers(t)
	const refused, failed = 2, 1
	cuda11, nccl217 := "FAKECUDA_VERSION=11080", "FAKENCCL_VERSION=21700"
	threads := slices.Clip([]string{"FAKECUDA_DELAY=0"}) // of streams, so that they can wait for the host
	hang := filepath.Join(t.TempDir(), "log")            // hangs last while there is a file beside the log
	must(t, os.WriteFile(hang+".hang", nil, 0o644))
	busy := "FAKECUDA_FAIL=cuDevicePrimaryCtxRetain=46"
	for _, tc := range []struct {
		name   string
		ranks  int
		folder string
		what   string // the app, "sum" if empty
		env    []string
		device string // cuda if empty
		status int
		want   []string // in the one line that says it
	}{
		{"no driver", 2, "none", "", nil, "", refused,
			[]string{"--device cuda", "no usable NVIDIA driver", "libcuda.so.1"}},
		{"no driver, any device", 2, "none", "", nil, "auto", 0,
			[]string{"start", "device=host", "collectives=mpi-host", "no GPU", "libcuda.so.1"}},
		{"an old driver", 0, "both", "", []string{cuda11}, "", refused,
			[]string{"--device cuda", "supports CUDA 11.8", "12.0 or later"}},
		{"an old driver, any device", 0, "both", "", []string{cuda11}, "auto", 0,
			[]string{"start", "device=host", "CUDA 11.8"}},
		{"a driver without a function", 0, "part", "", nil, "", refused,
			[]string{"--device cuda", "CUDA 13.0", "lacks cuGraphLaunch"}},
		{"no GPU", 0, "both", "", []string{"FAKECUDA_DEVICES=0"}, "", refused,
			[]string{"--device cuda", "main_test.go:", "cuInit", "CUDA_ERROR_NO_DEVICE"}},
		{"no NCCL", 2, "driver", "", threads, "", 0,
			[]string{"WRN", "start", `device="Fake GPU"`, "collectives=host-staged",
				"NCCL is not used: rank 0: ", "libnccl.so.2"}},
		{"no NCCL, any device", 2, "driver", "", threads, "auto", 0,
			[]string{"WRN", "start", `device="Fake GPU"`, "collectives=host-staged",
				"NCCL is not used: rank 0: ", "libnccl.so.2"}},
		{"no NCCL, one rank", 0, "driver", "", nil, "", 0, []string{"start", `device="Fake GPU"`, "collectives=none"}},
		{"no NCCL, and NCCL demanded", 2, "driver", "", nil, "auto --collectives nccl", refused,
			[]string{"--collectives nccl: rank 0: ", "libnccl.so.2"}},
		{"an old NCCL", 2, "both", "", append(threads, nccl217), "", 0,
			[]string{"WRN", "start", `device="Fake GPU"`, "collectives=host-staged", "2.17.0", "2.18 is needed"}},
		{"an old NCCL on one rank", 3, "both", "",
			append(threads, "FAKECUDA_DEVICES=3", rankEnv+"=1:"+nccl217), "auto", 0,
			[]string{"WRN", "start", `device="Fake GPU"`, "collectives=host-staged",
				"NCCL is not used: rank 1: ", "2.17.0"}},
		{"an old NCCL on one rank, and NCCL demanded", 3, "both", "",
			[]string{"FAKECUDA_DEVICES=3", rankEnv + "=2:" + nccl217}, "cuda --collectives nccl", refused,
			[]string{"--collectives nccl: rank 2: ", "2.17.0"}},
		{"too many ranks", 3, "both", "", nil, "", refused,
			[]string{"--device cuda", "rank 2", "has 3 ranks", "sees 2 GPUs", "start fewer ranks"}},
		{"too many ranks, any device", 3, "both", "", nil, "auto", refused,
			[]string{"has 3 ranks", "sees 2 GPUs", "start fewer ranks", "--device host"}},
		{"a GPU in exclusive use", 0, "both", "", []string{busy, "FAKECUDA_COMPUTE_MODE=3"}, "", refused,
			[]string{"--device cuda", "CUDA_ERROR_DEVICE_UNAVAILABLE (46)", "GPU 0",
				"another process has it", "nvidia-smi"}},
		{"a GPU in exclusive use, any device", 2, "both", "", []string{rankEnv + "=1:" + busy}, "auto", 0,
			[]string{"WRN", "start", "device=host", "rank 1", "(46)"}},
		{"no NVRTC", 0, "no NVRTC", "", []string{"CUDA_HOME=", "CUDA_PATH="}, "", refused,
			[]string{"--device cuda", "NVRTC", "libnvrtc.so.12"}},
		{"MPI instead of NCCL", 2, "driver", "", threads, "cuda --collectives mpi", 0,
			[]string{"start", "collectives=host-staged", `device="Fake GPU"`}},
		{"a way of MPI's demanded, no GPU", 0, "none", "", nil, "auto --collectives host-staged", refused,
			[]string{"--collectives host-staged", "libcuda.so.1"}},
		{"NCCL demanded, no GPU", 0, "none", "", nil, "auto --collectives nccl", refused,
			[]string{"--collectives nccl", "libcuda.so.1"}},
		{"NCCL does not start", 2, "both", "", []string{"FAKENCCL_FAIL=ncclCommInitRankConfig=3"}, "",
			failed, []string{"ncclCommInitRankConfig", "ncclInternalError (3)", "fake: ",
				"--collectives mpi does without NCCL"}},
		{"NCCL does not start on one rank", 2, "both", "",
			[]string{"FAKENCCL_LOG=" + hang,
				rankEnv + "=0:FAKENCCL_HANG=ncclCommInitRankConfig;1:FAKENCCL_FAIL=ncclCommInitRankConfig=3"}, "",
			// the other waits for it there
			failed, []string{"rank 1", "ncclCommInitRankConfig", "ncclInternalError (3)", "fake: "}},
		{"a kernel that does not compile", 2, "both", "broken kernel", nil, "", failed,
			[]string{`broken(4)`, `identifier "undeclared" is undefined`}},
		{"an image that does not load", 0, "both", "", []string{"FAKECUDA_FAIL=cuModuleLoadDataEx=218"},
			"", failed, []string{"kernel fill_bytes", "CUDA_ERROR_INVALID_PTX"}},

		{"a collective fails", 2, "both", "a collective fails", nil, "", failed,
			[]string{"ERR", "gpu_fault_test.go:", "rank 1", "ncclAllReduce", "ncclSystemError (2)",
				"64 float32", "fake: ncclAllReduce was told to fail", "rank=1"}},
		{"a rank is lost", 2, "both", "a rank is lost", nil, "", failed,
			[]string{"ERR", `stream "work"`, "gpu_fault_test.go:", "rank 1", "ncclCommGetAsyncError",
				"ncclRemoteError (6)", "rank=1"}},
		{"a launch fails", 0, "both", "a launch fails", nil, "", failed,
			[]string{"ERR", "kernel nop", "gpu_fault_test.go:", "cuLaunchKernel", "(701)"}},
		{"the GPU fails", 2, "both", "the GPU fails", nil, "", failed,
			[]string{"ERR", `stream "work"`, "gpu_fault_test.go:", "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "rank=1"}},
		{"symmetric memory on some ranks", 2, "both", "memory differs", nil, "cuda", failed,
			[]string{"ERR", "the ranks called different collectives", `"world"`, "which --check names"}},
		{"symmetric memory on some ranks, --check", 2, "both", "memory differs", nil, "cuda --check=on", failed,
			[]string{"ERR", "gpu_fault_test.go:",
				"AllReduce of 64 float32, sum, from symmetric memory, into symmetric memory, in place; rank 1",
				"AllReduce of 64 float32, sum ("}},
		{"no memory", 0, "both", "no memory", []string{"FAKECUDA_MEMORY=104857600"}, "", failed,
			[]string{"ERR", "gpu_fault_test.go:", "asked for 83886080 bytes",
				"71302912 of 104857600 free on the device", "256 in use", "33554432 held by the pool",
				"CUDA_ERROR_OUT_OF_MEMORY (2)"}},
		{"a late kernel does not compile", 0, "both", "a late kernel", nil, "", failed,
			[]string{"gpu_fault_test.go:", "kernel broken", `broken(4)`, "undeclared"}},
		{"a kernel without CUDA source", 0, "both", "no CUDA source", nil, "", failed,
			[]string{"ERR", "gpu_fault_test.go:", "hostly has no CUDA source", "on the host only"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.folder == "none" && cuda.Load() == nil {
				t.Skip("there is a driver here")
			}
			if tc.folder == "driver" && nccl.Load() == nil {
				t.Skip("NCCL is installed here")
			}
			if _, err := os.Stat("/usr/local/cuda"); tc.folder == "no NVRTC" && err == nil {
				t.Skip("NVRTC of /usr/local/cuda cannot be hidden")
			}
			args := append([]string{"--device"}, strings.Fields(tc.device)...)
			if tc.device == "" {
				args = append(args, "cuda")
			}
			if tc.what == "" {
				tc.what = "sum"
			}
			env := append([]string{"LD_LIBRARY_PATH=" + f[tc.folder], "FAKECUDA_DEVICES=2"}, tc.env...)
			status, out := run(t, tc.ranks, tc.what, env, args...)
			if status != tc.status {
				t.Errorf("status %d, want %d\n%s", status, tc.status, out)
			}
			// A compiler's log has lines of its own.
			multi := strings.Contains(tc.name, "compile")
			for _, part := range tc.want {
				if !strings.Contains(out, part) {
					t.Errorf("%q is not in\n%s", part, out)
				}
			}
			said := 0
			for line := range strings.Lines(out) {
				all := !slices.ContainsFunc(tc.want, func(part string) bool { return !strings.Contains(line, part) })
				if all || multi && strings.Contains(line, tc.want[len(tc.want)-1]) {
					said++
				}
			}
			if own := len(regexp.MustCompile(`(?m)^app: |^\S+ (ERR|WRN) `).FindAllString(out, -1)); said !=
				1 || own > 1 {
				t.Errorf("said %d times, in %d lines of the app's:\n%s", said, own, out)
			}
		})
	}
}

// gpuChoice: the ranks of a node take different GPUs.
func gpuChoice(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		ranks int
		env   []string
		want  []int
	}{
		{"each sees all", 3, []string{"FAKECUDA_DEVICES=4"}, []int{0, 1, 2}},
		{"each sees its own", 2, []string{rankEnv + "=1:FAKECUDA_MIG=1"}, []int{0, 0}}, // of one GPU's parts
		{"one sees more", 2, []string{rankEnv + "=1:FAKECUDA_DEVICES=2"}, []int{0, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			status, out := run(t, tc.ranks, "sum", append([]string{"FAKECUDA_DEVICES=1"}, tc.env...),
				"--device", "cuda", "--log-ranks", "all", "--log-format", "json")
			started := 0
			for line := range strings.Lines(out) {
				var start struct {
					Message, Device, Collectives, Why, PCI, CUDA, NVRTC, NCCL string
					Rank, GPU                                                 int
				}
				if json.Unmarshal([]byte(line), &start) != nil || start.Message != "start" {
					continue
				}
				started++
				gpu := tc.want[start.Rank]
				if start.GPU != gpu || start.PCI != fmt.Sprintf("0000:%x:00.0", 0x3a+gpu) ||
					start.Device != "Fake GPU" || start.Collectives != "nccl" ||
					start.Why == "" || start.CUDA != "13.0" || start.NVRTC == "" || start.NCCL != "2.28.3" {
					t.Errorf("rank %d, which is to have GPU %d: %s", start.Rank, gpu, line)
				}
			}
			if status != 0 || started != tc.ranks {
				t.Errorf("status %d, %d ranks started:\n%s", status, started, out)
			}
		})
	}
}
