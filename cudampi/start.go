package cudampi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	mpi "github.com/sbromberger/gompi"

	"lockstep/internal/launcher"
)

var world struct {
	sync.Mutex
	comm    *Comm
	gompi   *mpi.Communicator // on MPI_COMM_WORLD itself
	running atomic.Bool       // read without the lock, which a Stop that waits for others holds
}

type setting struct{ name, value string }

// startEnv is the variables that MPI libraries read at MPI_Init; the user's own settings go first.
var startEnv = []setting{
	// gompi calls MPI_Init, which asks for no threads, or MPI_THREAD_MULTIPLE, which costs. Level 2
	// is serialized.
	{"OMPI_MPI_THREAD_LEVEL", "2"},
	{"MPIR_CVAR_DEFAULT_THREAD_LEVEL", "MPI_THREAD_SERIALIZED"},
	// UCX would take SIGSEGV, SIGBUS and SIGFPE, which are Go panics.
	{"UCX_ERROR_SIGNALS", "SIGILL"},
	// hwloc would look for OpenCL and X displays, which MPI has no use for: 0.3 s of a program that
	// starts without mpirun.
	{"HWLOC_COMPONENTS", "-opencl,-gl"},
}

// withoutShell reports whether this is a job of one process, on a machine without a program by
// which Open MPI 4 would start others on other machines. The daemon that it starts for such a job
// looks for that all the same, and ends the job if it finds none. Source: Open MPI 4.1,
// orte/mca/plm/rsh/plm_rsh_component.c, orte_plm_rsh_component_query.
func withoutShell() bool {
	if launcher.Environment().Name != "none" || os.Getenv("OMPI_MCA_plm_rsh_agent") != "" {
		return false
	}
	return !slices.ContainsFunc([]string{"ssh", "rsh"}, func(name string) bool {
		_, err := exec.LookPath(name)
		return err == nil
	})
}

// Start starts MPI and returns a duplicate of MPI_COMM_WORLD. While MPI runs, it returns that Comm
// again.
//
// Collective: every process of the job calls it. It blocks until MPI has found the others; a
// process that was started without mpirun is a job of its own. It fails if MPI was stopped before,
// was started by someone else, or does not allow calls from changing threads. A failure of MPI_Init
// itself ends the process with MPI's own message. Source: mpi.h, MPI_Init (by gompi),
// MPI_Query_thread, MPI_Comm_dup.
func Start() (*Comm, error) {
	world.Lock()
	defer world.Unlock()
	if world.running.Load() {
		return world.comm, nil
	}
	if mpi.IsOn() {
		return nil, errors.New("cudampi: MPI was started before, and it starts only once in a process")
	}
	env := startEnv
	if withoutShell() {
		env = append(slices.Clone(env), setting{"OMPI_MCA_plm", "isolated"})
	}
	for _, e := range env {
		if _, set := os.LookupEnv(e.name); set {
			continue
		}
		if err := os.Setenv(e.name, e.value); err != nil {
			return nil, fmt.Errorf("cudampi: environment of MPI: %w", err)
		}
	}
	sysKeepHandlers(launcher.Environment().Rank)
	mpi.Start(false)
	sysRestoreHandlers()

	c, err := worldComm()
	if err != nil {
		mpi.Stop()
		return nil, err
	}
	world.comm, world.gompi = c, mpi.NewCommunicator(nil)
	world.running.Store(true)
	return c, nil
}

func worldComm() (*Comm, error) {
	level, code := sysThreadLevel()
	if code != success {
		return nil, outside("MPI_Query_thread", code)
	}
	if level < threadMin {
		return nil, fmt.Errorf("cudampi: MPI gives thread level %d, but level %d (MPI_THREAD_SERIALIZED) "+
			"is needed: see OMPI_MPI_THREAD_LEVEL", level, threadMin)
	}
	if code := sysMakeOps(); code != success {
		return nil, outside("MPI_Op_create", code)
	}
	h, code := sysDupWorld()
	if code != success {
		return nil, outside("MPI_Comm_dup", code)
	}
	return newComm(h)
}

// outside returns the error of a call without a Comm.
func outside(op string, code int) error { return (&Comm{rank: -1}).failed(op, code, "") }

// Stop frees the Comm that Start returned and stops MPI; a second call, or one without Start, does
// nothing. Every Comm is unusable afterwards.
//
// Collective: every process of the job calls it, after it has freed its other Comms. It blocks
// until all have. Source: mpi.h, MPI_Comm_free, MPI_Finalize (by gompi).
func Stop() error {
	world.Lock()
	defer world.Unlock()
	if !world.running.Load() {
		return nil
	}
	err := world.comm.Close()
	if code := sysFreeOps(); code != success && err == nil {
		err = outside("MPI_Op_free", code)
	}
	world.running.Store(false)
	sysFreeScratch()
	mpi.Stop()
	return err
}

// Running reports whether MPI runs in this process: between Start and Stop.
func Running() bool { return world.running.Load() }

// Abort ends the job on every rank with the given exit status, if MPI runs; otherwise it does
// nothing. It is for failures between Start and the first Comm of one's own. Source: mpi.h,
// MPI_Abort.
func Abort(status int) {
	world.Lock()
	defer world.Unlock()
	if world.running.Load() {
		world.comm.Abort(status)
	}
}

// Version returns the name and version of the MPI library, such as "Open MPI 4.1.4". MPI need not
// be running. Source: mpi.h, MPI_Get_library_version.
func Version() string { return shortVersion(sysLibraryVersion()) }

// shortVersion takes the name and version from "Open MPI v4.1.4, package: Debian OpenMPI, ..." and
// from "MPICH Version: 4.0.2\nMPICH Release date: ...".
func shortVersion(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	s, _, _ = strings.Cut(s, ",")
	words := strings.Fields(strings.ReplaceAll(s, "Version:", " "))
	for i, w := range words {
		if len(w) > 1 && w[0] == 'v' && w[1] >= '0' && w[1] <= '9' {
			words[i] = w[1:]
		}
	}
	return strings.Join(words, " ")
}
