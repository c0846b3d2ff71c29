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
	x, err := spmd.AllocSymmetric[float32](w, 1<<18)
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

// gpuPaths: which communicator carries a call on symmetric memory, and who decided so.
func gpuPaths(t *testing.T) {
	cache := t.TempDir()
	copyKernels(t, cache)
	t.Parallel()
	file := filepath.Join(cache, "symmetric-paths")
	start := func(args ...string) (out string, made int, comms []string) {
		t.Helper()
		logs := t.TempDir()
		env := rankEnv + "=LOCKSTEP_CACHE=" + cache + ";FAKECUDA_LOG=" + logs + "/%r;FAKENCCL_LOG=" +
			logs + "/%r;FAKECUDA_MEMORY=300000000"
		status, out := run(t, 2, "paths", []string{env}, append(args, "--device", "cuda")...)
		if status != 0 {
			t.Fatalf("status %d\n%s", status, out)
		}
		log, err := os.ReadFile(filepath.Join(logs, "1"))
		must(t, err)
		ahead := ""
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
		return out, made, comms[max(0, len(comms)-5):]
	}
	out, made, _ := start()
	lines, err := os.ReadFile(file)
	if err != nil || !strings.Contains(out, "measured now") || made != 2 || strings.Count(string(lines), "\n") != 1 {
		t.Fatalf("the first run: %d times memory, %q, %v; want a measurement, which is kept\n%s", made, lines, err, out)
	}
	_, key, _ := strings.Cut(string(lines), "\t")
	for _, want := range []string{"2 ranks on one node, windows apart, ", "NCCL 2."} {
		if !strings.Contains(key, want) {
			t.Errorf("the key is %q, want %q in it", key, want)
		}
	}
	testkit.More(t, 7, "files of measured paths")
	for i, tc := range []struct {
		name string
		set  map[int]int // row of paths: the size that goes to the symmetric kernels, as a power of two
		args []string
		says string
		want []string
	}{
		{"small ones", map[int]int{0: 8}, nil, "earlier run",
			[]string{"AllReduce 2, filled", "AllReduce 1", "AllGather 1", "AllReduce 1", "AllReduce 1"}},
		{"large ones and others", map[int]int{0: 19, 2: 9}, nil, "earlier run",
			[]string{"AllReduce 1", "AllReduce 2, filled", "AllGather 2, filled", "AllReduce 1", "AllReduce 1"}},
		{"what is not called", map[int]int{3: 8}, nil, "earlier run",
			[]string{"AllReduce 1", "AllReduce 1", "AllGather 1", "AllReduce 1", "AllReduce 1"}},
		{"always", nil, []string{"--symmetric", "always"}, "",
			[]string{"AllReduce 2, filled", "AllReduce 2, filled", "AllGather 2, filled", "AllReduce 1",
				"AllReduce 1"}},
		{"never", nil, []string{"--symmetric", "never"}, "",
			[]string{"AllReduce 1", "AllReduce 1", "AllGather 1", "AllReduce 1", "AllReduce 1"}},
	} {
		if !testkit.AllCases() && i%2 == 0 {
			continue
		}
		must(t, os.WriteFile(file, []byte(pathsLine(tc.set, '1')+"\t"+key), 0o666))
		out, made, got := start(tc.args...)
		if !strings.Contains(out, tc.says) || made != 1 || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %d times memory, %q, want once and %q\n%s", tc.name, made, got, tc.want, out)
		}
	}
	for name, damage := range map[string]string{"cut": string(lines[:len(lines)/2]),
		"of another machine": pathsLine(nil, 0) + "\tmore " + key,
		"of another version": "0 0 0\t" + key, "no way": pathsLine(map[int]int{0: 8}, '7') + "\t" + key,
		"a way that is not to be had":          pathsLine(map[int]int{2: 8}, '2') + "\t" + key,
		"symmetric kernels that there are not": pathsLine(map[int]int{1: 8}, '1') + "\t" + key} {
		if !testkit.AllCases() && name != "cut" && name != "a way that is not to be had" {
			continue
		}
		must(t, os.WriteFile(file, []byte(damage), 0o666))
		if out, made, _ := start(); made != 2 || !strings.Contains(out, "measured now") {
			t.Errorf("a file that is %s: %d times memory, want it to be measured again\n%s", name, made, out)
		}
	}
}
