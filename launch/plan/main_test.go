package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/cli"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

// TestMain makes this binary launch, or a program that launch starts, where
// the first argument says so.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == divider {
		divide(os.Args[1:])
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "plan", "run":
			root := &cobra.Command{Use: "launch", SilenceErrors: true, SilenceUsage: true}
			root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage{Err: err} })
			root.AddCommand(Command(), RunCommand())
			err := root.Execute()
			code, say := cli.ExitStatus(err)
			if say {
				fmt.Fprintln(os.Stderr, "launch:", err)
			}
			os.Exit(code)
		case "program":
			program(os.Args[2], os.Args[3:])
			os.Exit(0)
		}
	}
	// under nohup it is ignored, and would be in what the tests start
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(m.Run())
}

func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	testkit.Must(t, err)
	return path
}

func myRank() string {
	for _, name := range []string{"OMPI_COMM_WORLD_RANK", "PMI_RANK"} {
		if r := os.Getenv(name); r != "" {
			return r
		}
	}
	return "?"
}

func mySize() string {
	for _, name := range []string{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} {
		if r := os.Getenv(name); r != "" {
			return r
		}
	}
	return "?"
}

// program is what the tests start on ranks.
func program(name string, args []string) {
	if os.Getenv("PMI_RANK") == "0" && name != "stdin" {
		// Hydra's mpiexec dies of SIGPIPE where all ranks have ended, MPI never asked for, before
		// it has told them that its standard input has ended.
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	switch name {
	case "rank":
		fmt.Printf("rank %s of %s %q\n", myRank(), mySize(), args)
	case "bytes":
		os.Stdout.WriteString(pattern("out", myRank()))
		os.Stderr.WriteString(pattern("err", myRank()))
	// RANK STATUS: that rank ends so, the others wait; not under Hydra, which ends
	// only ranks that have called MPI
	case "fail":
		if myRank() == args[0] {
			if args[1] == "kill" {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			var status int
			fmt.Sscan(args[1], &status)
			os.Exit(status)
		}
		if os.Getenv("PMI_RANK") == "" {
			time.Sleep(time.Hour) // what ends it is the other
		}
	case "signals": // says what comes; ends by the SIGINT, SIGTERM or SIGHUP of the number given
		signals := make(chan os.Signal, 8)
		signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
			syscall.SIGUSR2)
		fmt.Println("ready")
		var left int
		fmt.Sscan(args[0], &left)
		for s := range signals {
			fmt.Println("got", s)
			if s != syscall.SIGQUIT && s != syscall.SIGUSR1 && s != syscall.SIGUSR2 || len(args) > 1 {
				left--
			}
			if left == 0 {
				return
			}
		}
	case "live": // a live line of rank 0, in the middle of lines of both
		if myRank() == "0" {
			for _, text := range []string{
				cli.Live("a half of " + os.Getenv(cli.TerminalVariable)), "a line\n", cli.Live("most"),
				"\rnot live\n", cli.Live("all"),
			} {
				os.Stderr.WriteString(text)
			}
		} else {
			os.Stderr.WriteString(cli.Live("") + "another\n")
		}
	case "attempt":
		attempt(args)
	case "stdin":
		text, err := io.ReadAll(os.Stdin)
		fmt.Printf("read %q, %v\n", text, err)
	}
}

// pattern is output that is hard on what passes it on: thousands of very short lines at once, a
// line longer than any buffer, bytes of all values, and no end of the last line.
func pattern(stream, rank string) string {
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, "%d\n", i)
	}
	b.WriteString("\n\n[1,0]<stdout>: 1: \n" + strings.Repeat(stream+rank, 50000) + "\n")
	for c := range 256 {
		b.WriteByte(byte(c))
	}
	return b.String() + "the end of " + stream + rank
}

// start returns a command that runs as launch would.
func start(t testing.TB, words ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(mpirun.Patience(t), words[0], words[1:]...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = os.Environ()
	return cmd
}

// launchCommand is this binary as launch.
func launchCommand(t testing.TB, args ...string) *exec.Cmd {
	return start(t, append([]string{self(t)}, args...)...)
}

// result runs cmd and returns its outputs and status.
func result(t testing.TB, cmd *exec.Cmd) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out.String(), errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// installed are the MPI launchers here. A test that needs one is skipped where it is missing.
func installed(t *testing.T) []launcherHere {
	t.Helper()
	mpirun.Job(t)
	var all []launcherHere
	for _, name := range []string{"openmpi4", "openmpi5", "mpich"} {
		if w, ok := findMPI(name); ok {
			all = append(all, w)
		} else {
			t.Logf("%s is not installed: its line is not started here", name)
		}
	}
	if len(all) == 0 {
		t.Skip("no mpirun is installed")
	}
	return all
}

func need(t *testing.T, name string) {
	t.Helper()
	mpirun.Job(t)
	if _, ok := findMPI(name); !ok {
		t.Skip(name + " is not installed")
	}
}

func writeFile(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	testkit.Must(t, os.WriteFile(name, []byte(text), mode))
	return name
}

// agent writes a double of ssh: it runs the command on this machine, in an environment of its own
// as ssh would. Where it may, as root, each host has a name of its own, and body can change the
// file system that only this host sees.
func agent(t *testing.T, body string) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "ssh"), `#!/bin/sh
while case "$1" in -*) true;; *) false;; esac; do shift; done
host=$1; shift; export host
set -- env -i HOME=/ PATH="$PATH" GOCOVERDIR="$GOCOVERDIR" TMPDIR="$(mktemp -d "$0.XXXXXX")" FAKE_HOST="$host" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 sh -c "$*"
if [ "$(id -u)" = 0 ]; then
	exec unshare -u -m sh -c 'hostname "$host"; `+body+`
	exec "$@"' sh "$@"
fi
exec "$@"
`, 0o755)
}
