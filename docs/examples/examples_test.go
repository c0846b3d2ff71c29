// Package examples tests the programs in the folders below it: each on 1 to 4 ranks, in jobs that
// all of them share.
package examples

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/library"
	"lockstep/spmd/spmdtest"
)

// program is an example as it would be given to spmd.Main.
type program struct {
	flags *pflag.FlagSet
	run   func(context.Context, *spmd.World) error
}

var programs = map[string]program{}

// register stands for spmd.Main in the copies that overlay.sh makes.
//
//lint:ignore U1000 only they call it
func register(flags *pflag.FlagSet, run func(context.Context, *spmd.World) error) {
	programs[flags.Name()] = program{flags, run}
}

// TestMain builds the test with the examples in it, and runs that build.
func TestMain(m *testing.M) {
	if len(programs) > 0 {
		spmdtest.Main(m, nil)
		return
	}
	status, err := runWithPrograms()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func runWithPrograms() (status int, err error) {
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	test := filepath.Join(dir, "examples.test")
	for _, words := range [][]string{
		{"./overlay.sh", dir}, {"go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", test, "."},
	} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%v: %w\n%s", words, err, out)
		}
	}
	runtime.LockOSThread() // the kernel ends the test when the thread that started it ends
	cmd := exec.Command(test, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	err = cmd.Run()
	if errors.As(err, new(*exec.ExitError)) {
		err = nil // the status says it
	}
	return cmd.ProcessState.ExitCode(), err
}

var commandLine = regexp.MustCompile(`^\$ .*-np (\d+) .*\n$`)

// outputs reads what an example prints on a number of ranks, from its output.txt.
func outputs(t *testing.T, name string) map[int]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(name, "output.txt"))
	spmdtest.Must(t, err)
	all, ranks := map[int]string{}, 0
	for line := range strings.Lines(string(text)) {
		if m := commandLine.FindStringSubmatch(line); m != nil {
			ranks, _ = strconv.Atoi(m[1]) // digits
			all[ranks] = ""
		} else {
			all[ranks] += line
		}
	}
	return all
}

// Each example prints what its output.txt says, and emits what its picture draws.
func TestPrograms(t *testing.T) {
	// the same on all ranks, which mpirun started
	folder := filepath.Join(os.TempDir(), fmt.Sprintf("recover-%d", os.Getppid()))
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		for _, name := range slices.Sorted(maps.Keys(programs)) {
			p := programs[name]
			if name == "recover" {
				spmdtest.Must(t, p.flags.Set("checkpoint", folder))
				if _, err := printed(t, w, p); err == nil ||
					!strings.Contains(err.Error(), "it fails in its fourth step") {
					t.Fatalf("recover, first start: %v", err)
				}
			}
			var lines []byte
			cancel := library.Emitted(w, func(line []byte) { lines = append(lines, line...) })
			got, err := printed(t, w, p)
			cancel()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if want := outputs(t, name)[w.Size()]; w.Rank() == 0 && got != want {
				t.Errorf("%s on %d ranks prints\n%s\nits output.txt says\n%s", name, w.Size(), got, want)
			} else if w.Rank() > 0 && got != "" {
				t.Errorf("%s: rank %d prints %q", name, w.Rank(), got)
			}
			if w.Rank() == 0 {
				checkPicture(t, name, w.Size(), lines)
			}
		}
		if w.Rank() == 0 {
			if err := os.RemoveAll(folder); err != nil {
				t.Error(err)
			}
		}
	})
}

// printed runs a program and returns what it writes to standard output: less than a pipe holds.
func printed(t *testing.T, w *spmd.World, p program) (string, error) {
	t.Helper()
	r, to, err := os.Pipe()
	spmdtest.Must(t, err)
	defer r.Close()
	out := os.Stdout
	os.Stdout = to
	failed := p.run(t.Context(), w)
	os.Stdout = out
	spmdtest.Must(t, to.Close())
	text, err := io.ReadAll(r)
	spmdtest.Must(t, err)
	return string(text), failed
}

// An example is short, is in the table and has an output for 1 to 4 ranks.
func TestComplete(t *testing.T) {
	table, err := os.ReadFile("README.md")
	spmdtest.Must(t, err)
	mains, err := filepath.Glob("*/main.go")
	if err != nil || len(mains) != len(programs) {
		t.Fatalf("%d programs in %d folders, %v", len(programs), len(mains), err)
	}
	for _, file := range mains {
		text, err := os.ReadFile(file)
		spmdtest.Must(t, err)
		name := filepath.Dir(file)
		if n := bytes.Count(text, []byte("\n")); n > 67 {
			t.Errorf("%s has %d lines", file, n)
		}
		if _, ok := programs[name]; !ok {
			t.Errorf("%s gives its flags another name", file)
		}
		if !bytes.Contains(table, []byte("["+name+"]("+name+"/main.go)")) {
			t.Errorf("README.md does not name %s", name)
		}
		if ranks := slices.Sorted(maps.Keys(outputs(t, name))); !slices.Equal(ranks, []int{1, 2, 3, 4}) {
			t.Errorf("%s: outputs on %v ranks", name, ranks)
		}
	}
}

// The kernels compile for GPUs, if NVRTC is here.
func TestKernelsCompile(t *testing.T) {
	spmdtest.CompileKernels(t)
}
