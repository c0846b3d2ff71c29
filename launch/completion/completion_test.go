package completion

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/help"
)

// TestMain makes this binary the program heat, where it is asked as a shell asks.
func TestMain(m *testing.M) {
	if args := os.Args[1:]; help.Asked(args) {
		fs := pflag.NewFlagSet("heat", pflag.ContinueOnError)
		fs.SortFlags = false
		fs.Int("rows", 0, "rows of the plate")
		fs.Int("rounds", 0, "steps in time")
		fs.String("device", "auto", "where buffers live")
		help.Choices(fs, "device", "auto", "cuda", "host")
		help.Answer(os.Stdout, fs, args)
		return
	}
	os.Exit(m.Run())
}

// heat puts the program heat into a folder and returns its path.
func heat(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "heat")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// launch is a root command with one command that reads its flags itself.
func launch() *cobra.Command {
	root := &cobra.Command{Use: "launch"}
	run := &cobra.Command{Use: "run", DisableFlagParsing: true, Run: func(*cobra.Command, []string) {}}
	run.Flags().Int("nodes", 0, "nodes")
	run.Flags().String("logs", "", "where output goes")
	root.AddCommand(run, Command())
	return root
}

func script(t *testing.T, shell string, names ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out, launch(), shell, names); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestBash has bash complete a program's flags and values with the script, as at the tabulator key.
func TestBash(t *testing.T) {
	program := heat(t)
	// What bash-completion, which need not be here, has for every completion.
	const words = `_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }
`
	for line, want := range map[string]string{
		" --ro":       "--rows --rounds",
		" --device ":  "auto cuda host",
		" --device h": "host",
		" --x":        "",
	} {
		typed := strings.Split(program+line, " ")
		shell := exec.Command("bash", "-c", words+script(t, "bash", "heat")+`
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=37; COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
__start_heat; for word in "${COMPREPLY[@]}"; do echo "$word"; done; complete -p heat >&2`)
		shell.Args = append(append(shell.Args, "bash"), typed...)
		var errs bytes.Buffer
		shell.Stderr = &errs
		out, err := shell.Output()
		if err != nil || !strings.Contains(errs.String(), "__start_heat heat") {
			t.Errorf("%q: %v\n%s", line, err, &errs)
		}
		var got []string
		for reply := range strings.Lines(string(out)) {
			got = append(got, strings.Fields(reply)[0]) // without the description
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestWrite(t *testing.T) {
	for shell, mark := range map[string]string{"bash": "__start_NAME NAME", "zsh": "compdef _NAME NAME", "fish": "complete -c NAME"} {
		text := script(t, shell)
		for _, name := range append([]string{"launch"}, programs...) {
			if !strings.Contains(text, strings.ReplaceAll(mark, "NAME", name)) {
				t.Errorf("%s: no script for %s", shell, name)
			}
		}
		if text := script(t, shell, "heat"); strings.Contains(text, "matvec") || !strings.Contains(text, strings.ReplaceAll(mark, "NAME", "heat")) {
			t.Errorf("%s: not for heat alone", shell)
		}
		if path, err := exec.LookPath(shell); err == nil {
			check := exec.Command(path, "-n")
			check.Stdin = strings.NewReader(text)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s -n: %v\n%s", shell, err, out)
			}
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "bin/heat"}, {"completion", "zsh", "a;b"}, {"completion", "fish", ""}} {
		root := launch()
		root.SilenceErrors, root.SilenceUsage = true, true
		root.SetArgs(args)
		var out bytes.Buffer
		root.SetOut(&out)
		if err := root.Execute(); err == nil || strings.Contains(err.Error(), "\n") || out.Len() > 0 {
			t.Errorf("%q: %v, and %d bytes", args, err, out.Len())
		}
	}
}

func TestAnswer(t *testing.T) {
	program := heat(t)
	started := filepath.Join(t.TempDir(), "started")
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := os.WriteFile(foreign, []byte("#!/bin/sh\ntouch "+started+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"run --n":                                    "--nodes\n:4\n",
		"run --nodes 2 -":                            "--help\n--logs\n--\n:4\n",
		"run --nodes 2 -- " + program[:4]:            ":0\n", // a file
		"run -- " + program + " --rou":               "--rounds\n:4\n",
		"run -- " + program + " --rows 3 --device c": "cuda\n:4\n",
		"run -- " + foreign + " --x":                 ":0\n",
		"run -- no-such-program --x":                 ":0\n",
	} {
		var out bytes.Buffer
		if !Answer(&out, launch(), append([]string{help.RequestNames}, strings.Split(words, " ")...)) || out.String() != want {
			t.Errorf("%s: %q, want %q", words, &out, want)
		}
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("a program that does not use Lockstep was started")
	}
	for _, words := range []string{"completion b", "ru", "none --x", ""} {
		if Answer(new(bytes.Buffer), launch(), append([]string{help.Request}, strings.Split(words, " ")...)) {
			t.Errorf("%q is not left to the others", words)
		}
	}
}
