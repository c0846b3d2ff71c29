// Package mpirun starts programs on several ranks: other programs by Command, and the
// running test itself by Run.
//
// What mpirun needs is passed by environment variables rather than flags, which Open MPI 4 and 5 do
// not have in common.
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

// Env returns this process's environment with what mpirun needs to start the given number of
// ranks on this machine: as root too, on fewer cores than ranks, and bound to no core, since
// every rank runs goroutines on many.
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
		// mpirun has no use for these: OpenCL takes it 0.3 s to look for, and each rank a sixth of
		// its start to read what devices are on the buses.
		env = append(env, "HWLOC_COMPONENTS=-opencl,-gl,-pci,-linuxio")
	}
	if _, set := os.LookupEnv("HWLOC_PLUGINS_PATH"); !set {
		// Some of these are plugins, which each rank loads with two dozen libraries, of X among them,
		// before it leaves them out: an eighth of its start. Here there are none.
		env = append(env, "HWLOC_PLUGINS_PATH="+os.DevNull)
	}
	if ranks > 1 {
		// a waiting rank must not hold the core of one that works: tests run beside others
		env = append(env, "OMPI_MCA_mpi_yield_when_idle=1")
	}
	return env
}

// Command returns the command that runs prog on n ranks under mpirun, or
// mpiexec where there is no mpirun.
//
// When ctx ends, mpirun is told to stop, which ends its ranks; what still runs after five seconds
// is killed. Starting the command fails when neither launcher is in PATH. In a program in which
// threads end, Start starts it.
//
// Ranks get LD_LIBRARY_PATH as it is. An Open MPI that is called by its path, or was built to, puts
// the folder of its own libraries first, where libraries may lie that a test has doubles of.
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

// KeepSessions holds the folder in tmp in which Open MPI 4 has its sessions, for
// good: see launcher.HoldSessions.
func KeepSessions(tmp string) { launcher.HoldSessions(tmp, "kept-for-tests") }

// MissedEnd says whether mpirun may have missed that a rank ended well: on a busy machine Open MPI
// 4 may see a process end before it has read that the process left MPI. Source:
// github.com/open-mpi/ompi, issues 7833, 9389 and 12607.
func MissedEnd(stderr string) bool {
	return strings.Contains(stderr, "exiting improperly. There are three reasons")
}

// onlyMissedEnd says whether MissedEnd is all that an mpirun complained about which
// ended with err and wrote own.
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

// framed is what mpirun prints between two lines of dashes.
var framed = regexp.MustCompile(`(?ms)^-{20,}$.*?^-{20,}$`)

func executable() string {
	for _, name := range []string{"mpirun", "mpiexec"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return "mpirun" // Start reports that it is missing
}
