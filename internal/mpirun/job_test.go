package mpirun

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/process"
	"lockstep/internal/testkit"
)

// ran is how many tests this process has run before, as a rank.
var ran int

// envPids is a folder in which each rank of TestHelperJob leaves its process id.
const envPids = "LOCKSTEP_MPIRUN_PIDS"

// TestHelperJob has tests of all kinds, one after another, each on two ranks.
func TestHelperJob(t *testing.T) {
	if os.Getenv(envHelper) == "" {
		t.Skip("helper of TestJob")
	}
	// after passes if its ranks have run n tests before.
	after := func(n int, also func(t *testing.T)) func(t *testing.T) {
		return func(t *testing.T) {
			Run(t, []int{2}, func(t *testing.T) {
				if ran != n {
					t.Errorf("this rank has run %d tests before, want %d", ran, n)
				}
				ran++
				t.Logf("a note of a rank that passes")
				if also != nil {
					also(t)
				}
			})
		}
	}
	// strikes fails on rank 1, while rank 0 waits for ever as in a collective.
	strikes := func(fn func(t *testing.T)) func(t *testing.T) {
		return func(t *testing.T) {
			Run(t, []int{2}, func(t *testing.T) {
				if rank() == 0 {
					select {}
				}
				fn(t)
			})
		}
	}
	onRank := func() bool { return served.test != "" }
	for _, tc := range []struct {
		name string
		fn   func(t *testing.T)
	}{
		{"first", after(0, nil)},
		{"second", after(1, func(t *testing.T) { t.Cleanup(func() { fmt.Println("cleaned up") }) })},
		{"skip", after(2, func(t *testing.T) { t.Skip("nothing to do here") })},
		{"skip before Run", func(t *testing.T) { t.Skip("not even begun") }},
		{"after skips", after(3, nil)},
		{"a variable of its own", func(t *testing.T) {
			t.Setenv("SPMDTEST_OF_JOB", "told")
			after(4, func(t *testing.T) {
				if v := os.Getenv("SPMDTEST_OF_JOB"); v != "told" {
					t.Errorf("the variable is %q", v)
				}
			})(t)
		}},
		{"without the variable", after(5, func(t *testing.T) {
			if v, ok := os.LookupEnv("SPMDTEST_OF_JOB"); ok {
				t.Errorf("the variable is still %q", v)
			}
		})},
		{"another environment", func(t *testing.T) { t.Setenv("LOCKSTEP_OF_JOB", "x"); after(0, nil)(t) }},
		{"another folder", func(t *testing.T) { t.Chdir(t.TempDir()); after(0, nil)(t) }},
		{"alone", func(t *testing.T) {
			RunAlone(t, []int{2}, func(t *testing.T) {
				if ran != 0 {
					t.Errorf("this rank has run %d tests", ran)
				}
			})
		}},
		{"the first job again", after(6, nil)},
		{"fatal", strikes(func(t *testing.T) {
			t.Cleanup(func() { select {} }) // as MPI_Finalize would wait
			t.Fatal("the fatal message")
		})},
		{"after fatal", after(0, nil)},
		{"panic", strikes(func(*testing.T) { panic("the panic message") })},
		{"after panic", after(0, nil)},
		{"goroutine", strikes(func(*testing.T) {
			go func() { panic("panic in a goroutine") }()
			select {}
		})},
		{"after goroutine", after(0, nil)},
		{"kill", strikes(func(*testing.T) {
			fmt.Println("about to be killed")
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		})},
		{"after kill", after(0, nil)},
		{"exit", strikes(func(*testing.T) { fmt.Println("about to exit"); os.Exit(0) })},
		{"after exit", after(0, nil)},
		{"before Run", func(t *testing.T) {
			if onRank() && rank() == 1 {
				t.Fatal("rank 1 does not come to Run")
			}
			strikes(func(*testing.T) {})(t)
		}},
		{"after before Run", after(0, nil)},
		{"behind Run", func(t *testing.T) {
			after(1, nil)(t)
			if onRank() && rank() == 1 {
				t.Fatal("the end of the test fails")
			}
		}},
		{"after behind Run", after(0, nil)},
		{"hang", func(t *testing.T) {
			Timeout = hangsFor(t)
			t.Cleanup(func() { Timeout = 0 })
			strikes(func(*testing.T) { select {} })(t)
		}},
		{"after hang", after(0, nil)},
		{"noise in the end", after(1, func(*testing.T) { fmt.Println(strings.Repeat("noise\n", 1000)) })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := os.Getenv(envPids)
			if onRank() && os.WriteFile(filepath.Join(dir, fmt.Sprint(os.Getpid())), nil, 0o666) != nil {
				t.Fatal("the folder of process ids is not there")
			}
			tc.fn(t)
		})
	}
}

