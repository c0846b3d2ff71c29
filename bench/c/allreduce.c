/*
 * allreduce: what does MPI_Allreduce cost when it is called from C?
 *
 * Sums float32 over all ranks, for each size given in bytes. It is the yardstick for the all-reduce of the
 * framework, which calls the same function of the same library.
 *
 *   mpicc -O3 -o allreduce allreduce.c
 *   mpirun -np 2 ./allreduce [bytes ...]               default: 8 16384 1048576 67108864
 *
 * Rank 0 prints one JSON line for each size:
 *   {"what":"c allreduce","ranks":2,"bytes":8,"median_us":0.310,"min_us":0.302}
 * A size is measured in batches of calls, after a warm-up. The time per call of a batch is that of the
 * slowest rank; median_us and min_us are taken over the batches.
 */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 21, WARMUP_BATCHES = 3 };

/* A batch is long enough for the clock and short enough for a tool: it moves about this much. */
enum { BATCH_BYTES = 1 << 26, MOST_CALLS = 2000, LEAST_CALLS = 3 };

static void fail(const char *what, const char *why) {
	fprintf(stderr, "allreduce: %s: %s\n", what, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1); /* MPI_Abort does not return; this tells the compiler */
}

static void check(const char *what, int code) {
	if (code != MPI_SUCCESS) {
		char text[MPI_MAX_ERROR_STRING] = "unknown error";
		int len;
		MPI_Error_string(code, text, &len);
		fail(what, text);
	}
}

static int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static float *floats(int n) {
	float *x = malloc((size_t)n * sizeof(float));
	if (x == NULL) {
		fail("malloc", strerror(ENOMEM));
	}
	return x;
}

static void measure(int n, int rank, int ranks) {
	float *src = floats(n), *dst = floats(n);
	for (int i = 0; i < n; i++) {
		src[i] = (float)(rank + 1 + i % 7); /* small integers: their sums are exact */
		dst[i] = -1;
	}

	int calls = (int)(BATCH_BYTES / ((size_t)n * sizeof(float)));
	calls = calls > MOST_CALLS ? MOST_CALLS : calls < LEAST_CALLS ? LEAST_CALLS : calls;
	double us[BATCHES];
	for (int b = -WARMUP_BATCHES; b < BATCHES; b++) {
		check("MPI_Barrier", MPI_Barrier(MPI_COMM_WORLD));
		double begin = MPI_Wtime();
		for (int c = 0; c < calls; c++) {
			check("MPI_Allreduce", MPI_Allreduce(src, dst, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
		}
		double mine = (MPI_Wtime() - begin) * 1e6 / calls, slowest;
		check("MPI_Allreduce", MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
		if (b >= 0) {
			us[b] = slowest;
		}
	}

	for (int i = 0; i < n; i++) {
		float want = (float)(ranks * (ranks + 1) / 2 + ranks * (i % 7));
		if (dst[i] != want) {
			char why[96];
			snprintf(why, sizeof why, "element %d is %g, want %g", i, dst[i], want);
			fail("wrong result", why);
		}
	}
	if (rank == 0) {
		qsort(us, BATCHES, sizeof(double), ascending);
		printf("{\"what\":\"c allreduce\",\"ranks\":%d,\"bytes\":%zu,\"median_us\":%.3f,\"min_us\":%.3f}\n",
		       ranks, (size_t)n * sizeof(float), us[BATCHES / 2], us[0]);
		fflush(stdout);
	}
	free(src);
	free(dst);
}

int main(int argc, char **argv) {
	check("MPI_Init", MPI_Init(&argc, &argv));
	check("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
	int rank, ranks;
	check("MPI_Comm_rank", MPI_Comm_rank(MPI_COMM_WORLD, &rank));
	check("MPI_Comm_size", MPI_Comm_size(MPI_COMM_WORLD, &ranks));

	static char *defaults[] = {"8", "16384", "1048576", "67108864"};
	char **sizes = argc > 1 ? argv + 1 : defaults;
	int n = argc > 1 ? argc - 1 : (int)(sizeof defaults / sizeof *defaults);
	for (int i = 0; i < n; i++) {
		char *end;
		errno = 0;
		long bytes = strtol(sizes[i], &end, 10);
		if (errno != 0 || *end != '\0' || bytes < 4 || bytes % 4 != 0 || bytes / 4 > 0x7fffffff) {
			if (rank == 0) {
				fprintf(stderr, "allreduce: \"%s\" is not a size in bytes: a multiple of 4, at most 8 GiB, is needed\n", sizes[i]);
			}
			check("MPI_Finalize", MPI_Finalize());
			return 2;
		}
		measure((int)(bytes / 4), rank, ranks);
	}
	check("MPI_Finalize", MPI_Finalize());
	return 0;
}
