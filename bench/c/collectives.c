/*
 * collectives: what do MPI's collectives cost when they are called from C?
 *
 * It is the yardstick for the collectives of the framework on host memory, which call the same functions of the same
 * library, and measures as they are measured.
 *
 *   mpicc -O3 -o collectives collectives.c
 *   mpirun -np 2 ./collectives ITERS WARMUP off|on|both CASE ...
 *
 * off, on and both say whether results overwrite the input. A CASE is op:type:elements:calls, such as
 * allreduce:float32:1024:100: elements of a rank's larger buffer, and calls back to back in one timed iteration.
 * Rank 0 prints one JSON line for each. The time of an iteration is that of the slowest rank, per call; wrong
 * counts elements that are not what they should be.
 */
#include <mpi.h>

#define PROGRAM "collectives"
#include "yardstick.h"

static int rank, ranks;

static const struct type {
	const char *name;
	MPI_Datatype mpi;
	int size;
} types[] = {{"float32", MPI_FLOAT, 4}, {"float64", MPI_DOUBLE, 8}, {"int32", MPI_INT32_T, 4}, {"int64", MPI_INT64_T, 8}};

enum op { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, ALLTOALL, GATHER, SCATTER, SENDRECV, PINGPONG, OPS };

static const char *const names[OPS] = {"allreduce", "reduce", "broadcast", "allgather", "reducescatter",
                                       "alltoall", "gather", "scatter", "sendrecv", "pingpong"};

struct job {
	enum op op;
	const struct type *type;
	long n, part; /* elements, and those of a rank's part */
	int calls, in_place;
	char *dst, *src; /* in place one lies in the other */
	long ndst, nsrc;
};

static void put(const struct job *j, char *buf, long i, long v) {
	switch (j->type->name[0] == 'f' ? j->type->size : -j->type->size) {
	case 4: ((float *)buf)[i] = (float)v; break;
	case 8: ((double *)buf)[i] = (double)v; break;
	case -4: ((int *)buf)[i] = (int)v; break;
	default: ((long long *)buf)[i] = v;
	}
}

static double get(const struct job *j, const char *buf, long i) {
	switch (j->type->name[0] == 'f' ? j->type->size : -j->type->size) {
	case 4: return ((const float *)buf)[i];
	case 8: return ((const double *)buf)[i];
	case -4: return ((const int *)buf)[i];
	default: return (double)((const long long *)buf)[i];
	}
}

/* Element i of rank r's input: a small whole number, whose sums are exact. */
static long value(int r, long i) { return r % 5 + i % 7; }

static long sum(long i) {
	long s = 0;
	for (int r = 0; r < ranks; r++) {
		s += value(r, i);
	}
	return s;
}

/* Whether this rank receives a result. */
static int receives(enum op op) {
	return op == REDUCE || op == GATHER ? rank == 0 : op == PINGPONG ? rank < 2 : 1;
}

/* Element i of this rank's result. */
static long want(const struct job *j, long i) {
	switch (j->op) {
	case ALLREDUCE:
	case REDUCE: return sum(i);
	case ALLGATHER:
	case GATHER: return value((int)(i / j->part), i % j->part);
	case REDUCESCATTER: return sum(rank * j->part + i);
	case ALLTOALL: return value((int)(i / j->part), rank * j->part + i % j->part);
	case SCATTER: return value(0, rank * j->part + i);
	case SENDRECV: return value((rank + ranks - 1) % ranks, i);
	default: return value(0, i);
	}
}

static void fill(struct job *j) {
	for (long i = 0; i < j->ndst; i++) {
		put(j, j->dst, i, -1);
	}
	for (long i = 0; i < j->nsrc && (j->op != BROADCAST || rank == 0); i++) {
		put(j, j->src, i, value(rank, i));
	}
}

static long wrong(const struct job *j) {
	long n = 0, all;
	for (long i = 0; i < j->ndst && receives(j->op); i++) {
		n += get(j, j->dst, i) != (double)want(j, i);
	}
	check(MPI_Allreduce(&n, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD));
	return all;
}

static void call(const struct job *j) {
	MPI_Comm w = MPI_COMM_WORLD;
	MPI_Datatype t = j->type->mpi;
	int n = (int)j->n, part = (int)j->part;
	/* In place the argument for the input is MPI_IN_PLACE: on all ranks, or only on the root where no other has both. */
	const void *src = j->in_place ? MPI_IN_PLACE : j->src;
	const void *src0 = rank == 0 ? src : j->src;
	switch (j->op) {
	case ALLREDUCE: check(MPI_Allreduce(src, j->dst, n, t, MPI_SUM, w)); break;
	case REDUCE: check(MPI_Reduce(src0, j->dst, n, t, MPI_SUM, 0, w)); break;
	case BROADCAST: check(MPI_Bcast(j->dst, n, t, 0, w)); break;
	case ALLGATHER: check(MPI_Allgather(src, part, t, j->dst, part, t, w)); break;
	case REDUCESCATTER:
		/* In place the input lies in the receive buffer, and the result at the beginning of it. */
		check(MPI_Reduce_scatter_block(src, j->dst, part, t, MPI_SUM, w));
		break;
	case ALLTOALL: check(MPI_Alltoall(src, part, t, j->dst, part, t, w)); break;
	case GATHER: check(MPI_Gather(src0, part, t, j->dst, part, t, 0, w)); break;
	case SCATTER:
		check(MPI_Scatter(j->src, part, t, rank == 0 && j->in_place ? MPI_IN_PLACE : j->dst, part, t, 0, w));
		break;
	case SENDRECV:
		check(MPI_Sendrecv(j->src, n, t, (rank + 1) % ranks, 0, j->dst, n, t, (rank + ranks - 1) % ranks, 0, w, MPI_STATUS_IGNORE));
		break;
	default: /* ping-pong */
		if (rank == 0) {
			check(MPI_Send(j->src, n, t, 1, 0, w));
			check(MPI_Recv(j->dst, n, t, 1, 0, w, MPI_STATUS_IGNORE));
		} else if (rank == 1) {
			check(MPI_Recv(j->dst, n, t, 0, 0, w, MPI_STATUS_IGNORE));
			check(MPI_Send(j->dst, n, t, 0, 0, w));
		}
	}
}

