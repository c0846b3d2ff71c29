package cudampi

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Aware says whether the MPI library takes addresses of CUDA device memory, and which answer says
// so.
type Aware struct {
	Yes    bool
	Reason string // for the line a program logs at its start
}

// awareEnv overrides the library's own answer: "yes" or "no".
const awareEnv = "LOCKSTEP_MPI_CUDA"

// CUDAAware asks the MPI library, without touching device memory: a library that is not aware
// crashes when it is tried. The first of these that has an answer gives it: the environment
// variable LOCKSTEP_MPI_CUDA (yes or no), the info mpi_memory_alloc_kinds of MPI 4.1,
// MPIX_Query_cuda_support of Open MPI and MPICH, MPIX_GPU_query_support of MPICH.
//
// The answer holds for this process: ranks may differ, see AwareOnAll. MPI must be running. A
// library can be wrong about itself, as Open MPI is with a transport built without CUDA: then say
// no.
func CUDAAware() (Aware, error) {
	if !world.running.Load() {
		return Aware{}, errors.New("cudampi: MPI does not run: whether it takes device memory cannot be asked")
	}
	kinds, known := sysAllocKinds()
	return awareness(os.Getenv(awareEnv), kinds, known, sysQueryCUDA(), sysQueryGPU(), Version())
}

// awareness is CUDAAware for given answers; a query's answer is 1, 0, or -1 for none.
func awareness(env, kinds string, known bool, query, gpu int, library string) (Aware, error) {
	switch env {
	case "yes", "no":
		return Aware{env == "yes", awareEnv + "=" + env}, nil
	case "":
	default:
		return Aware{}, fmt.Errorf("cudampi: %s=%q: want yes or no", awareEnv, env)
	}
	answer := map[bool]string{true: "yes", false: "no"}
	switch {
	case known:
		yes := false
		for kind := range strings.SplitSeq(kinds, ",") {
			name, restrictors, _ := strings.Cut(strings.TrimSpace(kind), ":")
			yes = yes || name == "cuda" && (restrictors == "" || strings.Contains(":"+restrictors+":", ":device:"))
		}
		return Aware{yes, fmt.Sprintf("mpi_memory_alloc_kinds of %s is %q", library, kinds)}, nil
	case query >= 0:
		return Aware{query == 1, fmt.Sprintf("MPIX_Query_cuda_support of %s says %s", library, answer[query == 1])}, nil
	case gpu >= 0:
		return Aware{gpu == 1, fmt.Sprintf("MPIX_GPU_query_support of %s says %s", library, answer[gpu == 1])}, nil
	}
	return Aware{false, library + " cannot say whether it takes device memory"}, nil
}

// AwareOnAll is CUDAAware, with Yes only if all ranks say so. Collective; it blocks.
func (c *Comm) AwareOnAll() (Aware, error) {
	a, err := CUDAAware()
	if err := c.FirstFailure(err); err != nil {
		return a, err
	}
	a.Yes, err = c.All(a.Yes)
	return a, err
}