// Many tests in one job are shown as they went. The one behind a failure finds a new job, and no
// process is left.
func TestJob(t *testing.T) {
	t.Parallel()
	pids := t.TempDir()
	cmd := exec.CommandContext(Patience(t), os.Args[0], "-test.run=^TestHelperJob$", "-test.v", "-test.timeout=3h")
	cmd.Env = append(os.Environ(), envHelper+"=1", envPids+"="+pids)
	cmd.WaitDelay = time.Second
	b, err := cmd.CombinedOutput()
	out := string(b)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("ended with %v, want status 1 for the tests that fail\n%s", err, out)
	}
	shown := func(name string) string {
		_, text, _ := strings.Cut(out, "=== RUN   TestHelperJob/"+name+"/2_ranks\n")
		text, _, _ = strings.Cut(text, "=== RUN ")
		return text
	}
	for name, want := range map[string][]string{
		"fatal": {"rank 1| ", "job_test.go", "the fatal message",
			"2 tests and then TestHelperJob/skip, TestHelperJob/after_skips, TestHelperJob/a_variable_of_its_own, " +
				"TestHelperJob/without_the_variable, TestHelperJob/the_first_job_again before"},
		"panic":     {"rank 1| panic: the panic message"},
		"goroutine": {"rank 1| panic: panic in a goroutine"},
		"kill":      {"rank 1| about to be killed", "signal 9"},
		"exit":      {"rank 1| about to exit"},
		"before_Run": {"2 ranks were to run TestHelperJob/before_Run, 0 did", "rank 1| ",
			"rank 1 does not come to Run"},
		"behind_Run":  {"rank 1| ", "the end of the test fails"},
		"hang":        {"rank 1| panic: test timed out after"},
		"skip":        {"nothing to do here"},
		"after_skips": {"0-1| ", "a note of a rank that passes"},
	} {
		result := "FAIL"
		switch name {
		case "skip":
			result = "SKIP"
		case "after_skips":
			result = "PASS"
		}
		if !strings.Contains(out, "--- "+result+": TestHelperJob/"+name+"/2_ranks") {
			t.Errorf("%s has no %s", name, result)
		}
		for _, w := range want {
			if !strings.Contains(shown(name), w) {
				t.Errorf("%s: no %q in %s", name, w, shown(name))
			}
		}
	}
	if n := len(regexp.MustCompile(`(?m)^ +--- FAIL: TestHelperJob/`).FindAllString(out, -1)); n != 2*8 {
		t.Errorf("%d tests fail, want 8 and their subtests\n%s", n, out)
	}
	if n := len(regexp.MustCompile(`(?m)^ +--- PASS: TestHelperJob/`).FindAllString(out, -1)); n != 2*18+1 {
		t.Errorf("%d tests pass, want 18 and their subtests, and that whose ranks skip\n%s", n, out)
	}
	if bytes.Count(b, []byte("\n")) > 400 {
		t.Errorf("the output of tests that pass is shown:\n%s", out)
	}
	entries, err := os.ReadDir(pids)
	if err != nil || len(entries) < 2*8 {
		t.Fatalf("%d ranks, %v", len(entries), err)
	}
	for _, e := range entries {
		if !gone(e.Name()) {
			t.Errorf("process %s is left", e.Name())
		}
	}
}

// TestHelperPool has tests on several numbers of ranks. Each leaves its process id in a folder.
func TestHelperPool(t *testing.T) {
	if os.Getenv(envHelper) == "" {
		t.Skip("helper of TestPool")
	}
	dir := os.Getenv(envPids)
	for i, n := range []int{1, 2, 3, 2, 4, 1, 7, 2} {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			Run(t, []int{n}, func(t *testing.T) {
				testkit.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(os.Getpid())), nil, 0o666))
			})
			if served.test != "" {
				return
			}
			pids, err := os.ReadDir(dir)
			testkit.Must(t, err)
			there := 0
			for _, pid := range pids {
				if !gone(pid.Name()) {
					there++
				}
			}
			fmt.Printf("after test %d: %d started, %d there\n", i, len(pids), there)
		})
	}
}

