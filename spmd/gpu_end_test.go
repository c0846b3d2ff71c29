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
	"lockstep/spmd/internal/kernels"
)

// copyKernels copies all kernels, compiled, into a folder, and returns the name of one.
func copyKernels(t *testing.T, dir string) (one string) {
	t.Helper()
	must(t, os.CopyFS(dir, os.DirFS(os.Getenv("LOCKSTEP_CACHE"))))
	entries, err := os.ReadDir(dir)
	must(t, err)
	return entries[0].Name()
}

// gpuKernels: the first rank of the node compiles what is missing and the others receive. A
// compiled kernel is used again, unless it is damaged.
func gpuKernels(t *testing.T) {
	sources := len(kernels.All()) // of the framework, of parallel, and of these tests
	cache := t.TempDir()
	missing := copyKernels(t, filepath.Join(cache, "0"))
	must(t, os.Remove(filepath.Join(cache, "0", missing)))
	t.Parallel()
	start := func() (first, second []os.FileInfo) {
		t.Helper()
		logs := t.TempDir()
		status, out := run(t, 2, "sum", []string{rankEnv + "=LOCKSTEP_CACHE=" + cache +
			"/%r;FAKECUDA_LOG=" + logs + "/%r"}, "--device", "cuda")
		if status != 0 {
			t.Fatalf("status %d\n%s", status, out)
		}
		for _, rank := range []string{"0", "1"} {
			log, err := os.ReadFile(filepath.Join(logs, rank))
			must(t, err)
			if n := strings.Count(string(log), "cuModuleLoadDataEx "); n != sources ||
				!strings.Contains(string(log), "cuFuncLoad function=nop ") ||
				!strings.Contains(string(log), "cuFuncLoad function=_Z5weighI") {
				t.Errorf("rank %s loads %d modules, want the %d of the framework and the tests, with their kernels",
					rank, n, sources)
			}
		}
		list := func(rank string) (files []os.FileInfo) {
			entries, err := os.ReadDir(filepath.Join(cache, rank))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			for _, e := range entries {
				info, err := e.Info()
				must(t, err)
				files = append(files, info)
			}
			return files
		}
		return list("0"), list("1")
	}
	same := func(a, b []os.FileInfo) bool {
		return slices.EqualFunc(a, b, func(a, b os.FileInfo) bool {
			return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
		})
	}
	first, second := start()
	if len(first) != sources || len(second) != 0 {
		t.Fatalf("rank 0 has %d compiled sources and rank 1 %d, want %d and none", len(first), len(second), sources)
	}
	if again, second := start(); !same(first, again) || len(second) != 0 {
		t.Error("at the second start the kernels were compiled again")
	}
	damaged := filepath.Join(cache, "0", first[0].Name())
	whole, err := os.ReadFile(damaged)
	must(t, err)
	must(t, os.WriteFile(damaged, whole[:len(whole)-3], 0o644))
	third, _ := start()
	if got, err := os.ReadFile(damaged); err != nil || string(got) != string(whole) {
		t.Errorf("a damaged file of %d bytes is not replaced: %v", len(got), err)
	}
	if !same(first[1:], third[1:]) {
		t.Error("what is not damaged was compiled again")
	}
}

// wantOrder checks that a log holds nothing out of the order of destruction: graphs, then
// communicators, each after its registrations, then memory, then the GPU.
func wantOrder(t *testing.T, lines []string) {
	t.Helper()
	rank := map[string]int{"cuGraphExecDestroy": 1, "ncclCommWindowDeregister": 2, "ncclCommDeregister": 2,
		"ncclCommFinalize": 2, "ncclCommDestroy": 2,
		"ncclCommAbort": 2, "ncclMemFree": 3, "cuMemFree_v2": 3, "cuMemFreeHost": 3, "cuDevicePrimaryCtxRelease_v2": 4}
	at, before := 0, ""
	ended := map[string]bool{}
	for _, line := range lines {
		name, _, _ := strings.Cut(line, " ")
		switch comm := value(line, "comm"); {
		case name == "ncclCommFinalize":
			ended[comm] = true
		case strings.HasSuffix(name, "Deregister") && ended[comm]:
			t.Errorf("%q comes after the end of the communicator", line)
		}
		if now := rank[name]; now > 0 && now < at {
			t.Errorf("%q comes after %q", line, before)
		} else if now > 0 {
			at, before = now, line
		}
	}
}

// ending checks the log when the world has been closed.
func ending(t *testing.T, more func(lines []string)) {
	newCalls(t)
	t.Cleanup(func() {
		lines := newCalls(t)
		wantOrder(t, lines)
		if last := lines[len(lines)-1]; !strings.HasSuffix(last,
			"refs=0 streams=0 events=0 graphs=0 execs=0 modules=0 bytes=0 = 0") {
			t.Errorf("the end is %q, want all given back", last)
		}
		if more != nil {
			more(lines)
		}
	})
}

func count(lines []string, name string) int {
	n := 0
	for _, line := range lines {
		if strings.HasPrefix(line, name+" ") {
			n++
		}
	}
	return n
}

// gpuAfterError: after an error of run nothing is destroyed out of its order.
func gpuAfterError(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 2} {
		logs := t.TempDir()
		status, out := run(t, n, "a graph is left",
			[]string{rankEnv + "=FAKECUDA_LOG=" + logs + "/%r;FAKENCCL_LOG=" + logs + "/%r"}, "--device", "cuda")
		if status != 1 || strings.Count(out, "the last rank fails") != 1 {
			t.Errorf("%d ranks: status %d\n%s", n, status, out)
		}
		for r := range max(n, 1) {
			log, err := os.ReadFile(filepath.Join(logs, fmt.Sprint(r)))
			must(t, err)
			lines := testkit.LogLines(string(log))
			if count(lines, "cuGraphInstantiateWithFlags") == 0 {
				t.Errorf("rank %d of %d made no graph", r, n)
			}
			wantOrder(t, lines)
		}
	}
}
