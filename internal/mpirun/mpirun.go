// Package mpirun starts programs on several ranks: other programs by Command, and the running test
// itself by Run.
//
// It passes settings to mpirun by environment variables rather than flags, which Open MPI 4 and 5
// do not have in common.
package mpirun

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"lockstep/internal/launcher"
)

// stopGrace is how long mpirun may take to end its ranks after it was told to stop.
const stopGrace = 5 * time.Second

// Env returns this process's environment with the settings that mpirun needs for so many ranks on
// this machine: as root too, on fewer cores than ranks, and bound to no core, since every rank runs
// goroutines on many.
func Env(ranks int) []string {
	env := append(os.Environ(),
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
		"PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1",
		"OMPI_MCA_rmaps_base_oversubscribe=1", // Open MPI 4
		"OMPI_MCA_hwloc_base_binding_policy=none",
		"PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe", // Open MPI 5
		"PRTE_MCA_hwloc_default_binding_policy=none",
	)
	if _, set := os.LookupEnv("HWLOC_COMPONENTS"); !set {
		// mpirun does not need these: it looks 0.3 s for OpenCL, and each rank takes a sixth of its
		// start to read the devices on the buses.
		env = append(env, "HWLOC_COMPONENTS=-opencl,-gl,-pci,-linuxio")
	}
	if _, set := os.LookupEnv("HWLOC_PLUGINS_PATH"); !set {
		// Some of these are plugins. Each rank loads them with two dozen libraries, such as X's,
		// before it leaves them out, which takes an eighth of its start. Here there are none.
		env = append(env, "HWLOC_PLUGINS_PATH="+os.DevNull)
	}
	if ranks > 1 {
		// A waiting rank must not hold the core of a working one: tests run beside others.
		env = append(env, "OMPI_MCA_mpi_yield_when_idle=1")
	}
	return env
}

// Command returns the command that runs prog on n ranks under mpirun, or mpiexec if there
// is no mpirun.
//
// When ctx ends, mpirun is told to stop, which ends its ranks; what still runs after five seconds
// is killed. Starting the command fails if neither launcher is in PATH. In a program whose threads
// end, use Start.
//
// Ranks get LD_LIBRARY_PATH as it is. An Open MPI that is called by its path, or was built to, puts
// the folder of its own libraries first. A test may have doubles of libraries there.
func Command(ctx context.Context, n int, prog string, args ...string) *exec.Cmd {
	keepSessions()
	path := executable()
	cmd := exec.CommandContext(ctx, path, append([]string{"--noprefix", "-np", strconv.Itoa(n), prog}, args...)...)
	cmd.Args[0] = filepath.Base(path)
	cmd.Env = Env(n)
	// no job outlives an interrupted test
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	return cmd
}

var keepSessions = sync.OnceFunc(func() { KeepSessions(os.TempDir()) })

// KeepSessions holds the folder in tmp of Open MPI 4's sessions for good, see
// launcher.HoldSessions.
func KeepSessions(tmp string) { launcher.HoldSessions(tmp, "kept-for-tests") }

// MissedEnd reports whether mpirun may have missed that a rank ended well. On a busy machine Open
// MPI 4 may see a process end before it has read that the process left MPI. Source:
// github.com/open-mpi/ompi, issues 7833, 9389 and 12607.
func MissedEnd(stderr string) bool {
	return strings.Contains(stderr, "exiting improperly. There are three reasons")
}

// onlyMissedEnd reports whether an mpirun that ended with err and wrote own complained of nothing
// but MissedEnd.
func onlyMissedEnd(err error, own string) bool {
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		return false
	}
	missed := false
	rest := framed.ReplaceAllStringFunc(own, func(block string) string {
		if !MissedEnd(block) {
			return block
		}
		missed = true
		return ""
	})
	return missed && strings.TrimSpace(rest) == ""
}

// framed matches mpirun's text between two lines of dashes.
var framed = regexp.MustCompile(`(?ms)^-{20,}$.*?^-{20,}$`)

func executable() string {
	for _, name := range []string{"mpirun", "mpiexec"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return "mpirun" // Start reports that it is missing
}
