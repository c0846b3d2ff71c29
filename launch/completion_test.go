package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

// argsTo names the file to which the program heat adds a line with its arguments.
const argsTo = "HEAT_ARGS_TO"

// heatMain is the program heat, when a shell asks it, or when it is to report its arguments. It
// returns false in a test.
func heatMain() bool {
	args := os.Args[1:]
	if cli.CompletionAsked(args) {
		fs := pflag.NewFlagSet("heat", pflag.ContinueOnError)
		fs.SortFlags = false
		fs.Int("rows", 0, "rows of the plate")
		fs.Int("rounds", 0, "steps in time")
		fs.String("device", "auto", "where buffers live")
		fs.String("out", "", "`DIR` for pictures")
		cli.Choices(fs, "device", "auto", "cuda", "host")
		cli.AnswerCompletion(os.Stdout, fs, args)
		return true
	}
	if path := os.Getenv(argsTo); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
		if err == nil {
			_, err = fmt.Fprintf(f, "%q\n", args)
		}
		if err != nil {
			panic(err)
		}
		return true
	}
	return false
}

// heat puts the program heat into a folder and returns its path.
func heat(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	testkit.Must(t, err)
	path := filepath.Join(t.TempDir(), "heat")
	testkit.Must(t, os.Symlink(self, path))
	return path
}

// launch is a root command with one command that reads its flags itself.
func launch() *cobra.Command {
	root := &cobra.Command{Use: "launch"}
	run := &cobra.Command{Use: "run", DisableFlagParsing: true, Run: func(*cobra.Command, []string) {}}
	run.Flags().Int("nodes", 0, "nodes")
	run.Flags().String("logs", "", "where output goes")
	root.AddCommand(run, completion())
	return root
}

func script(t *testing.T, shell string, names ...string) string {
	t.Helper()
	var out bytes.Buffer
	testkit.Must(t, writeScript(&out, launch(), shell, names))
	return out.String()
}

// typedAtBash types lines in a bash of its own, which has sourced scripts. It returns the arguments
// that heat then gets.
func typedAtBash(t *testing.T, lines []string, scripts ...string) []string {
	t.Helper()
	ctx := mpirun.Patience(t)
	dir, got := t.TempDir(), filepath.Join(t.TempDir(), "args")
	for _, folder := range []string{"plates", "a b"} {
		testkit.Must(t, os.Mkdir(filepath.Join(dir, folder), 0o777))
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "plan"), nil, 0o666))
	p := testkit.OpenTerminal(t, 100)
	bash := exec.CommandContext(ctx, "bash", "--noprofile", "--norc", "-i")
	bash.Dir = dir
	bash.Env = append(os.Environ(), "TERM=dumb", "PS1=$ ", "INPUTRC=/dev/null", "HISTFILE=",
		argsTo+"="+got, "PATH="+filepath.Dir(heat(t))+":"+os.Getenv("PATH"))
	bash.Stdin, bash.Stdout, bash.Stderr = p.Far, p.Far, p.Far
	bash.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	testkit.Must(t, bash.Start())
	for _, script := range scripts {
		p.Type(t, "source "+script+"\n")
	}
	p.Type(t, strings.Join(lines, "\n")+"\nexit 0\n")
	err := bash.Wait()
	seen := p.Close()
	text, readErr := os.ReadFile(got)
	if err := errors.Join(err, readErr); err != nil {
		t.Fatalf("%v\n%s", err, seen)
	}
	t.Log(seen)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// TestBash presses the tabulator key in a bash, without the package bash-completion and, if it is
// here, with it.
func TestBash(t *testing.T) {
	own := filepath.Join(t.TempDir(), "script")
	testkit.Must(t, os.WriteFile(own, []byte(script(t, "bash", "heat")), 0o666))
	var typed, want []string
	for _, c := range [][2]string{
		{"heat --dev\tcu\t", `["--device" "cuda"]`},
		{"heat --device=h\t", `["--device=host"]`},
		{"heat --row\t1 --rou\t2", `["--rows" "1" "--rounds" "2"]`},
		{"heat --ou\tpla\t", `["--out" "plates/"]`}, // not plan, which is a file
		{"heat --out=pla\t", `["--out=plates/"]`},
		{"heat --out a\t", `["--out" "a b/"]`},
		{"heat --rows 3 --dev\tx\x02\x02\t", `["--rows" "3" "--device" "x"]`}, // two back, behind the e
		{"heat --x\t", `["--x"]`},
		{"  : && heat --ro\tu\t", `["--rounds"]`},
	} {
		typed, want = append(typed, c[0]), append(want, c[1])
	}
	check := func(scripts ...string) {
		if got := typedAtBash(t, typed, scripts...); !slices.Equal(got, want) {
			t.Errorf("with %q heat gets\n%s\nwant\n%s", scripts, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	check(own)
	if _, err := os.Stat(bashCompletion); err == nil {
		check(bashCompletion, own)
	}
}

// bashCompletion is Debian's path of the package.
const bashCompletion = "/usr/share/bash-completion/bash_completion"

func TestWriteScript(t *testing.T) {
	for shell, mark := range map[string]string{"bash": "__start_NAME NAME", "zsh": "compdef _NAME NAME",
		"fish": "complete -c NAME"} {
		text := script(t, shell)
		for _, name := range append([]string{"launch"}, programs...) {
			if !strings.Contains(text, strings.ReplaceAll(mark, "NAME", name)) {
				t.Errorf("%s: no script for %s", shell, name)
			}
		}
		if text := script(t, shell, "heat"); strings.Contains(text, "matvec") ||
			!strings.Contains(text, strings.ReplaceAll(mark, "NAME", "heat")) {
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
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "bin/heat"},
		{"completion", "zsh", "a;b"}, {"completion", "fish", ""}} {
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

func TestComplete(t *testing.T) {
	program := heat(t)
	started := filepath.Join(t.TempDir(), "started")
	foreign := filepath.Join(t.TempDir(), "foreign")
	testkit.Must(t, os.WriteFile(foreign, []byte("#!/bin/sh\ntouch "+started+"\n"), 0o755))
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
		if !complete(&out, launch(), append([]string{cli.CompleteNamesRequest}, strings.Split(words, " ")...)) ||
			out.String() != want {
			t.Errorf("%s: %q, want %q", words, &out, want)
		}
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("a program that does not use Lockstep was started")
	}
	for _, words := range []string{"completion b", "ru", "none --x", ""} {
		if complete(new(bytes.Buffer), launch(), append([]string{cli.CompleteRequest}, strings.Split(words, " ")...)) {
			t.Errorf("%q is not left to the others", words)
		}
	}
}
