package attention

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/spmdtest"
)

// Doubles of the driver and of cuDNN compute what the plans say. The test looks at the path, its
// agreement over the ranks, the capture, and the order of closing.
func TestCuDNN(t *testing.T) {
	if os.Getenv(doublesEnv) == "" {
		spmdtest.HostOnly(t, "test doubles are for machines without a GPU")
		if err := nvrtc.Load(); err != nil {
			t.Skip(err)
		}
		dir := t.TempDir()
		testkit.BuildCUDA(t, dir)
		testkit.BuildLibrary(t, dir, "libcudnn.so.9", "-O2",
			filepath.Join("..", "..", "cuda", "cudnn", "testdata", "fakecudnn.c"), "-lm")
		testkit.BuildLibrary(t, dir, "libnccl.so.2", filepath.Join("..", "..", "nccl", "testdata", "fakenccl.c"))
		t.Setenv(doublesEnv, dir)
		t.Setenv("SPMDTEST_DEVICE", "cuda")
		t.Setenv("SPMDTEST_COLLECTIVES", "mpi") // the doubles of NCCL talk to no other rank
		t.Setenv("FAKECUDA_DEVICES", "3")
		t.Setenv("FAKECUDA_MAJOR", "8") // where cuDNN comes first
		t.Setenv("LD_LIBRARY_PATH", dir)
		spmdtest.Must(t, kernels.Fill(filepath.Join(dir, "cache"), 80))
		t.Setenv("LOCKSTEP_CACHE", filepath.Join(dir, "cache"))
	}
	t.Run("path", func(t *testing.T) { spmdtest.Run(t, []int{1}, cudnnPathTaken) })
	t.Run("agreed", func(t *testing.T) { spmdtest.Run(t, []int{3}, cudnnAgreed) })
	t.Run("closed", func(t *testing.T) { spmdtest.RunAlone(t, []int{1}, cudnnClosed) })
}

