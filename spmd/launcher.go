package spmd

import (
	"fmt"
	"math"
	"os"
	"strconv"
)

// job is what the environment says of this process before MPI has started.
type job struct {
	launcher string // openmpi, mpich, slurm-pmix, slurm-pmi2, slurm, torchrun, none
	rank     int
	size     int
	source   string // the variable that size was read from
}

// launchers in the order of asking: an mpirun inside a Slurm allocation decides
// over Slurm's own variables.
var launchers = []struct{ name, rank, size, also string }{
	{"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ""},
	{"slurm-pmix", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMIX_RANK"},
	{"slurm-pmi2", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID"}, // Hydra's proxies, too, have SLURM_PROCID, of their own
	{"mpich", "PMI_RANK", "PMI_SIZE", ""},
	{"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""},
	{"slurm", "SLURM_PROCID", "SLURM_NTASKS", ""},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
}

// detect reads the launcher's variables.
func detect(getenv func(string) string) job {
	for _, l := range launchers {
		if l.also != "" && getenv(l.also) == "" {
			continue
		}
		rank, err1 := strconv.Atoi(getenv(l.rank))
		size, err2 := strconv.Atoi(getenv(l.size))
		if err1 == nil && err2 == nil && rank >= 0 && rank < size && size <= math.MaxInt32 { // MPI counts in C's int
			return job{l.name, rank, size, l.size}
		}
	}
	return job{"none", 0, 1, ""}
}

// aloneError is the refusal of N worlds of one.
type aloneError struct{ error }

// checkWorld refuses N worlds of one: the environment speaks of N tasks, and MPI
// of one rank.
func (j job) checkWorld(size int) error {
	if size > 1 || j.size == 1 {
		return nil
	}
	hint := "start with the mpirun of the MPI library that this program is linked with"
	switch j.launcher {
	case "slurm", "slurm-pmi2", "slurm-pmix":
		hint = "start with srun --mpi=pmix, or with mpirun inside the allocation"
	case "torchrun":
		hint = "start with mpirun"
	}
	return aloneError{fmt.Errorf("%s says %d tasks, but MPI has a world of 1 in each of them: %s (to run one rank on purpose: mpirun -np 1)",
		j.source, j.size, hint)}
}

func environment() job { return detect(os.Getenv) }
