package mpirun

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// envHelper makes the TestHelper tests real. They fail by design, each in its own way, and only
// TestRun runs them.
const envHelper = "LOCKSTEP_MPIRUN_HELPER"

// TestHelper runs two ranks of a job of its own, in the way that envHelper names. Rank 0 then waits
// for ever, as in a collective.
func TestHelper(t *testing.T) {
	how := os.Getenv(envHelper)
	fn, ok := map[string]func(t *testing.T){
		"Fatal": func(t *testing.T) {
			t.Cleanup(func() { select {} }) // as MPI_Finalize would wait
			t.Fatal("the fatal message")
		},
		"Nil": func(*testing.T) {
			var p *int
			*p = 1
		},
		"Kill": func(*testing.T) {
			fmt.Println("about to be killed")
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		},
		"Exit": func(*testing.T) {
			fmt.Println("about to exit")
			os.Exit(3)
		},
		"Hook": func(t *testing.T) {
			OnFail = func() {
				fmt.Println("the hook ran")
				os.Exit(4)
			}
			t.Error("an error")
		},
		"Hang":    func(*testing.T) { select {} },
		"Skip":    func(t *testing.T) { t.Skip("nothing to do here") },
		"Missing": func(*testing.T) {},
	}[how]
	switch {
	case !ok:
		t.Skip("helper of TestRun")
	case how == "Hang":
		Timeout = hangsFor(t)
	case how == "Missing":
		t.Setenv("PATH", t.TempDir())
	}
	RunAlone(t, []int{2}, func(t *testing.T) {
		fmt.Printf("rank %d is here\n", rank())
		if rank() == 0 && how != "Skip" {
			select {}
		}
		fn(t)
	})
}

// hangsFor returns how long a test may go on that hangs on purpose: 2 s, or longer if processes are
// emulated and LOCKSTEP_TEST_HANG says so.
func hangsFor(t *testing.T) time.Duration {
	text := os.Getenv("LOCKSTEP_TEST_HANG")
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	testkit.Must(t, err)
	return d
}

// What ends one of several tests of a job ends a job alone, and what it says is shown: TestJob has
// more of them.
func TestRun(t *testing.T) {
	for _, tc := range []struct {
		helper string
		passes bool
		want   []string
		not    []string
	}{
		{"Fatal", false, []string{"rank 1| ", "run_test.go", "the fatal message"}, []string{"rank 0 is here"}},
		{"Nil", false, []string{"nil pointer dereference", "TestHelper"}, []string{"rank 0 is here"}},
		{"Kill", false, []string{"rank 1| about to be killed", "signal 9"}, nil},
		{"Exit", false, []string{"rank 1| about to exit", "exit status 3"}, nil},
		{"Hook", false, []string{"an error", "the hook ran", "exit status 4"}, []string{"rank 0 is here"}},
		{"Hang", false, []string{"test timed out after"}, nil},
		{"Skip", true, []string{"nothing to do here", "--- SKIP: TestHelper/2_ranks"}, nil},
		{"Missing", false, []string{"needs MPI's launcher", "mpirun"}, nil},
	} {
		t.Run(tc.helper, func(t *testing.T) {
			t.Parallel()
			// A failure ends the job by itself, well inside the time that Run gives it.
			ctx := Patience(t)
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHelper$", "-test.v", "-test.timeout=3h")
			cmd.Env = append(os.Environ(), envHelper+"="+tc.helper)
			cmd.WaitDelay = time.Second
			out, err := cmd.CombinedOutput()
			if ctx.Err() != nil {
				t.Fatalf("still running:\n%s", out)
			}
			missing := func(w string) bool { return !bytes.Contains(out, []byte(w)) }
			if (err == nil) != tc.passes || slices.ContainsFunc(tc.want, missing) ||
				slices.ContainsFunc(tc.not, func(w string) bool { return !missing(w) }) ||
				bytes.Count(out, []byte("\n")) > shownLines+30 {
				t.Errorf("ended with %v, want %q and not %q:\n%s", err, tc.want, tc.not, out)
			}
		})
	}
}