// On GPUs the jobs that wait for tests have few ranks together: the one that has waited longest
// ends before another starts. On the host all wait until the end.
func TestPool(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		device string
		want   []string
	}{
		{"host", []string{"0: 1 started, 1", "1: 3 started, 3", "2: 6 started, 6", "3: 6 started, 6",
			"4: 10 started, 10", "5: 10 started, 10", "6: 17 started, 17", "7: 17 started, 17"}},
		{"cuda", []string{"0: 1 started, 1", "1: 3 started, 3", "2: 6 started, 5", "3: 6 started, 5",
			"4: 10 started, 4", "5: 11 started, 5", "6: 18 started, 7", "7: 20 started, 2"}},
	} {
		t.Run(tc.device, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperPool$", "-test.v")
			cmd.Env = append(os.Environ(), envHelper+"=1", envPids+"="+t.TempDir(), "SPMDTEST_DEVICE="+tc.device)
			b, err := cmd.CombinedOutput()
			for _, want := range tc.want {
				if err != nil || !strings.Contains(string(b), "after test "+want+" there\n") {
					t.Fatalf("%v: no %q in\n%s", err, want, b)
				}
			}
		})
	}
}

// gone says whether a process has ended.
func gone(pid string) bool {
	n, err := strconv.Atoi(pid)
	_, there := process.Of(n)
	return err != nil || !there
}

// envEnd is how the ranks of TestHelperEnd end.
const envEnd = "LOCKSTEP_MPIRUN_END"

// TestHelperEnd passes, in a job that then ends as envEnd says.
func TestHelperEnd(t *testing.T) {
	if os.Getenv(envHelper) == "" {
		t.Skip("helper of TestJobEnd")
	}
	ranks := []int{3}
	if os.Getenv(envEnd) == "3 jobs" {
		ranks = []int{2, 3, 4}
	}
	Run(t, ranks, func(*testing.T) {
		last := func() error { return nil }
		switch how := os.Getenv(envEnd); {
		case how == "without AtEnd":
			return
		case rank() != 1:
		case how == "an error":
			AtEnd(func() error { fmt.Println("the last"); return nil })
			last = func() error { return errors.New("it does not end well") }
		case how == "exit":
			last = func() error { os.Exit(0); return nil }
		}
		AtEnd(last)
	})
}

// missed is Open MPI 4's output if it believes that a rank has left without MPI_Finalize.
const missed = `--------------------------------------------------------------------------
mpirun has exited due to process rank 1 with PID 0 on
node here exiting improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in
the job did.
--------------------------------------------------------------------------
`

// A job that ends badly fails the run, even after its last test. The job has ended well if mpirun
// only missed that its ranks came through MPI_Finalize, and all of them say that they did.
func TestJobEnd(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, end string
		launcher  string // what mpirun's double does after the ranks' end; "" for mpirun itself
		want      string // a line of the output of a run that fails
		well      string // and of one that does not
	}{
		{"well", "", "", "", "PASS"},
		{"an error", "an error", "", "rank 1| it does not end well", ""},
		{"a rank that exits", "exit", "", "rank 1 did not say that it ended well", ""},
		{"a rank that exits, seen", "exit", "echo '" + missed + "'; exit 1",
			"mpirun| rank 1 on here: exited without leaving MPI", ""},
		{"missed", "", "echo '" + missed + "'; exit 1", "", "mpirun may have missed the end of a rank"},
		{"missed three times", "3 jobs", "echo '" + missed + "'; exit 1",
			"Open MPI's own, 3 times: mpirun may have missed the end of a rank", ""},
		{"missed, and more", "", "echo '" + missed + "'; echo and more; exit 1", "mpirun| and more", ""},
		{"missed, and another status", "", "echo '" + missed + "'; exit 3", "exit status 3", ""},
		{"another reason", "", "echo 'no more room'; exit 1", "mpirun| no more room", ""},
		{"without AtEnd", "without AtEnd", "", "", "PASS"},
		{"MPI without AtEnd", "without AtEnd", "echo '" + missed + "'; exit 1",
			"mpirun| rank 1 on here: exited without leaving MPI", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperEnd$", "-test.v")
			cmd.Env = append(os.Environ(), envHelper+"=1", envEnd+"="+tc.end)
			if tc.launcher != "" {
				cmd.Env = append(cmd.Env, "PATH="+double(t, tc.launcher)+":"+os.Getenv("PATH"))
			}
			b, err := cmd.CombinedOutput()
			out := string(b)
			if !strings.Contains(out, "--- PASS: TestHelperEnd") || (err == nil) != (tc.well != "") ||
				!strings.Contains(out, tc.want+tc.well) {
				t.Errorf("ended with %v, want %q\n%s", err, tc.want+tc.well, out)
			}
		})
	}
	if AtEnd(func() error { return nil }) {
		t.Error("AtEnd is taken where no job will end")
	}
}

// double makes a folder with an mpirun that starts ranks on this machine, waits for them, and then
// does as told.
func double(t *testing.T, then string) string {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\nn=$3; shift 3 # --noprefix -np N\n" +
		"for r in $(seq 0 $((n - 1))); do OMPI_COMM_WORLD_RANK=$r \"$@\" & done\nwait\n" + then + "\n"
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "mpirun"), []byte(script), 0o755))
	return dir
}
