// A test double of MPI's library, before which it goes by LD_PRELOAD: the process of rank SPMD_TEST_FAULT_RANK stops at the
// end of MPI_Finalize, and says so in the file "fault" of the folder SPMD_TEST_FAULT.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int PMPI_Finalize(void) __attribute__((weak)); // other programs, such as mpirun, have none

int MPI_Finalize(void) {
    int rc = PMPI_Finalize();
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *victim = getenv("SPMD_TEST_FAULT_RANK"), *dir = getenv("SPMD_TEST_FAULT");
    if (rank == NULL || victim == NULL || dir == NULL || strcmp(rank, victim) != 0) return rc;
    char path[4096];
    snprintf(path, sizeof path, "%s/fault", dir);
    FILE *f = fopen(path, "w");
    if (f == NULL || fprintf(f, "%d", (int)getpid()) < 0 || fclose(f) != 0) abort();
    raise(SIGSTOP);
    return rc;
}
