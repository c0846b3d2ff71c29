/*
 * What the programs of this folder share. PROGRAM is the program's name, for its messages. With mpi.h included
 * before it, a failure ends all ranks, and check takes the results of MPI; with cuda.h, those of the driver.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void fail(const char *what, const char *why) {
	fprintf(stderr, PROGRAM ": %s: %s\n", what, why);
#ifdef MPI_VERSION
	MPI_Abort(MPI_COMM_WORLD, 1);
#endif
	exit(1); /* MPI_Abort does not return; this tells the compiler */
}

#if defined(MPI_VERSION)
static inline void mpi(const char *what, int code) {
	if (code != MPI_SUCCESS) {
		char text[MPI_MAX_ERROR_STRING] = "unknown error";
		int len;
		MPI_Error_string(code, text, &len);
		fail(what, text);
	}
}

static inline void check(int code) { mpi("MPI", code); }
#elif defined(CUDA_VERSION)
static inline void check(const char *what, CUresult code) {
	if (code != CUDA_SUCCESS) {
		const char *why = "unknown error";
		cuGetErrorString(code, &why);
		fail(what, why);
	}
}
#endif

static inline double now_us(void) {
	struct timespec t;
	if (clock_gettime(CLOCK_MONOTONIC, &t) != 0) {
		fail("clock_gettime", strerror(errno));
	}
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static inline int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}