// TestHelperAlone is a test that passes on each rank.
func TestHelperAlone(t *testing.T) {
	if os.Getenv(envHelper) == "" {
		t.Skip("helper of TestRunMissedEnd")
	}
	RunAlone(t, []int{2}, func(*testing.T) {})
}

// A test alone runs once more if mpirun may have missed the end of its ranks, and fails after
// three such ends.
func TestRunMissedEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		then   string
		passes bool
		times  int
	}{
		"once":   {"[ -e \"$0.seen\" ] && exit; touch \"$0.seen\"; echo '" + missed + "'; exit 1", true, 1},
		"always": {"echo '" + missed + "'; exit 1", false, 3},
		"never":  {"echo 'no more room'; exit 1", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperAlone$", "-test.v")
			cmd.Env = append(os.Environ(), envHelper+"=1", "PATH="+double(t, tc.then)+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			again := bytes.Count(out, []byte("Open MPI's own: mpirun may have missed the end of a rank"))
			if (err == nil) != tc.passes || again != tc.times {
				t.Errorf("ended with %v\n%s", err, out)
			}
		})
	}
}

// Run finds its test again by a name with slashes, blanks and characters of regular expressions.
func TestRunInSubtest(t *testing.T) {
	t.Run("a (b+c)", func(t *testing.T) {
		Run(t, []int{2}, func(*testing.T) {})
		RunAlone(t, []int{2}, func(*testing.T) {})
	})
}

func TestCommand(t *testing.T) {
	out, err := Command(t.Context(), 3, "sh", "-c", "echo up").CombinedOutput()
	if err != nil || strings.Count(string(out), "up\n") != 3 {
		t.Fatalf("%v:\n%s", err, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := Command(ctx, 2, "sleep", "1000")
	testkit.Must(t, cmd.Start())
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Fatal("a cancelled job ended well")
	}
}

// Ranks find libraries in the test's folder, before those beside MPI's own.
func TestCommandLibraries(t *testing.T) {
	cmd := Command(t.Context(), 2, "sh", "-c", `echo "$LD_LIBRARY_PATH"`)
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH=/doubles")
	out, err := cmd.Output()
	if want := "/doubles\n/doubles\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

func TestEnds(t *testing.T) {
	lines := []string{"a", "b", "c", "d", "e", "f"}
	if got := strings.Join(ends(lines, 4), ","); got != "a,b,... 3 lines left out ...,f" {
		t.Error(got)
	}
	if got := strings.Join(ends(lines, 6), ","); got != "a,b,c,d,e,f" {
		t.Error(got)
	}
}

// onThreadThatEnds calls fn on a thread, and returns when that has ended.
func onThreadThatEnds(ctx context.Context, fn func()) {
	done := make(chan int)
	go func() {
		runtime.LockOSThread()
		thread := syscall.Gettid()
		if thread == os.Getpid() { // the first thread is held until another is found
			defer runtime.UnlockOSThread()
			onThreadThatEnds(ctx, fn)
		} else {
			fn()
		}
		done <- thread
	}()
	if thread := <-done; thread != os.Getpid() {
		for err := error(nil); err == nil && ctx.Err() == nil; runtime.Gosched() {
			_, err = os.Stat(fmt.Sprintf("/proc/self/task/%d", thread))
		}
	}
}

// A job outlives the thread on which its test was when it started.
func TestStart(t *testing.T) {
	ctx := Patience(t)
	cmd := Command(ctx, 1, "cat")
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	onThreadThatEnds(ctx, func() { err = Start(cmd) })
	if err != nil {
		t.Skipf("no job: %v", err)
	}
	fmt.Fprint(in, "still here")
	in.Close()
	if err := cmd.Wait(); err != nil || out.String() != "still here" {
		t.Errorf("%v, %q, %q", err, &out, &errs)
	}
}
