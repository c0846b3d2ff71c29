package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == measure {
		os.Exit(measured(os.Args[2], os.Args[3:]))
	}
	os.Exit(m.Run())
}

// Failures are shown with their words, and each other package with a line. At the end stand the
// lines that count from the logs of all tests.
func TestReport(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out)
	tell := func(e event) {
		b, err := json.Marshal(e)
		testkit.Must(t, err)
		r.line(b)
	}
	for _, e := range []event{
		{Action: "output", Package: "a", Test: "TestGood", Output: "    a_test.go:1: make test-all has more: 3 rows\n"},
		{Action: "output", Package: "a", Test: "TestGood", Output: "    a_test.go:2: not shown\n"},
		{Action: "pass", Package: "a", Test: "TestGood", Elapsed: 7},
		{Action: "output", Package: "a", Output: "Open MPI's own: mpirun crashed in its end\n"},
		{Action: "output", Package: "a", Output: "ok  \ta\t7.1s\n"},
		{Action: "pass", Package: "a", Elapsed: 7.1},
		{Action: "output", Package: "b", Test: "TestBad", Output: "    b_test.go:1: make test-all has more: 2 rows\n"},
		{Action: "output", Package: "b", Test: "TestBad/part", Output: "    b_test.go:3: wrong\n"},
		{Action: "fail", Package: "b", Test: "TestBad/part", Elapsed: 1},
		{Action: "fail", Package: "b", Test: "TestBad", Elapsed: 2},
		{Action: "output", Package: "b", Output: "FAIL\tb\t2.0s\n"},
		{Action: "fail", Package: "b", Elapsed: 2},
		{Action: "build-output", ImportPath: "c", Output: "c.go:1: undefined: x\n"},
	} {
		tell(e)
	}
	r.line([]byte("no JSON\n"))
	r.end([]usage{{"/x/a", 3 * time.Second, time.Second}, {"/x/b", time.Second, 0}}, 7, true, time.Minute,
		usage{"", 9 * time.Second, time.Second})
	for _, want := range []string{"ok  \ta\t7.1s\n", "b_test.go:3: wrong\n", "FAIL\tb\t2.0s\n",
		"c.go:1: undefined: x\n", "no JSON\n", "a: Open MPI's own: mpirun crashed in its end\n", "went wrong 1 times",

		"has more: 5 packages, and 5 tests and cases of these 2\n", "     7.0  a TestGood\n",
		"     2.0  b TestBad\n", "     4.0      1.0  ",
		"60 s; 10 CPU s, of which the tests took 5 (1 the kernel's)", "\nFAIL: b\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "not shown") {
		t.Errorf("what a good test says is shown:\n%s", &out)
	}
}

// A test program's usage includes the processes that it started, and its status is passed on.
func TestMeasured(t *testing.T) {
	for _, status := range []int{0, 3} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], measure, dir, "sh", "-c",
			`sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; exit "$1"`, "sh", string(rune('0'+status)))
		_ = cmd.Run() // the status is looked at
		used, err := usages(dir)
		if err != nil || len(used) != 1 || used[0].User < 10*time.Millisecond || cmd.ProcessState.ExitCode() != status {
			t.Errorf("%v, %v, status %d, want %d", used, err, cmd.ProcessState.ExitCode(), status)
		}
	}
}
