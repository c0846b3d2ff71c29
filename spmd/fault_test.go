package spmd_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// hangs is the app that one rank lets wait.
func hangs(w *spmd.World, what string, last bool) error {
	x, err := spmd.Alloc[float32](w, 1000)
	if err != nil {
		return err
	}
	s, err := w.NewStream("work")
	if err != nil {
		return err
	}
	if err := spmd.AllReduce(w.Comm, x, x, spmd.Sum); err != nil {
		return err
	}
	switch {
	case !last:
	case what == "stopped":
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return err
		}
		oversleep() // this thread may run on for a moment
	default:
		oversleep()
	}
	if what == "stays" { // the others end their program, one does not
		return nil
	}
	if w.Rank() == 0 { // one waits in a stream, the others in the call
		if err := spmd.AllReduce(w.Comm.On(s), x, x, spmd.Sum); err != nil {
			return err
		}
		return s.Synchronize()
	}
	return spmd.AllReduce(w.Comm, x, x, spmd.Sum)
}

func oversleep() { time.Sleep(time.Hour) }

// differ is the app whose ranks call different collectives.
func differ(w *spmd.World) error {
	x, err := spmd.Alloc[int32](w, 64)
	if err != nil {
		return err
	}
	if err := spmd.AllReduce(w.Comm, x, x, spmd.Sum); err != nil {
		return err
	}
	if w.Rank() == 1 {
		return spmd.Broadcast(w.Comm, x.Slice(0, 7), 1)
	}
	return spmd.AllReduce(w.Comm, x, x, spmd.Max)
}

// TestHang: who has not arrived, where it is instead, and where the others wait, is
// said once, and the job ends.
func TestHang(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what string
		want []string
	}{
		{"asleep", []string{"--- this job hangs", "AllReduce of 1000 float32 (sum)", "NOT ARRIVED: rank 2", "spmd_test.oversleep", "fault_test.go:", "[sleep]", `stream "work"`}},
		{"stopped", []string{"--- this job hangs", "NOT ARRIVED: rank 2", "rank 2", "T (stopped)"}},
		{"stays", []string{"the program has ended here, and not on every rank", "spmd_test.oversleep", "rank 2"}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			status, out := run(t, 3, tc.what, nil, "--timeout", "2s")
			if status == 0 || strings.Count(out, "--- this job hangs") != 1 {
				t.Errorf("status %d, the report comes %d times\n%s", status, strings.Count(out, "--- this job hangs"), out)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in\n%s", want, out)
				}
			}
		})
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--check", "--check=on"} {
		status, out := run(t, 3, "contract", nil, flag)
		if status == 0 {
			t.Errorf("status 0\n%s", out)
		}
		for _, want := range []string{"the ranks called different collectives", "rank 0 at spmd/fault_test.go:", "AllReduce of 64 int32, max",
			"rank 1 at spmd/fault_test.go:", "Broadcast of 7 int32, root 1"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %q is not in\n%s", flag, want, out)
			}
		}
	}
	for _, flag := range []string{"off", "sample", "on"} {
		if status, out := run(t, 2, "sum", nil, "--check="+flag); status != 0 {
			t.Errorf("--check=%s of a program in order: status %d\n%s", flag, status, out)
		}
	}
	if status, out := run(t, 0, "sum", nil, "--check=often"); status != 2 || !strings.Contains(out, "want off, sample, on") {
		t.Errorf("--check=often: status %d\n%s", status, out)
	}
	if status, out := run(t, 0, "sum", nil, "--timeout", "1ms"); status != 2 || !strings.Contains(out, "--timeout 1ms: must be at least 100ms") {
		t.Errorf("--timeout 1ms: status %d\n%s", status, out)
	}
}

// TestPreempted: where the program listens, the first SIGTERM or SIGUSR1 is a request.
func TestPreempted(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1} {
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		cmd := spmdtest.Command(ctx, t, 0, []string{appEnv + "=preempted"})
		out, err := cmd.StderrPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewReader(out)
		for text := ""; !strings.Contains(text, "asleep"); {
			if text, err = lines.ReadString('\n'); err != nil {
				t.Fatal("it ended before it slept")
			}
		}
		must(t, cmd.Process.Signal(sig))
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil || !strings.Contains(string(rest), "asked to end early") {
			t.Errorf("%v: %v\n%s", sig, err, rest)
		}
	}
}

// TestShownOnRequest: SIGQUIT shows what every rank does, and the job goes on.
func TestShownOnRequest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	cmd := spmdtest.Command(ctx, t, 3, []string{appEnv + "=shown"})
	out, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewReader(out)
	said := ""
	for asked := false; !strings.Contains(said, "\n---\n"); {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("it ended: %s", said)
		}
		said += line
		if pid, ok := strings.CutPrefix(line, "asleep "); ok && !asked {
			asked = true
			n, err := strconv.Atoi(strings.TrimSpace(pid))
			must(t, err)
			must(t, syscall.Kill(n, syscall.SIGQUIT))
		}
	}
	for _, want := range []string{"shown on request", "ranks 0-2", "main_test.go:"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	cancel()
	_ = cmd.Wait() // it was ended
}
