package mpirun

import (
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

	"lockstep/internal/launcher"
	"lockstep/internal/process"
)

const (
	// tries is how often a job runs if only Open MPI's own end goes wrong.
	tries = 3
	// lone is how long an mpirun may go on without a rank.
	lone = time.Minute
	// lookEvery is the time between two looks at the ranks of an mpirun.
	lookEvery = 250 * time.Millisecond
)

// Again calls try until Open MPI's own end goes well, three times at most. own is what Wait
// returns. Each failure is one line of the log, which the suite counts.
func Again(t testing.TB, try func() (own string)) {
	t.Helper()
	for n := 1; ; n++ {
		own := try()
		if own == "" || t.Failed() {
			return
		}
		t.Logf("Open MPI's own: %s; try %d of %d", own, n, tries)
		if n == tries {
			return
		}
	}
}

// Wait is cmd.Wait for a started command of Command. said returns what the command has written.
//
// own names a fault of Open MPI's own end in a few words: mpirun crashed, or hung and was killed,
// after all of its ranks had ended, or it may have missed that a rank ended well.
func Wait(cmd *exec.Cmd, said func() string) (own string, err error) {
	ended := make(chan struct{})
	hung := make(chan bool, 1)
	if cmd.Path == executable() {
		go func() { hung <- endLone(cmd.Process.Pid, lone, ended) }()
	} else {
		hung <- false
	}
	err = cmd.Wait()
	close(ended)
	exit := (*exec.ExitError)(nil)
	switch {
	case <-hung:
		own = fmt.Sprintf("mpirun did not end within %v of its last rank, and was killed", lone)
	case !errors.As(err, &exit):
	case exit.ExitCode() == 1 && MissedEnd(said()):
		own = "mpirun may have missed the end of a rank"
	case exit.Sys().(syscall.WaitStatus).Signaled():
		if frame := crashedInEnd(said(), cmd.Process.Pid); frame != "" {
			own = "mpirun crashed in " + frame
		}
	}
	if own != "" {
		launcher.RemoveSession(tempDir(cmd), cmd.Process.Pid)
	}
	return own, err
}

// Output is cmd.CombinedOutput for a command of Command, with Wait's own.
func Output(cmd *exec.Cmd) (out, own string, err error) {
	var text output
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := Start(cmd); err != nil {
		return "", "", err
	}
	own, err = Wait(cmd, text.String)
	return text.String(), own, err
}

// tempDir returns os.TempDir of a command.
func tempDir(cmd *exec.Cmd) string {
	dir := "/tmp"
	for _, kv := range cmd.Environ() {
		if v, ok := strings.CutPrefix(kv, "TMPDIR="); ok && v != "" {
			dir = v
		}
	}
	return dir
}

// crashedInEnd returns the function of its own end in which mpirun, process pid, crashed, or "". It
// reads the stack that mpirun then shows.
func crashedInEnd(said string, pid int) string {
	stack := regexp.MustCompile(fmt.Sprintf(
		`(?m)^\[[^\]\n]*:0*%d\] \[ *\d+\] [^(\n]*\((PMIx_server_finalize|PMIx_Finalize|orte_finalize)\+`, pid))
	if m := stack.FindStringSubmatch(said); m != nil {
		return m[1]
	}
	return ""
}

// endLone kills process pid if it goes on for limit after the last of its children, and says
// whether it did. It returns when ended is closed.
func endLone(pid int, limit time.Duration, ended <-chan struct{}) (killed bool) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var since time.Time // it has had children, and has none
	had := false
	for {
		select {
		case <-ended:
			return killed
		case now := <-tick.C:
			switch there := hasChildren(pid); {
			case there:
				had, since = true, time.Time{}
			case had && since.IsZero():
				since = now
			case had && now.Sub(since) > limit:
				killed = syscall.Kill(pid, syscall.SIGKILL) == nil
				had = false
			}
		}
	}
}

// hasChildren reports whether a process has children that have not ended. Source: proc_pid_task(5),
// children.
func hasChildren(pid int) bool {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(files) == 0 {
		return true // this kernel does not tell, or the process has ended
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return true
		}
		for child := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(child); err == nil && !strings.HasPrefix(process.State(n), "Z") {
				return true
			}
		}
	}
	return false
}
