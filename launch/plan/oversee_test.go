package plan

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/process"
	"lockstep/internal/testkit"
)

// What a rank leaves behind does not hold up the job's end, though it has descriptors of the rank.
func TestLeftBehind(t *testing.T) {
	for _, w := range installed(t) {
		for _, logs := range []string{logsPrefix, logsPlain} {
			r := startJob(t, "run", "--launcher", w.name, "-np", "2", "--oversubscribe", "--logs", logs, "--", "sh",
				"-c", "sleep 100000 >/dev/null 2>&1 & echo ready")
			if status := r.status(t); status != 0 {
				t.Errorf("%s, %s: status %d: %s", w.name, logs, status, r.all.String())
			}
		}
	}
}

// A launcher that goes on when no rank lives any more is ended, also one that takes no SIGTERM.
func TestLauncherHangs(t *testing.T) {
	for name, rest := range map[string]string{
		"deaf": `trap "" TERM; while :; do sleep 1; done`, "waiting": `exec sleep 100000`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "mpirun"), `#!/bin/sh
case $1 in --version) echo "mpirun (Open MPI) 4.1.4"; exit;; esac
OMPI_COMM_WORLD_RANK=0 sh -c 'sleep 2; exit 3' &
wait $!
`+rest+"\n", 0o755)
			cmd := launchCommand(t, "run", "-np", "1", "--logs", "plain", "--", "true")
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			_, errs, status := result(t, cmd)
			if status == 0 || !strings.Contains(errs, "launch: the last rank has ended 10s ago: mpirun is ended\n") {
				t.Errorf("status %d: %s", status, errs)
			}
		})
	}
}

// A launcher that hangs before any rank has started ends by one SIGTERM.
func TestStartHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "mpirun"), `#!/bin/sh
case $1 in --version) echo "mpirun (Open MPI) 4.1.4"; exit;; esac
trap "" TERM
echo ready
while :; do sleep 1; done
`, 0o755)
	cmd := launchCommand(t, "run", "-np", "1", "--", "true")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	r := startCommand(t, cmd)
	r.await(t, 1, "ready")
	r.signal(t, syscall.SIGTERM)
	status := r.status(t)
	if status != 128+9 || !strings.HasSuffix(r.all.String(), "launch: the job was asked to end by SIGTERM\n") {
		t.Errorf("status %d: %s", status, r.all.String())
	}
}

// The looks of an overseer at a launcher with one rank: when they end it, and why.
func TestLooks(t *testing.T) {
	sh := exec.Command("sh", "-c", `OMPI_COMM_WORLD_RANK=0 sleep 100000 & wait`)
	testkit.Must(t, sh.Start())
	t.Cleanup(func() {
		process.KillTree(sh.Process.Pid)
		_ = sh.Wait()
	})
	looks := func(o *overseer) (n int, why string) {
		o.pid = sh.Process.Pid
		for n = 1; n < 1000; n++ {
			if why = o.look(); why != "" {
				break
			}
		}
		return n, why
	}
	if n, why := looks(&overseer{limit: 100, lockstep: true}); n != 101 ||
		why != "no rank has joined the others in 1m40s" {
		t.Errorf("a rank that does not join: %d looks, %q", n, why)
	}
	if n, why := looks(&overseer{limit: 100, lockstep: true, seen: []int{1 << 30}}); n != lostLooks+1 ||
		why != "a rank has ended before the ranks had joined, 15s ago" {
		t.Errorf("of two ranks one has ended: %d looks, %q", n, why)
	}
	for _, o := range []*overseer{{limit: 100}, {limit: 100, lockstep: true, joined: true, seen: []int{1 << 30}}} {
		if n, why := looks(o); n != 1000 {
			t.Errorf("all is well: %d looks, %q", n, why)
		}
	}
}
