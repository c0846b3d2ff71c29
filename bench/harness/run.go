package harness

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

	mpienv "lockstep/internal/mpirun"
)

// Longest is how long a program may run before it counts as hung.
const Longest = 15 * time.Minute

// Output runs a command and returns its standard output; what it says on standard
// error is part of the error.
func Output(cmd ...string) (string, error) {
	out, _, err := Outputs(nil, cmd...)
	return out, err
}

// Interrupted is done when no more is to be measured.
var Interrupted = context.Background()

// Outputs is output with variables such as "NAME=value" added; it returns standard
// error, too.
func Outputs(env []string, cmd ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(Interrupted, Longest)
	defer cancel()
	c := exec.CommandContext(ctx, cmd[0], cmd[1:]...)
	c.Env = append(ProgramEnv(), env...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // mpirun ends its ranks
	c.WaitDelay = 10 * time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return "", "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd, " "), errors.Join(err, ctx.Err()), &out, &errs)
	}
	return out.String(), errs.String(), nil
}

// ProgramEnv is the environment of the programs that are measured.
func ProgramEnv() []string { return slices.Concat(mpienv.Env(0), binding(os.Environ())) }

// binding are the variables of an environment that bind ranks to cores. Otherwise mpienv.Env leaves all of them unbound,
// as launch run does: the threads of a rank, NCCL's among them, use several.
func binding(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		return !strings.HasPrefix(v, "OMPI_MCA_hwloc_base_binding_policy=") && !strings.HasPrefix(v, "PRTE_MCA_hwloc_default_binding_policy=")
	})
}

// MPIRun is the command line that starts cmd on n ranks; cmd as it is, without mpirun, for none.
func MPIRun(n int, cmd ...string) []string {
	if n == 0 {
		return cmd
	}
	return append([]string{"mpirun", "-np", strconv.Itoa(n)}, cmd...)
}

// Lines decodes a program's JSON lines, passing over what is none.
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

// Exactly decodes a program's JSON lines, of which there are to be n.
func Exactly[T any](out string, n int) ([]T, error) {
	all, err := Lines[T](out)
	if err == nil && len(all) != n {
		err = fmt.Errorf("%d lines of JSON, want %d, in %q", len(all), n, out)
	}
	return all, err
}