func cudnnPathTaken(t *testing.T, w *spmd.World) {
	s := stream(t, w)
	for _, deterministic := range []bool{true, false} {
		// By its name: the doubles run no kernel, and without a name the deterministic backward
		// pass is one.
		o := Options{Path: "cudnn", Deterministic: deterministic}
		a := attentionOf[spmd.BF16](t, w, doubled, o)
		if a.path != "cudnn" || !strings.HasPrefix(a.why, "cuDNN 9.14.0, its engines timed in ") ||
			a.Workspace() == 0 {
			t.Errorf("path %q, why %q, workspace %d", a.path, a.why, a.Workspace())
		}
		j := newJob(t, w, s, a, 1)
		j.check(1)
		if a := attentionOf[spmd.BF16](t, w, doubled, o); a.why != "cuDNN 9.14.0" {
			t.Errorf("why %q the second time", a.why)
		}

		if most := Workspace[spmd.BF16](doubled, o); deterministic && a.Workspace() > most+4096 {
			t.Errorf("workspace of %d bytes, at most %d were announced", a.Workspace(), most)
		}
		// Each replay computes anew.
		g, err := s.Capture(func() error {
			if err := j.forward(); err != nil {
				return err
			}
			return j.backward()
		})
		must(t, err)
		for range 2 {
			j.poison()
			must(t, g.Launch(s))
			j.compare(1)
		}
		must(t, g.Close())
	}

	// The shape decides, one by one.
	a := attentionOf[spmd.BF16](t, w, doubled, Options{})
	one, err := a.For(1, 128)
	must(t, err)
	newJob(t, w, s, one, 1).check(1)
	odd, err := a.For(1, 200)
	must(t, err)
	if one.path != "cudnn" || odd.path != "mma" || !strings.Contains(odd.why, "cudnn: ") ||
		!strings.Contains(odd.why, "200 tokens") {
		t.Errorf("paths %q and %q, why %q", one.path, odd.path, odd.why)
	}
	for shape, want := range map[Shape][]string{
		{1, 64, 2, 12, 0}:  {"simple", "64 tokens", "; mma: heads of 12 channels"},
		{1, 128, 2, 12, 0}: {"simple", "cudnn: ", "12 channels", "; mma: heads of 12 channels"},
	} {
		a := attentionOf[spmd.BF16](t, w, shape, Options{})
		for _, part := range want[1:] {
			if a.path != want[0] || !strings.Contains(a.why, part) {
				t.Errorf("%v: path %q, why %q, want %q", shape, a.path, a.why, want)
			}
		}
	}
	if a := attentionOf[float32](t, w, doubled, Options{}); a.path != "simple" || a.why != "float32" {
		t.Errorf("path %q, why %q", a.path, a.why)
	}
	if a := attentionOf[spmd.BF16](t, w, doubled, Options{Path: "mma"}); a.path != "mma" || a.why != "asked for" {
		t.Errorf("path %q, why %q", a.path, a.why)
	}

	// Operands that the library would take wrongly.
	j := newJob(t, w, s, a, 1)
	if err := a.Forward(s, j.outB.Slice(1, j.outB.Len()), j.lseB, j.qkvB); err == nil ||
		!strings.Contains(err.Error(), "16 bytes") {
		t.Errorf("out that is not aligned: %v", err)
	}
	if n := testkit.Allocations(5, func() { // of the mma path nothing runs on the double
		must(t, odd.Forward(s, j.outB, j.lseB, j.qkvB))
		must(t, odd.Backward(s, j.dqkvB, j.doutB, j.outB, j.lseB, j.qkvB))
		must(t, j.forward())
		must(t, j.backward())
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// No rank takes a path that one rank lacks, and each says why.
func cudnnAgreed(t *testing.T, w *spmd.World) {
	for _, tc := range []struct{ variable, value, why string }{
		{"FAKECUDNN_FAIL", "cudnnCreate=1001", "CUDNN_STATUS_NOT_INITIALIZED"}, // no library that works
		{"FAKECUDNN_ENGINES", "0", "no engine"},                                // nothing for the shape
		{"FAKECUDNN_FAIL", "cudnnBackendFinalize=4000", "INTERNAL_ERROR"},
	} {
		if w.Rank() == 1 {
			must(t, os.Setenv(tc.variable, tc.value))
		} else {
			tc.why = "rank 1 lacks it"
		}
		a, err := New[spmd.BF16](w, doubled, Options{})
		must(t, err)
		if a.path != "mma" || !strings.Contains(a.why, "cudnn: ") || !strings.Contains(a.why, tc.why) {
			t.Errorf("%s: path %q, why %q, want %q", tc.value, a.path, a.why, tc.why)
		}
		must(t, a.Close())
		if _, err := New[spmd.BF16](w, doubled, Options{Path: "cudnn"}); err == nil ||
			!strings.Contains(err.Error(), tc.why) {
			t.Errorf("%s: cudnn asked for: %v, want %q", tc.value, err, tc.why)
		}
		must(t, os.Unsetenv(tc.variable))
	}
	a := attentionOf[spmd.BF16](t, w, doubled, Options{})
	if a.path != "cudnn" {
		t.Errorf("path %q, why %q", a.path, a.why)
	}
}

// The world closes graphs, then plans, then the GPU. A closed attention is not used.
func cudnnClosed(t *testing.T, w *spmd.World) {
	s, err := w.NewStream("attention")
	must(t, err)
	capture := func(j *job[spmd.BF16]) *spmd.Graph {
		t.Helper()
		must(t, j.forward())
		g, err := s.Capture(j.forward)
		must(t, err)
		return g
	}
	a, err := New[spmd.BF16](w, doubled, Options{})
	must(t, err)
	j := newJob(t, w, s, a, 1)
	g := capture(j)
	must(t, g.Launch(s))
	must(t, s.Synchronize())
	must(t, a.Close())
	for what, err := range map[string]error{"Launch": g.Launch(s), "Forward": j.forward()} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	a, err = New[spmd.BF16](w, doubled, Options{})
	must(t, err)
	for range 2 {
		b, err := a.For(1, 128)
		must(t, err)
		capture(newJob(t, w, s, b, 1))
	}
	dir := t.TempDir()
	log, live := filepath.Join(dir, "log"), filepath.Join(dir, "live")
	for name, value := range map[string]string{"FAKECUDA_LOG": log, "FAKECUDNN_LOG": log, "FAKECUDNN_LIVE": live} {
		must(t, os.Setenv(name, value))
	}
	must(t, w.Close())
	text, err := os.ReadFile(log)
	must(t, err)
	at := func(call string) int {
		t.Helper()
		i := strings.Index(string(text), call)
		if i < 0 {
			t.Fatalf("no %s in\n%s", call, text)
		}
		return i
	}
	if order := []int{at("cuGraphExecDestroy"), at("cudnnBackendDestroyDescriptor"), at("cudnnDestroy"),
		at("cuDevicePrimaryCtxRelease")}; !slices.IsSorted(order) {
		t.Errorf("closed at %v of the log:\n%s", order, text)
	}
	if n, err := os.ReadFile(live); err != nil || strings.TrimSpace(string(n)) != "0" {
		t.Errorf("descriptors left: %s, %v", n, err)
	}
}
