package plan

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestHosts starts ranks on hosts that the agent, a double of ssh, makes up.
func TestHosts(t *testing.T) {
	rsh := agent(t, "")
	t.Setenv("LOCKSTEP_TEST", "passed on")
	script := writeFile(t, t.TempDir()+"/prog",
		"#!/bin/sh\necho \"$FAKE_HOST ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} $LOCKSTEP_TEST\"; printf 'the end' >&2\n",
		0o755)
	for _, w := range installed(t) {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			out, errs, status := result(t,
				launchCommand(t, "run", "--launcher", w.name, "--agent", rsh, "-H", "nodea:2,nodeb:1", "--logs",
					"prefix", "--", script))
			for _, want := range []string{
				"0: nodea 0 passed on\n", "1: nodea 1 passed on\n", "2: nodeb 2 passed on\n",
			} {
				if status != 0 || !strings.Contains(out, want) {
					t.Errorf("status %d, %q is not in %q\n%s", status, want, out, errs)
				}
			}
			if strings.Count(errs, "the end") != 3 {
				t.Errorf("standard error is %q", errs)
			}
		})
		t.Run(w.name+" short lines", func(t *testing.T) {
			t.Parallel()
			out, errs, status := result(t,
				launchCommand(t, "run", "--launcher", w.name, "--agent", rsh, "-H", "nodea:1,nodeb:1", "--logs",
					"prefix", "--", "seq", "5000"))
			want := 5000 * len("0: \n") // and the numbers
			for i := 1; i <= 5000; i++ {
				want += len(strconv.Itoa(i))
			}
			// mpirun may cut lines where it changes from one rank to the other, but loses nothing.
			if status != 0 || strings.Count(out, "\n") != 10000 || len(out) != 2*want {
				t.Errorf("status %d, %d lines of 10000, %d bytes of %d\n%s",
					status, strings.Count(out, "\n"), len(out), 2*want, errs)
			}
		})
		t.Run(w.name+" told to end", func(t *testing.T) {
			t.Parallel()
			r := startJob(t, "run", "--launcher", w.name, "--agent", rsh, "-H", "nodea:1,nodeb:1", "--", self(t),
				"program", "signals", "1", "any")
			r.await(t, 2, "ready")
			r.signal(t, syscall.SIGTERM)
			if w.name == "mpich" {
				r.await(t, 2, "got terminated")
			} else {
				r.await(t, 2, "got user defined signal 1")
			}
			if status := r.status(t); status != 0 {
				t.Errorf("status %d: %s", status, r.all.String())
			}
		})
	}
}

// TestCompareHosts gives each host a file system of its own in one place.
func TestCompareHosts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("hosts with file systems of their own take root")
	}
	need(t, "openmpi4")
	if err := start(t, "unshare", "-u", "-m", "true").Run(); err != nil {
		t.Skipf("no namespaces here: %v", err)
	}
	dir := t.TempDir()
	script := writeFile(t, dir+"/prog", "#!/bin/sh\necho runs\n", 0o755)
	other := writeFile(t, dir+"/other", "#!/bin/sh\necho runs otherwise\n", 0o755)
	for _, tc := range []struct {
		name, body string
		status     int
		out, errs  string
	}{
		{"the same", "", 0, "runs\n", ""},
		{"missing", `[ "$host" = nodea ] || mount -t tmpfs none ` + dir, 2, "",
			"launch: on nodeb: " + script +
				" does not exist: build it first, or give its path from here (the program has to be at the same " +
				"path on each host)\n"},
		{"another", `[ "$host" = nodea ] || mount --bind ` + other + " " + script, 2, "",
			"launch: " + script + " on nodeb is not the one on nodea: copy it to both\n"},
		{"no launch", `[ "$host" = nodea ] || mount --bind /dev/null ` + self(t), 0, "runs\n",
			"launch: warning: launch is not at its path on nodeb: not known whether " + script + " is there\n"},
		{"no host", `[ "$host" = nodea ] || { echo "ssh: no route to nodeb" >&2; exit 255; }`, 2, "",
			"launch: 0 of 2 hosts answered: try ssh to each of them"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			out, errs, status := result(t,
				launchCommand(t, "run", "--agent", agent(t, tc.body), "-H", "nodea:1,nodeb:1", "--", script))
			if status != tc.status || !strings.Contains(out, tc.out) || !strings.HasPrefix(errs, tc.errs) ||
				status == 2 && strings.Count(errs, "\n") != 1 {
				t.Errorf("status %d, %q, %q; want %d, %q, %q", status, out, errs, tc.status, tc.out, tc.errs)
			}
		})
	}
}

func TestJudgeFacts(t *testing.T) {
	_, err := judgeFacts("prog", []facts{{Host: "b", Launch: true, Arch: "arm64", SHA256: "1"},
		{Host: "a", Launch: true, Arch: "amd64", SHA256: "1"}})
	if err == nil || err.Error() != "a is amd64 and b is arm64: name hosts of one architecture" {
		t.Error(err)
	}
}
