// Package launcher knows what starts ranks: it reads from the environment who started this process,
// before MPI has started, and from the output of a job why it has failed. It also holds files that
// Open MPI's launcher removes too early.
package launcher

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Job has what the environment says about this process.
type Job struct {
	Name   string // openmpi4, openmpi5, mpich, slurm-pmix, slurm-pmi2, slurm, torchrun, none
	Rank   int
	Size   int
	Source string // the variable that Size was read from; "" if Name is none
}

// launchers are in the order of asking: an mpirun inside a Slurm allocation counts before Slurm's
// own variables. PRRTE, which starts the ranks of Open MPI 5, says that it does.
var launchers = []struct{ name, rank, size, also string }{
	{"openmpi5", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PRTE_LAUNCHED"},
	{"openmpi4", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ""},
	{"slurm-pmix", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMIX_RANK"},
	{"slurm-pmi2", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID"}, // Hydra's proxies also have a SLURM_PROCID, their own
	{"mpich", "PMI_RANK", "PMI_SIZE", ""},
	{"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""},
	{"slurm", "SLURM_PROCID", allTasks, ""},
	{"torchrun", "RANK", "WORLD_SIZE", ""}, // and Kubeflow, which starts a process on each node
}

// allTasks has the tasks of a Slurm job, also in its batch script, where no step has begun.
const allTasks = "SLURM_NTASKS"

// Script reports whether this process is the batch script of a job of several tasks, or was started
// by it. It is then none of the tasks.
func (j Job) Script(getenv func(string) string) bool {
	return j.Source == allTasks && j.Rank == 0 && getenv("SLURM_STEP_ID") == "" && getenv("SLURM_STEPID") == ""
}

// Detect reads the launcher's variables. Without a launcher it returns rank 0 of 1, named none.
func Detect(getenv func(string) string) Job {
	for _, l := range launchers {
		if l.also != "" && getenv(l.also) == "" {
			continue
		}
		rank, err1 := strconv.Atoi(getenv(l.rank))
		size, err2 := strconv.Atoi(getenv(l.size))
		if err1 == nil && err2 == nil && rank >= 0 && rank < size && size <= math.MaxInt32 { // MPI counts in C's int
			return Job{l.name, rank, size, l.size}
		}
	}
	return Job{"none", 0, 1, ""}
}

// Environment returns Detect of this process's environment.
func Environment() Job { return Detect(os.Getenv) }

// AloneError refuses N worlds of one rank.
type AloneError struct{ error }

// CheckWorld refuses N worlds of one rank: the environment has N tasks, and MPI's world has size
// ranks, one. The error is an AloneError.
func (j Job) CheckWorld(size int) error {
	if size > 1 || j.Size == 1 {
		return nil
	}
	hint := "start with the mpirun of the MPI library that this program is linked with"
	switch j.Name {
	case "slurm", "slurm-pmi2", "slurm-pmix":
		hint = "start with srun --mpi=pmix, or with mpirun inside the allocation"
	case "torchrun":
		hint = "start with mpirun"
	}
	return AloneError{fmt.Errorf("%s says %d tasks, but MPI has a world of 1 in each of them: %s (to run one rank "+
		"on purpose: mpirun -np 1)",
		j.Source, j.Size, hint)}
}

// First reports whether this process is the first to ask of those that its parent has started for
// the job, and that still run. It speaks for those that do not know each other.
func (j Job) First() bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	name := fmt.Sprintf("@lockstep.%d.%s.%d", os.Getppid(), j.Source, j.Size)
	return err != nil || unix.Bind(fd, &unix.SockaddrUnix{Name: name}) != unix.EADDRINUSE
}

// The five of AllowsRoot.
const BeforeOpenMPI5, OpenMPI5 = false, true

// AllowsRoot reports whether the environment lets Open MPI's mpirun start as root, which it refuses
// otherwise. Open MPI 5 has names of its own. Source: mpirun(1), prterun(1).
func AllowsRoot(getenv func(string) string, five bool) bool {
	name := "OMPI_ALLOW_RUN_AS_ROOT"
	if five {
		name = "PRTE_ALLOW_RUN_AS_ROOT"
	}
	return getenv(name) == "1" && getenv(name+"_CONFIRM") == "1"
}

// KillVariable has the seconds from the launcher's SIGTERM to its SIGKILL, if they are not the
// launcher's default.
const KillVariable = "LOCKSTEP_SIGKILL_AFTER"

// KillAfter returns how long ranks go on after their launcher's SIGTERM, or 0 if that is unknown or
// the launcher waits. Open MPI's mpirun waits a second, or odls_base_sigkill_timeout.
func (j Job) KillAfter(getenv func(string) string) time.Duration {
	if j.Name != "openmpi4" && j.Name != "openmpi5" {
		return 0
	}
	for _, name := range []string{
		KillVariable, "PRTE_MCA_odls_base_sigkill_timeout", "OMPI_MCA_odls_base_sigkill_timeout",
	} {
		if n, err := strconv.Atoi(getenv(name)); err == nil && n > 0 {
			return time.Duration(min(n, math.MaxInt32)) * time.Second
		}
	}
	return time.Second
}
