package plan

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/launcher"
)

// What mpirun says first when a rank has failed. Where the rank ends as soon
// as it has begun, that is all.
const (
	onePrimary = "--------------------------\nPrimary job  terminated normally, but 1 process returned\n" +
		"a non-zero exit code. Per user-direction, the job has been aborted.\n--------------------------\n"
	whichRank = "--------------------------\nmpirun detected that one or more processes exited with non-zero " +
		"status, thus causing\nthe job to be terminated. The first process to do so was:\n\n" +
		"  Process name: [[21446,1],5]\n  Exit code:    7\n--------------------------\n"
)

const (
	inner = "[n1:7] [[2,0],0] ORTE_ERROR_LOG: Out of resource in file ../../../orte/util/show_help.c at line 507\n"
	cause = "0: 07:15:52 ERR it fails host=n1 rank=2\n"
)

// A job that fails is not silent, however little its launcher says. The double of mpirun says
// what is in a file, and ends.
func TestLittleSaid(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/mpirun", `#!/bin/sh
[ "$1" = --version ] && { echo "mpirun (Open MPI) 4.1.4"; exit; }
cat "$SAYS" >&2
exit "$STATUS"
`, 0o755)
	for _, tc := range []struct {
		name, says, status, np, logs string
		want                         string
	}{
		{"nothing", "", "5", "2", "pipe", "launch: the job has failed; status 5\n"},
		{"nothing, of a signal", "", "137", "2", "prefix", "launch: the job has failed; status 137 (SIGKILL)\n"},
		{"nothing, and files", "", "5", "2", dir + "/logs", "launch: the job has failed; status 5\n"},
		{"one of one", onePrimary, "5", "1", "pipe", "launch: rank 0: exited; status 5\n"},
		{"one of two", onePrimary, "137", "2", "pipe", "launch: a rank exited; status 137 (SIGKILL)\n"},
		{"which", onePrimary + whichRank, "7", "8", "pipe", "launch: rank 5: exited; status 7\n"},
		{"something else", "no slots\n", "1", "2", "pipe", "no slots\n"},
		{"an error within, and a cause", inner + cause, "1", "3", "pipe", cause},
		{"an error within", inner, "1", "3", "pipe", inner + "launch: the job has failed; status 1\n"},
		{"as it comes", onePrimary, "5", "1", "plain", onePrimary},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := launchCommand(t, "run", "--launcher", "openmpi4", "-np", tc.np, "--oversubscribe", "--logs", tc.logs,
				"--", self(t))
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"),
				"SAYS="+writeFile(t, t.TempDir()+"/says", tc.says, 0o644), "STATUS="+tc.status)
			if _, errs, status := result(t, cmd); errs != tc.want || status == 0 {
				t.Errorf("status %d, %q, want %q", status, errs, tc.want)
			}
		})
	}
}

// While a job runs nobody removes the folder of Open MPI's sessions, and then it is as it was.
func TestKeepSessions(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/mpirun", `#!/bin/sh
[ "$1" = --version ] && { echo "mpirun (Open MPI) 4.1.4"; exit; }
rmdir "$TMPDIR"/ompi.* 2>&1 && echo gone
exit 0
`, 0o755)
	start := func(tmp string) {
		t.Helper()
		cmd := launchCommand(t, "run", "--launcher", "openmpi4", "-np", "1", "--", self(t))
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TMPDIR="+tmp)
		if out, errs, status := result(t, cmd); status != 0 || out == "" || out == "gone\n" {
			t.Errorf("status %d, %q, %q", status, out, errs)
		}
	}
	tmp := t.TempDir()
	start(tmp)
	if left, err := filepath.Glob(tmp + "/*"); err != nil || len(left) > 0 {
		t.Errorf("%v, %q is left", err, left)
	}
	release := launcher.HoldSessions(tmp, "another job's")
	start(tmp)
	if left, err := filepath.Glob(tmp + "/ompi.*/*"); err != nil || len(left) != 1 {
		t.Errorf("%v, of another job %q is left", err, left)
	}
	release()
	if left, err := filepath.Glob(tmp + "/*"); err != nil || len(left) > 0 {
		t.Errorf("%v, %q is left", err, left)
	}
}
