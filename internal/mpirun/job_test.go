package mpirun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ran is how many tests this process has run before, as a rank.
var ran int

// envPids is a folder in which each rank of TestHelperJob leaves its process id.
const envPids = "LOCKSTEP_MPIRUN_PIDS"

// TestHelperJob is tests of all kinds, one after another, each on two ranks.
func TestHelperJob(t *testing.T) {
	if os.Getenv(envHelper) == "" {
		t.Skip("helper of TestJob")
	}
	// after passes where its ranks have run n tests before.
	after := func(n int, also func(t *testing.T)) func(t *testing.T) {
		return func(t *testing.T) {
			Run(t, []int{2}, func(t *testing.T) {
				if ran != n {
					t.Errorf("this rank has run %d tests before, want %d", ran, n)
				}
				ran++
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
			Timeout = 8 * time.Second
			t.Cleanup(func() { Timeout = 0 })
			strikes(func(*testing.T) { select {} })(t)
		}},
		{"after hang", after(0, nil)},
		{"noise in the end", after(1, func(*testing.T) { fmt.Println(strings.Repeat("noise\n", 1000)) })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if dir := os.Getenv(envPids); onRank() && os.WriteFile(filepath.Join(dir, fmt.Sprint(os.Getpid())), nil, 0o666) != nil {
				t.Fatal("the folder of process ids is not there")
			}
			tc.fn(t)
		})
	}
}

// Of many tests in one job each is shown as it went, the one behind a failure finds a new job, and no process is left.
func TestJob(t *testing.T) {
	t.Parallel()
	pids := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHelperJob$", "-test.v", "-test.timeout=1h")
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
		"fatal":      {"rank 1| ", "job_test.go", "the fatal message", "2 tests and then TestHelperJob/skip, TestHelperJob/after_skips, TestHelperJob/a_variable_of_its_own, TestHelperJob/without_the_variable, TestHelperJob/the_first_job_again before"},
		"panic":      {"rank 1| panic: the panic message"},
		"goroutine":  {"rank 1| panic: panic in a goroutine"},
		"kill":       {"rank 1| about to be killed", "signal 9"},
		"exit":       {"rank 1| about to exit"},
		"before_Run": {"2 ranks were to run TestHelperJob/before_Run, 0 did", "rank 1| ", "rank 1 does not come to Run"},
		"behind_Run": {"rank 1| ", "the end of the test fails"},
		"hang":       {"rank 1| panic: test timed out after"},
		"skip":       {"nothing to do here"},
	} {
		result := "FAIL"
		if name == "skip" {
			result = "SKIP"
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
		state, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) && !regexp.MustCompile(`\) [ZX] `).Match(state) {
			t.Errorf("process %s is left: %s, %v", e.Name(), state, err)
		}
	}
}

// What fails in AtEnd, when no test is there to be told, fails the run.
func TestHelperEnd(t *testing.T) {
	if os.Getenv(envHelper) == "" {
		t.Skip("helper of TestJobEnd")
	}
	Run(t, []int{1}, func(t *testing.T) {
		AtEnd(func() error { fmt.Println("the last"); return nil })
		AtEnd(func() error { return errors.New("it does not end well") })
	})
}

func TestJobEnd(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperEnd$", "-test.v")
	cmd.Env = append(os.Environ(), envHelper+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--- PASS: TestHelperEnd") || !strings.Contains(string(out), "rank 0| it does not end well") {
		t.Errorf("%v\n%s", err, out)
	}
	if AtEnd(func() error { return nil }) {
		t.Error("AtEnd is taken where no job will end")
	}
}
