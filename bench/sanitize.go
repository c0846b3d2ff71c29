package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"lockstep/bench/measure"
)

// sanitizers are the tools of compute-sanitizer. memcheck finds accesses out of bounds and failing
// calls of the driver, racecheck races in shared memory, initcheck reads of unwritten memory,
// synccheck barriers that not all threads reach.
var sanitizers = []string{"memcheck", "racecheck", "initcheck", "synccheck"}

// sanitized is a program for the tools.
type sanitized struct {
	name string
	cmd  []string
	env  []string
	dir  string // that it runs in
}

// memcheck counts the findings of compute-sanitizer's tools in the applications, and in the
// examples if `make test-gpu` has built their test.
func (b *bench) memcheck() error {
	data := filepath.Join(b.Dir, "numbers.txt")
	if err := os.WriteFile(data, []byte(measure.Numbers(100_000)), 0o666); err != nil {
		return err
	}
	train := []string{"train", "--data", data, "--cache", b.Dir, "--val-batches", "1"}
	small := append(train[:len(train):len(train)], "--layers", "2", "--channels", "64", "--heads", "2", "--seq", "64",
		"--batch", "2", "--global-batch", "2", "--steps", "4", "--sample", "20")
	wide := append(train[:len(train):len(train)], "--model", "gpt2", "--layers", "1", "--seq", "128", "--batch", "1",
		"--global-batch", "1", "--steps", "3", "--sample", "0", "--dtype", "bfloat16")
	var programs []sanitized
	for _, p := range []struct {
		name string
		cmd  []string
	}{
		{"reduce", []string{"reduce", "--elements", "100001", "--iters", "3"}},
		{"matvec", []string{"matvec", "--rows", "129", "--cols", "1001", "--iters", "3"}},
		{"stencil", []string{"stencil", "--iters", "2", "--warmup", "1"}},
		{"train in float32", append(small[:len(small):len(small)], "--dtype", "float32")},
		{"train in bfloat16", append(small[:len(small):len(small)], "--dtype", "bfloat16")},
		{"train, 768 channels in bfloat16", wide},
	} {
		cmd := append([]string{b.Program(p.cmd[0]), "--device", "cuda", "--log-level", "error"}, p.cmd[1:]...)
		programs = append(programs, sanitized{name: p.name, cmd: cmd})
	}
	examples, err := filepath.Abs(filepath.Join(b.Bin, "test", "docs", "examples", "examples.test"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(examples); err == nil {
		programs = append(programs, sanitized{name: "docs/examples",
			cmd: []string{examples, "-test.run", "^TestPrograms$"},
			env: []string{"SPMDTEST_DEVICE=cuda", "SPMDTEST_RANKS=1"}, dir: filepath.Join("docs", "examples")})
	} else {
		fmt.Fprintln(os.Stderr, "memcheck: docs/examples are left out: make test-gpu builds their test:", err)
	}
	type result struct {
		found int
		err   error
	}
	results := make([]result, len(sanitizers)*len(programs))
	var wait sync.WaitGroup
	free := make(chan struct{}, max(runtime.NumCPU()/2, 1))
	for i := range results {
		free <- struct{}{}
		wait.Go(func() {
			defer func() { <-free }()
			results[i].found, results[i].err = programs[i/len(sanitizers)].under(sanitizers[i%len(sanitizers)])
		})
	}
	wait.Wait()
	for i, r := range results {
		if r.err != nil {
			return r.err
		}
		b.Limit(measure.Row{What: "errors that compute-sanitizer's " + sanitizers[i%len(sanitizers)] + " finds in " +
			programs[i/len(sanitizers)].name, Ranks: 1, Ours: float64(r.found), Unit: "errors", Goal: 0})
	}
	return nil
}

// cublas matches a hazard that racecheck displays inside a kernel of cuBLAS for Hopper, which is
// not ours. If --kernel-name-exclude leaves such kernels out, they fail under the tool.
var cublas = regexp.MustCompile(`Race reported between \w+ access at nvjet_sm90`)

// summary matches a tool's last line for each process.
var summary = regexp.MustCompile(`(?m)(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?$|hazards? displayed)`)

// under runs the program under a tool, and adds up the counts of all processes.
func (p sanitized) under(tool string) (found int, err error) {
	limit := "1"
	if tool == "racecheck" {
		limit = "1000" // it counts what it displays
	}
	cmd := append([]string{"compute-sanitizer", "--tool", tool, "--target-processes", "all", "--print-limit", limit},
		p.cmd...)
	if p.dir != "" {
		cmd = append([]string{"env", "-C", p.dir}, cmd...)
	}
	out, errs, err := measure.Outputs(p.env, cmd...)
	if err != nil {
		return 0, err
	}
	found, err = countOf(out + errs)
	if found > 0 {
		fmt.Fprintf(os.Stderr, "memcheck: %s of %s:\n%s", tool, p.name, findings(out+errs))
	}
	return found, err
}

// findings returns the first lines that a tool prints.
func findings(out string) string {
	var b strings.Builder
	left := 40
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "=========") && left > 0 {
			b.WriteString(line)
			left--
		}
	}
	return b.String()
}

func countOf(out string) (found int, err error) {
	lines := summary.FindAllStringSubmatch(out, -1)
	if len(lines) == 0 {
		return 0, fmt.Errorf("compute-sanitizer printed no summary: %q", out)
	}
	for _, line := range lines {
		n, err := strconv.Atoi(line[1])
		if err != nil {
			return 0, err
		}
		found += n
	}
	return found - len(cublas.FindAllString(out, -1)), nil
}
