// A test double of libraries that take signals when MPI starts: it goes before MPI's own library,
// by LD_PRELOAD.
#include <signal.h>

extern int PMPI_Init(int *argc, char ***argv) __attribute__((weak)); // other programs, such as mpirun, have none

static void deaf(int sig) { (void)sig; }

int MPI_Init(int *argc, char ***argv) {
    int rc = PMPI_Init(argc, argv);
    for (int sig = 1; sig < 32; sig++) signal(sig, deaf);
    return rc;
}
