package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
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
// An error names the command.
func Outputs(env []string, cmd ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(Interrupted, Longest)
	defer cancel()
	c := exec.CommandContext(ctx, cmd[0], cmd[1:]...)
	c.Env = append(ProgramEnv(), env...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // mpirun ends its ranks
	c.WaitDelay = 10 * time.Second
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return "", "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd, " "), errors.Join(err, ctx.Err()), &out, &errs)
	}
	return out.String(), errs.String(), nil
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
