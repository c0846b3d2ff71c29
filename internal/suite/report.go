package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// slowest is how many tests are shown.
const slowest = 20

// event is a line of go test -json. Source: go doc test2json.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// key is a test, or the words of a package outside of tests if Test is "".
type key struct{ Package, Test string }

// took is how long a test took, or a package, which is "".
type took struct {
	key
	seconds float64
}

// report gathers the words of go test, and shows what a person wants of them.
type report struct {
	out    io.Writer
	said   map[key]*strings.Builder
	tests  []took
	more   int      // tests and cases that make test-all has more
	own    []string // ends of Open MPI's own
	failed []string
}

func newReport(out io.Writer) *report {
	return &report{out: out, said: map[key]*strings.Builder{}}
}

// These are the lines of the log that count, behind the place in the source.
var (
	moreLine = regexp.MustCompile(`make test-all has more: (\d+) `)
	ownLine  = regexp.MustCompile(`Open MPI's own: .*`)
)

// line takes a line of go test.
func (r *report) line(text []byte) {
	var e event
	if json.Unmarshal(text, &e) != nil {
		fmt.Fprintf(r.out, "%s", text) // go test prints some of its own
		return
	}
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.output(k, e.Output)
	case "fail":
		if e.Test == "" {
			r.failed = append(r.failed, e.Package)
		}
		r.show(k)
		r.over(k, e.Elapsed)
	case "pass", "skip":
		if e.Test == "" {
			r.lastLine(k)
		}
		r.over(k, e.Elapsed)
	}
}

func (r *report) output(k key, text string) {
	if m := moreLine.FindStringSubmatch(text); m != nil {
		n := 0
		_, _ = fmt.Sscan(m[1], &n) // digits
		r.more += n
	}
	if own := ownLine.FindString(text); own != "" {
		where := strings.TrimSuffix(k.Package+" "+k.Test, " ")
		r.own = append(r.own, where+": "+own)
	}
	b := r.said[k]
	if b == nil {
		b = &strings.Builder{}
		r.said[k] = b
	}
	if b.Len() < 1<<20 { // of an output without end
		b.WriteString(text)
	}
}

// show prints the words of a test, or of a package outside of its tests.
func (r *report) show(k key) {
	if b := r.said[k]; b != nil {
		fmt.Fprint(r.out, b)
	}
}

// lastLine returns the line by which go test says how a package went.
func (r *report) lastLine(k key) {
	b := r.said[k]
	if b == nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "[no test files]") {
		fmt.Fprintln(r.out, last)
	}
}

func (r *report) over(k key, seconds float64) {
	delete(r.said, k)
	r.tests = append(r.tests, took{k, seconds})
}

// end prints the results when all is over. used is by package, of which there are programs with
// tests; tool is go test's own, with all of them.
func (r *report) end(used []usage, programs int, costs bool, wall time.Duration, tool usage) {
	if costs {
		r.costs(used)
	}
	for _, own := range r.own {
		fmt.Fprintln(r.out, own)
	}
	if len(r.own) > 0 {
		fmt.Fprintf(r.out, "Open MPI's own end went wrong %d times; the jobs ran again\n", len(r.own))
	}
	if r.more > 0 {
		fmt.Fprintf(r.out, "make test-all has more: %d packages, and %d tests and cases of these %d\n",
			programs-len(used), r.more, len(used))
	}
	tests := usage{}
	for _, u := range used {
		tests.User += u.User
		tests.System += u.System
	}
	total := tool.User + tool.System
	fmt.Fprintf(r.out, "%.0f s; %.0f CPU s, of which the tests took %.0f (%.0f the kernel's) and the compiler and "+
		"the linker %.0f\n", wall.Seconds(),
		total.Seconds(), (tests.User + tests.System).Seconds(), tests.System.Seconds(),
		(total - tests.User - tests.System).Seconds())
	if len(r.failed) > 0 {
		fmt.Fprintf(r.out, "FAIL: %s\n", strings.Join(r.failed, " "))
	}
}

// machine says what the tests ran on: among other things how long it takes for additions that wait
// for each other.
func machine() string {
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	_, model, _ := strings.Cut(string(cpu), "model name\t: ")
	model, _, _ = strings.Cut(model, "\n")
	commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	begun, sum := time.Now(), 0.0
	for range 500_000_000 {
		sum += 1
	}
	return fmt.Sprintf("%s, %d cores, %.0f additions in %.2f s, commit %s", model, runtime.NumCPU(), sum,
		time.Since(begun).Seconds(), strings.TrimSpace(string(commit)))
}

// costs prints the machine, the slowest tests, and the usage of each package.
func (r *report) costs(used []usage) {
	fmt.Fprintf(r.out, "\n%s\n", machine())
	slices.SortStableFunc(r.tests, func(a, b took) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintf(r.out, "\n%8s  the %d slowest tests\n", "s", slowest)
	n := 0
	for _, t := range r.tests {
		if t.Test == "" || strings.Contains(t.Test, "/") || n == slowest {
			continue
		}
		n++
		fmt.Fprintf(r.out, "%8.1f  %s %s\n", t.seconds, t.Package, t.Test)
	}
	top, err := os.Getwd()
	if err != nil {
		top = ""
	}
	slices.SortStableFunc(used, func(a, b usage) int { return cmp.Compare(b.User+b.System, a.User+a.System) })
	fmt.Fprintf(r.out, "\n%8s %8s  package\n", "CPU s", "kernel's")
	for _, u := range used {
		name, err := filepath.Rel(top, u.Dir)
		if err != nil {
			name = u.Dir
		}
		fmt.Fprintf(r.out, "%8.1f %8.1f  %s\n", (u.User + u.System).Seconds(), u.System.Seconds(), name)
	}
	fmt.Fprintln(r.out)
}