static char *bytes(size_t n) {
	char *b = malloc(n);
	if (b == NULL) {
		fail("malloc", "out of memory");
	}
	return b;
}

/* Times j, and prints its line. */
static void measure(struct job *j, int iters, int warmup) {
	size_t size = (size_t)j->type->size;
	j->ndst = j->op == REDUCESCATTER || j->op == SCATTER ? j->part : j->n;
	j->nsrc = j->op == ALLGATHER || j->op == GATHER ? j->part : j->n;
	char *first = bytes((size_t)j->n * size), *second = bytes((size_t)j->n * size);
	j->dst = first;
	j->src = j->in_place ? first : second;
	if (j->in_place && (j->op == ALLGATHER || j->op == GATHER)) {
		j->src = first + (size_t)(rank * j->part) * size;
	} else if (j->in_place && j->op == SCATTER) {
		j->dst = first + (size_t)(rank * j->part) * size;
	}

	fill(j);
	call(j);
	long bad = wrong(j);
	fill(j);
	double *us = (double *)bytes(sizeof(double) * (size_t)iters);
	for (int k = -warmup; k < iters; k++) {
		check(MPI_Barrier(MPI_COMM_WORLD));
		double begin = MPI_Wtime();
		for (int c = 0; c < j->calls; c++) {
			call(j);
		}
		double mine = (MPI_Wtime() - begin) * 1e6 / j->calls, slowest;
		check(MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
		if (k >= 0) {
			us[k] = j->op == PINGPONG ? slowest / 2 : slowest; /* half a round trip */
		}
	}
	int modifies = j->op == ALLREDUCE || j->op == REDUCE || j->op == REDUCESCATTER || j->op == ALLTOALL;
	if (!j->in_place || !modifies) {
		bad += wrong(j);
	}
	if (rank == 0) {
		qsort(us, (size_t)iters, sizeof(double), ascending);
		double median = (us[(iters - 1) / 2] + us[iters / 2]) / 2, p99 = us[((long)iters * 99 + 99) / 100 - 1];
		printf("{\"app\":\"sweep\",\"op\":\"%s\",\"ranks\":%d,\"dtype\":\"%s\",\"elements\":%ld,\"bytes\":%zu,\"in_place\":%s,"
		       "\"calls\":%d,\"iters\":%d,\"min_us\":%.4f,\"median_us\":%.4f,\"p99_us\":%.4f,\"max_us\":%.4f,\"wrong\":%ld,\"ok\":%s}\n",
		       names[j->op], ranks, j->type->name, j->n, (size_t)j->n * size, j->in_place ? "true" : "false", j->calls, iters,
		       us[0], median, p99, us[iters - 1], bad, bad == 0 ? "true" : "false");
		fflush(stdout);
	}
	free(us);
	free(first);
	free(second);
}

static int parse(const char *text, struct job *j) {
	char op[16], type[16];
	if (sscanf(text, "%15[^:]:%15[^:]:%ld:%d", op, type, &j->n, &j->calls) != 4) {
		return 0;
	}
	for (j->op = 0; j->op < OPS && strcmp(names[j->op], op) != 0; j->op++) {
	}
	size_t t = 0, known = sizeof types / sizeof *types;
	for (; t < known && strcmp(types[t].name, type) != 0; t++) {
	}
	j->type = &types[t % known];
	j->part = j->n / ranks;
	return j->op < OPS && t < known && j->n > 0 && j->n <= 0x7fffffff && j->calls > 0;
}

int main(int argc, char **argv) {
	check(MPI_Init(&argc, &argv));
	check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
	check(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
	check(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
	int iters = argc > 4 ? atoi(argv[1]) : 0, warmup = argc > 4 ? atoi(argv[2]) : 0;
	if (iters < 1 || warmup < 0) {
		fail("usage", "collectives ITERS WARMUP off|on|both CASE ...");
	}
	for (int i = 4; i < argc; i++) {
		for (int in_place = 0; in_place < 2; in_place++) {
			struct job j = {0};
			if (!parse(argv[i], &j)) {
				fail(argv[i], "is no case: want op:type:elements:calls");
			}
			j.in_place = in_place;
			int can = j.op == BROADCAST ? in_place : j.op == SENDRECV || j.op == PINGPONG ? !in_place : -1;
			if (can == 1 || (can < 0 && (strcmp(argv[3], "both") == 0 || (strcmp(argv[3], "on") == 0) == in_place))) {
				measure(&j, iters, warmup);
			}
		}
	}
	check(MPI_Finalize());
	return 0;
}
