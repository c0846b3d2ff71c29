package mpirun

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// If mpirun crashes in its own end, after its ranks, Wait says so, and leaves no session of it.
func TestWaitCrash(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command(executable(), "--version").Output(); err != nil ||
		!strings.Contains(string(out), "Open MPI) 4.") {
		t.Skipf("not Open MPI 4: %v, %s", err, out)
	}
	double := testkit.BuildLibrary(t, t.TempDir(), "libcrash.so", filepath.Join("testdata", "crashatend.c"))
	for _, tc := range []struct{ crash, prog, want string }{
		{"1", "true", "mpirun crashed in PMIx_server_finalize"},
		{"0", "true", ""},
		{"0", "false", ""},
	} {
		tmp, err := os.MkdirTemp("", "own") // a short name, for sockets
		testkit.Must(t, err)
		defer os.RemoveAll(tmp)
		cmd := Command(Patience(t), 2, tc.prog)
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+double, "CRASH_AT_END="+tc.crash, "TMPDIR="+tmp)
		out, own, err := Output(cmd)
		if own != tc.want || (err == nil) != (tc.want == "" && tc.prog == "true") {
			t.Errorf("%+v: %q, %v\n%s", tc, own, err, out)
		}
		if left, err := exec.Command("find", tmp, "-mindepth", "1").Output(); err != nil || len(left) > 0 {
			t.Errorf("%+v: left are %s, %v", tc, left, err)
		}
	}
}

// An mpirun that goes on without ranks is killed. One that still has ranks or never had any is not.
func TestEndLone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		script string
		killed bool
	}{
		{"sleep 0.6; read x", true},
		{"sleep 0.6 & read x", true}, // a zombie
		{"sleep 1000 & read x", false},
		{"read x", false},
	} {
		t.Run(tc.script, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("sh", "-c", tc.script)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			in, err := cmd.StdinPipe()
			testkit.Must(t, err)
			testkit.Must(t, Start(cmd))
			ended := make(chan struct{})
			if !tc.killed {
				time.AfterFunc(8*lookEvery, func() { close(ended) })
			}
			gone := make(chan error)
			go func() {
				err := cmd.Wait()
				if tc.killed {
					close(ended)
				}
				gone <- err
			}()
			if killed := endLone(cmd.Process.Pid, 2*lookEvery, ended); killed != tc.killed {
				t.Errorf("killed %v", killed)
			}
			_ = in.Close()
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-gone
		})
	}
}

// quiet is a test whose log nobody reads, since the suite counts lines of Again.
type quiet struct{ testing.TB }

func (quiet) Logf(string, ...any) {}

// Each attempt that Open MPI's own end spoils is reported, and three are enough.
func TestAgain(t *testing.T) {
	for _, bad := range []int{0, 1, 3, 9} {
		n := 0
		Again(quiet{t}, func() string {
			if n++; n <= bad {
				return "spoilt"
			}
			return ""
		})
		if want := min(bad+1, tries); n != want {
			t.Errorf("%d tries after %d bad ones, want %d", n, bad, want)
		}
	}
}
