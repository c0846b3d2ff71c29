package spmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
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
	c, small, half := w.Comm.On(s), x.Slice(0, 64), x.Slice(0, x.Len()/2)
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

// gpuPaths: which communicator carries a call on symmetric memory, and where that is from.
func gpuPaths(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	file := filepath.Join(cache, "symmetric-paths")
	start := func(args ...string) (out string, made int, comms []string) {
		t.Helper()
		logs := t.TempDir()
		env := rankEnv + "=LOCKSTEP_CACHE=" + cache + ";FAKECUDA_LOG=" + logs + "/%r;FAKENCCL_LOG=" + logs + "/%r;FAKECUDA_MEMORY=300000000"
		status, out := run(t, 2, "paths", []string{env}, append(args, "--device", "cuda")...)
		if status != 0 {
			t.Fatalf("status %d\n%s", status, out)
		}
		log, err := os.ReadFile(filepath.Join(logs, "1"))
		must(t, err)
		for _, line := range logLines(string(log)) {
			switch name, _, _ := strings.Cut(line, " "); name {
			case "ncclAllReduce", "ncclAllGather":
				comms = append(comms, name[4:]+" "+value(line, "comm"))
			case "ncclMemAlloc":
				made++
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
	for _, want := range []string{"2 ranks on one node", "NCCL 2."} {
		if !strings.Contains(key, want) {
			t.Errorf("the key is %q, want %q in it", key, want)
		}
	}
	for _, tc := range []struct {
		name, file string
		args       []string
		says       string
		made       int
		want       []string
	}{
		{"small ones", fmt.Sprintf("%x 0 0\t", 1<<8) + key, nil, "earlier run", 1, []string{"AllReduce 2", "AllReduce 1", "AllGather 1", "AllReduce 1", "AllReduce 1"}},
		{"large ones and others", fmt.Sprintf("%x %x 0\t", 1<<19, 1<<9) + key, nil, "earlier run", 1, []string{"AllReduce 1", "AllReduce 2", "AllGather 2", "AllReduce 1", "AllReduce 1"}},
		{"always", "", []string{"--symmetric", "always"}, "", 1, []string{"AllReduce 2", "AllReduce 2", "AllGather 2", "AllReduce 1", "AllReduce 1"}},
		{"never", "", []string{"--symmetric", "never"}, "", 1, []string{"AllReduce 1", "AllReduce 1", "AllGather 1", "AllReduce 1", "AllReduce 1"}},
	} {
		must(t, os.WriteFile(file, []byte(tc.file), 0o666))
		out, made, got := start(tc.args...)
		if !strings.Contains(out, tc.says) || made != tc.made || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %d times memory, %q, want %d and %q\n%s", tc.name, made, got, tc.made, tc.want, out)
		}
	}
	for name, damage := range map[string]string{"cut": string(lines[:len(lines)/2]), "of another machine": "ff ff ff\t" + "more " + key, "no numbers": "x\t" + key} {
		must(t, os.WriteFile(file, []byte(damage), 0o666))
		if out, made, _ := start(); made != 2 || !strings.Contains(out, "measured now") {
			t.Errorf("a file that is %s: %d times memory, want it to be measured again\n%s", name, made, out)
		}
	}
}

// Both communicators give the same results, whatever the path.
func TestSymmetricPaths(t *testing.T) {
	spmdtest.Run(t, []int{2, 3, 4}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "s")
		c, ranks := w.Comm.On(s), w.Size()
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
