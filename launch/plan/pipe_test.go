package plan

import (
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// TestPipe passes the bytes of a rank's standard output on as they are, where a program reads them,
// also from a host that is not this one.
func TestPipe(t *testing.T) {
	rsh := agent(t, "")
	for _, w := range installed(t) {
		for name, flags := range map[string][]string{
			"here": {"-np", "1"}, "asked for": {"-np", "1", "--logs", "pipe"},
			"another host": {"--agent", rsh, "-H", "nodea:1"},
		} {
			t.Run(w.name+" "+name, func(t *testing.T) {
				t.Parallel()
				args := slices.Concat([]string{"run", "--launcher", w.name}, flags,
					[]string{"--", self(t), "program", "bytes"})
				out, errs, status := result(t, launchCommand(t, args...))
				if status != 0 || out != pattern("out", "0") {
					t.Errorf("status %d, %d bytes instead of the %d printed",
						status, len(out), len(pattern("out", "0")))
				}
				if got := unprefix(t, errs)["0"]; strings.TrimRight(got, "\n") != pattern("err", "0") {
					t.Errorf("standard error of rank 0 has %d bytes, not the %d printed",
						len(got), len(pattern("err", "0")))
				}
			})
		}
	}
}

// TestLastLine has jobs fail of which no rank says why, or not all: what launch prints last is
// the cause, without a frame.
func TestLastLine(t *testing.T) {
	need(t, "openmpi4")
	host, err := os.Hostname()
	testkit.Must(t, err)
	for _, tc := range []struct{ name, script, want string }{
		{"killed", `kill -9 $$`, "launch: rank 1 on " + host + ": ended by signal 9 (Killed); status 137 (SIGKILL)\n"},
		{"killed after a line", `echo begun >&2; kill -9 $$`,
			"1: begun\nlaunch: rank 1 on " + host + ": ended by signal 9 (Killed); status 137 (SIGKILL)\n"},
		{"silent", `exit 3`, "launch: rank 1: exited; status 3\n"},
		{"refused", `echo "app: unknown flag: --x" >&2; exit 2`, "1: app: unknown flag: --x\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			script := `if [ $OMPI_COMM_WORLD_RANK = 1 ]; then ` + tc.script + `; fi; exec sleep 60`
			out, errs, status := result(t,
				launchCommand(t, "run", "--launcher", "openmpi4", "-np", "2", "--oversubscribe", "--", "sh", "-c",
					script))
			// mpirun has two frames, of which a busy machine may see the first
			// only. It does not say the rank.
			said, how, _ := strings.Cut(tc.want, "launch: ")
			_, how, _ = strings.Cut(how, "; ")
			unnamed := said + "launch: a rank exited; " + how
			if status == 0 || out != "" || errs != tc.want && (how == "" || errs != unnamed) {
				t.Errorf("status %d, %q and %q, want %q", status, out, errs, tc.want)
			}
		})
	}
}
