package spmd_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// symmetricCalls makes a small and a large call on symmetric memory, one on other memory
// and one on both.
func symmetricCalls(w *spmd.World) error {
	s, err := w.NewStream("work")
	if err != nil {
		return err
	}
	x, err := spmd.AllocSymmetric[float32](w, 1<<20)
	if err != nil {
		return err
	}
	y, err := spmd.Alloc[float32](w, 64)
	if err != nil {
		return err
	}
	c, small, half := w.Comm().On(s), x.Slice(0, 64), x.Slice(0, x.Len()/2)
	for _, call := range []func() error{
		func() error { return spmd.AllReduce(c, small, small, spmd.Sum) },
		func() error { return spmd.AllReduce(c, half, half, spmd.Sum) },
		func() error { return spmd.AllGather(c, x.Slice(0, 64*w.Size()), x.Slice(1024, 1024+64)) },
		func() error { return spmd.AllReduce(c, y, y, spmd.Sum) },
		func() error { return spmd.AllReduce(c, y, small, spmd.Sum) },
	} {
		if err := call(); err != nil {
			return err
		}
	}
	return s.Synchronize()
}

// gpuPaths: which communicator carries a call on symmetric memory.
func gpuPaths(t *testing.T) {
	t.Parallel()
	testkit.More(t, 3, "machines and settings of symmetric memory")
	const unknown = "it is not known where they are faster on 2 ranks with Fake GPU"
	for i, tc := range []struct {
		name, gpu string
		args      []string
		says      string
		want      []string
	}{
		{"as measured", "NVIDIA H200", nil, "",
			[]string{"AllReduce 1", "AllReduce 2, filled", "AllGather 1", "AllReduce 1", "AllReduce 1"}},
		{"not measured", "Fake GPU", nil, unknown,
			[]string{"AllReduce 1", "AllReduce 1", "AllGather 1", "AllReduce 1", "AllReduce 1"}},
		{"always", "Fake GPU", []string{"--symmetric", "always"}, "",
			[]string{"AllReduce 2, filled", "AllReduce 2, filled", "AllGather 2, filled", "AllReduce 1",
				"AllReduce 1"}},
		{"never", "NVIDIA H200", []string{"--symmetric", "never"}, "",
			[]string{"AllReduce 1", "AllReduce 1", "AllGather 1", "AllReduce 1", "AllReduce 1"}},
	} {
		if !testkit.AllCases() && i > 0 {
			break
		}
		logs := t.TempDir()
		env := rankEnv + "=FAKECUDA_LOG=" + logs + "/%r;FAKENCCL_LOG=" + logs + "/%r;FAKECUDA_MEMORY=300000000"
		status, out := run(t, 2, "paths", []string{env, "FAKECUDA_NAME=" + tc.gpu},
			append(tc.args, "--device", "cuda")...)
		log, err := os.ReadFile(filepath.Join(logs, "1"))
		if status != 0 || err != nil {
			t.Fatalf("%s: status %d, %v\n%s", tc.name, status, err, out)
		}
		ahead, made := "", 0
		var comms []string
		for _, line := range testkit.LogLines(string(log)) {
			name, _, _ := strings.Cut(line, " ")
			switch name {
			case "ncclAllReduce", "ncclAllGather":
				comms = append(comms, name[4:]+" "+value(line, "comm"))
				if strings.HasPrefix(ahead, "cuMemset") {
					comms[len(comms)-1] += ", filled"
				}
			case "ncclMemAlloc":
				made++
			}
			if !strings.HasPrefix(name, "ncclGroup") {
				ahead = name
			}
		}
		if got := comms[max(0, len(comms)-5):]; made != 1 || !slices.Equal(got, tc.want) ||
			strings.Contains(out, unknown) != (tc.says != "") {
			t.Errorf("%s: %d times memory, %q, want once and %q\n%s", tc.name, made, got, tc.want, out)
		}
	}
}
