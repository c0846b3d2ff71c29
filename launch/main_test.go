package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

// launchEnv makes this binary launch.
const launchEnv = "LAUNCH_TEST_MAIN"

// patience is how long anything may take: only a hang takes so long.
const patience = 10 * time.Minute

// TestMain makes this binary one of the programs that tests start, if its environment says so.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(slurmRankEnv) != "":
		slurmRankMain()
		return
	case os.Getenv(hostRankEnv) != "":
		hostRankMain()
		return
	case os.Getenv(launchEnv) != "":
		main()
		return
	case heatMain():
		return
	}
	flag.Parse()
	if os.Getenv(hostsEnv) != "" { // its tests mostly wait
		if err := flag.Set("test.parallel", "6"); err != nil {
			panic(err)
		}
	}
	status := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir) // of no matter if it stays
	}
	if err := stopSlurm(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// What a command cannot write to a full disk is a line on standard error and status 1.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	testkit.Must(t, err)
	for name, text := range map[string]string{
		"m.jsonl": "{\"app\":\"reduce\",\"bytes\":8,\"gbps\":1}\n{\"app\":\"reduce\",\"bytes\":16,\"gbps\":2}",
		"t.json":  `{"otherData":{"ranks":1},"traceEvents":[{"name":"a","ph":"X","dur":1}]}`,
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o666))
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	typed := map[string]string{"completion": "completion bash", "doctor": "doctor", "plan": "plan -- true",
		"run": "run -np 1 -- echo x", "plot": "plot --out - m.jsonl", "new": "new heat --lockstep " + root,
		"status": "status --help", "trace": "trace t.json", "": "--version", "complete": "__complete plan --"}
	for _, c := range append(command().Commands(), &cobra.Command{}, &cobra.Command{Use: "complete"}) {
		if typed[c.Name()] == "" {
			t.Errorf("launch %s is not tried", c.Name())
		}
		for _, line := range []string{typed[c.Name()], strings.TrimPrefix(c.Name()+" --help", "complete")} {
			cmd := exec.CommandContext(mpirun.Patience(t), os.Args[0], strings.Fields(line)...)
			cmd.Env, cmd.Dir, cmd.Stdout = append(mpirun.Env(1), launchEnv+"=1"), dir, full
			said, _ := cmd.StderrPipe()
			testkit.Must(t, cmd.Start())
			text, _ := io.ReadAll(said)
			_ = cmd.Wait()
			if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(text), "no space left on device") {
				t.Errorf("launch %s: status %d, %s", line, cmd.ProcessState.ExitCode(), text)
			}
		}
	}
}

// A command that does not exist is bad input: one line, with the one that was probably meant.
func TestUnknownCommand(t *testing.T) {
	for typed, want := range map[string]string{
		"rnu":   `unknown command "rnu"; did you mean run?`,
		"docto": `unknown command "docto"; did you mean doctor?`,
		"xyzzy": `unknown command "xyzzy": launch --help lists all`,
	} {
		root := command()
		root.SetArgs([]string{typed, "--steps", "3"})
		if code, say, err := run(root); code != 2 || !say || err.Error() != want {
			t.Errorf("%s: status %d, %v, %q, want %q", typed, code, say, err, want)
		}
	}
}
