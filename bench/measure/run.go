package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"lockstep/internal/mpirun"
)

// Longest is how long a program may run before it counts as hung.
const Longest = 15 * time.Minute

// Output runs a command and returns its standard output. An error contains its standard error.
func Output(cmd ...string) (string, error) {
	out, _, err := Outputs(nil, cmd...)
	return out, err
}

// Interrupted is done when nothing more is to be measured.
var Interrupted = context.Background()

// Outputs is Output with additional variables such as "NAME=value". It also returns standard error.
func Outputs(env []string, cmd ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	if err := run(Interrupted, &out, &errs, env, cmd); err != nil {
		return "", "", fmt.Errorf("%w\n%s%s", err, &out, &errs)
	}
	return out.String(), errs.String(), nil
}

// Follow runs a command and gives fn each line as it comes, one at a time, without its newline.
// errs says whether it stands on standard error. An error of fn ends the command, and is returned.
func Follow(fn func(errs bool, line string) error, cmd ...string) error {
	ctx, end := context.WithCancelCause(Interrupted)
	defer end(nil)
	var one sync.Mutex
	var said bytes.Buffer
	each := func(errs bool) *lines {
		return &lines{each: func(line string) {
			one.Lock()
			defer one.Unlock()
			fmt.Fprintln(&said, line)
			if ctx.Err() != nil {
				return // fn has had enough
			}
			if err := fn(errs, line); err != nil {
				end(err)
			}
		}}
	}
	out, errs := each(false), each(true)
	err := run(ctx, out, errs, nil, cmd)
	out.rest()
	errs.rest()
	if why := context.Cause(ctx); why != nil {
		err = why
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, &said)
	}
	return err
}

// lines passes on written text by whole lines.
type lines struct {
	begun []byte
	each  func(line string)
}

func (l *lines) Write(b []byte) (int, error) {
	l.begun = append(l.begun, b...)
	for {
		line, rest, whole := bytes.Cut(l.begun, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		l.begun = rest
		l.each(string(line))
	}
}

// rest passes on text without a newline at the end.
func (l *lines) rest() {
	if len(l.begun) > 0 {
		l.each(string(l.begun))
	}
}

// run runs a command until it ends, or ctx does. The error names the command.
func run(ctx context.Context, out, errs io.Writer, env, cmd []string) error {
	ctx, cancel := context.WithTimeout(ctx, Longest)
	defer cancel()
	c := exec.CommandContext(ctx, cmd[0], cmd[1:]...)
	c.Env = append(ProgramEnv(), env...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // mpirun ends its ranks
	c.WaitDelay = 10 * time.Second
	c.Stdout, c.Stderr = out, errs
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd, " "), errors.Join(err, ctx.Err()))
	}
	return nil
}

// ProgramEnv returns the environment of the measured programs.
func ProgramEnv() []string { return slices.Concat(mpirun.Env(0), binding(os.Environ())) }

// binding returns the variables of an environment that bind ranks to cores. Otherwise mpirun.Env
// leaves all ranks unbound, as launch run does: the threads of a rank, NCCL's among them, use
// several cores.
func binding(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		return !strings.HasPrefix(v, "OMPI_MCA_hwloc_base_binding_policy=") &&
			!strings.HasPrefix(v, "PRTE_MCA_hwloc_default_binding_policy=")
	})
}

// MPIRun returns the command line that starts cmd on n ranks, or cmd itself for n = 0.
func MPIRun(n int, cmd ...string) []string {
	if n == 0 {
		return cmd
	}
	return append([]string{"mpirun", "-np", strconv.Itoa(n)}, cmd...)
}

// Lines decodes a program's JSON lines, and passes over other lines.
func Lines[T any](out string) ([]T, error) {
	var all []T
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// Exactly decodes the n JSON lines of a program.
func Exactly[T any](out string, n int) ([]T, error) {
	all, err := Lines[T](out)
	if err == nil && len(all) != n {
		err = fmt.Errorf("%d lines of JSON, want %d, in %q", len(all), n, out)
	}
	return all, err
}
