// A test double of MPI's library, before which it goes by LD_PRELOAD: MPI_Init writes to shared memory that there is no room
// for, on every rank. What the kernel does then is real. The process of rank SPMD_TEST_FAULT_RANK says so in the file "fault" of
// the folder SPMD_TEST_FAULT.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int MPI_Init(int *argc, char ***argv) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *victim = getenv("SPMD_TEST_FAULT_RANK"), *dir = getenv("SPMD_TEST_FAULT");
    (void)argc, (void)argv;
    if (rank == NULL || victim == NULL || dir == NULL) abort();
    if (strcmp(rank, victim) == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/fault", dir);
        FILE *f = fopen(path, "w");
        if (f == NULL || fprintf(f, "%d", (int)getpid()) < 0 || fclose(f) != 0) abort();
    }
    char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_create("empty", MFD_CLOEXEC), 0);
    if (p == MAP_FAILED) abort();
    *(volatile char *)p = 1;
    abort();
}
