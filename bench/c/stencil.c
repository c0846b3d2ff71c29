/*
 * stencil: what does the heat equation on a grid cost in C, with MPI and OpenMP?
 *
 * It is the yardstick for apps/stencil on host memory: the same explicit steps in float32 on a grid of two dimensions with
 * cells of 0 beyond it, the cells shared out over a mesh of ranks, halos exchanged while the inside is computed. Columns
 * travel as MPI's vectors.
 *
 *   mpicc -O3 -march=native -fopenmp -o stencil stencil.c
 *   OMP_NUM_THREADS=1 mpirun -np 2 ./stencil ROWS COLUMNS STEPS ITERATIONS WARMUP
 *
 * An iteration is STEPS steps, an even number. Rank 0 prints one JSON line with the fields that the application has:
 *   {"app":"stencil","ranks":2,"mesh":"2x1","threads":1,...,"bytes":1342177280,...,"median_us":98000.0,...,"gbps":13.70,...}
 * Times are those of the slowest rank in an iteration. gbps counts each cell as read and written once in a step. The grid
 * begins as a product of sines, which every step multiplies by a known factor. A difference of more than 1e-4 from that ends
 * the program with status 1.
 */
#include <math.h>
#include <mpi.h>
#include <omp.h>

#define PROGRAM "stencil"
#include "yardstick.h"

static const float beside = 1.0f / 8, centre = 1.0f / 2;

static long number(const char *text, const char *name, long least) {
	char *end;
	long v = strtol(text, &end, 10);
	if (*text == '\0' || *end != '\0' || v < least) {
		fail(name, text);
	}
	return v;
}

/* This rank's cells: rows by columns, with a border of one cell around them, pitch elements from row to row. */
static long rows, columns, pitch;
static MPI_Comm mesh;
static MPI_Datatype column;
static int above, below, left, right; /* ranks, or MPI_PROC_NULL */

static void compute(float *restrict out, const float *restrict in, long row0, long row1, long col0, long col1) {
#pragma omp parallel for schedule(static)
	for (long r = row0; r < row1; r++) {
		const float *restrict u = in + (r + 1) * pitch + 1, *restrict up = u - pitch, *restrict down = u + pitch;
		float *restrict o = out + (r + 1) * pitch + 1;
#pragma omp simd
		for (long c = col0; c < col1; c++) {
			o[c] = centre * u[c] + beside * ((up[c] + down[c]) + (u[c - 1] + u[c + 1]));
		}
	}
}

/* start begins the exchange of the halos of u. */
static int start(float *u, MPI_Request *q) {
	float *first = u + pitch + 1, *last = u + rows * pitch + 1;
	check(MPI_Irecv(first - pitch, (int)columns, MPI_FLOAT, above, 0, mesh, &q[0]));
	check(MPI_Irecv(last + pitch, (int)columns, MPI_FLOAT, below, 1, mesh, &q[1]));
	check(MPI_Irecv(first - 1, 1, column, left, 2, mesh, &q[2]));
	check(MPI_Irecv(first + columns, 1, column, right, 3, mesh, &q[3]));
	check(MPI_Isend(first, (int)columns, MPI_FLOAT, above, 1, mesh, &q[4]));
	check(MPI_Isend(last, (int)columns, MPI_FLOAT, below, 0, mesh, &q[5]));
	check(MPI_Isend(first, 1, column, left, 3, mesh, &q[6]));
	check(MPI_Isend(first + columns - 1, 1, column, right, 2, mesh, &q[7]));
	return 8;
}

static void step(float *out, float *in) {
	MPI_Request q[8];
	int n = start(in, q);
	long r0 = above != MPI_PROC_NULL, r1 = rows - (below != MPI_PROC_NULL);
	long c0 = left != MPI_PROC_NULL, c1 = columns - (right != MPI_PROC_NULL);
	compute(out, in, r0, r1, c0, c1);
	check(MPI_Waitall(n, q, MPI_STATUSES_IGNORE));
	if (r0 > 0) compute(out, in, 0, 1, 0, columns);
	if (r1 < rows && rows > 1) compute(out, in, rows - 1, rows, 0, columns);
	if (c0 > 0) compute(out, in, r0, r1, 0, 1);
	if (c1 < columns && columns > 1) compute(out, in, r0, r1, columns - 1, columns);
}

/* share sets the part of n cells that place of places has. */
static void share(long n, int place, int places, long *off, long *len) {
	long part = n / places, rest = n % places;
	*off = place * part + (place < rest ? place : rest);
	*len = part + (place < rest);
}

int main(int argc, char **argv) {
	int provided, rank, ranks, dims[2] = {0, 0}, periods[2] = {0, 0}, place[2];
	check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided));
	if (argc != 6) {
		fail("usage", "stencil ROWS COLUMNS STEPS ITERATIONS WARMUP");
	}
	long size[2] = {number(argv[1], "ROWS", 1), number(argv[2], "COLUMNS", 1)}, off[2], steps = number(argv[3], "STEPS", 2);
	long iterations = number(argv[4], "ITERATIONS", 1), warmup = number(argv[5], "WARMUP", 0);
	if (steps % 2 != 0) {
		fail("STEPS", "an even number is needed");
	}
	check(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
	check(MPI_Dims_create(ranks, 2, dims));
	check(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &mesh));
	check(MPI_Comm_rank(mesh, &rank));
	check(MPI_Cart_coords(mesh, rank, 2, place));
	check(MPI_Cart_shift(mesh, 0, 1, &above, &below));
	check(MPI_Cart_shift(mesh, 1, 1, &left, &right));
	share(size[0], place[0], dims[0], &off[0], &rows);
	share(size[1], place[1], dims[1], &off[1], &columns);
	if (rows < 1 || columns < 1) {
		fail("the grid", "fewer cells than ranks");
	}
	pitch = columns + 2;
	check(MPI_Type_vector((int)rows, 1, (int)pitch, MPI_FLOAT, &column));
	check(MPI_Type_commit(&column));

	float *u[2];
	for (int i = 0; i < 2; i++) {
		if (posix_memalign((void **)&u[i], 4096, (rows + 2) * pitch * sizeof(float)) != 0) {
			fail("memory", "not enough");
		}
#pragma omp parallel for schedule(static) /* first touch: the pages lie near the thread that computes with them */
		for (long r = 0; r < rows + 2; r++) {
			for (long c = 0; c < pitch; c++) {
				u[i][r * pitch + c] = 0;
			}
		}
	}
	/* A product of sines, with waves so long that it keeps about a third of its height. */
	double factor = 1, angle[2];
	for (int a = 0; a < 2; a++) {
		double wanted = sqrt(4.0 / (double)(steps * (iterations + warmup))), unit = acos(-1) / (double)(size[a] + 1);
		double waves = floor(wanted / unit + 0.5);
		waves = waves < 1 ? 1 : waves > size[a] ? size[a] : waves;
		angle[a] = waves * unit;
		factor -= 4 * beside * sin(angle[a] / 2) * sin(angle[a] / 2);
	}
	for (long r = 0; r < rows; r++) {
		for (long c = 0; c < columns; c++) {
			u[0][(r + 1) * pitch + 1 + c] = (float)(sin(angle[0] * (double)(off[0] + r + 1)) * sin(angle[1] * (double)(off[1] + c + 1)));
		}
	}

	double *us = calloc((size_t)iterations, sizeof(double));
	if (us == NULL) {
		fail("memory", "not enough");
	}
	for (long i = -warmup; i < iterations; i++) {
		check(MPI_Barrier(mesh));
		double begin = MPI_Wtime();
		for (long k = 0; k < steps; k++) {
			step(u[(k + 1) % 2], u[k % 2]);
		}
		double took = (MPI_Wtime() - begin) * 1e6;
		if (i >= 0) {
			us[i] = took;
		}
	}
	check(MPI_Allreduce(MPI_IN_PLACE, us, (int)iterations, MPI_DOUBLE, MPI_MAX, mesh));

	double worst = 0, height = pow(factor, (double)(steps * (iterations + warmup)));
	for (long r = 0; r < rows; r++) {
		for (long c = 0; c < columns; c++) {
			double want = height * sin(angle[0] * (double)(off[0] + r + 1)) * sin(angle[1] * (double)(off[1] + c + 1));
			double d = fabs(u[0][(r + 1) * pitch + 1 + c] - want);
			worst = d <= worst ? worst : d; /* NaN is the worst of all */
		}
	}
	check(MPI_Allreduce(MPI_IN_PLACE, &worst, 1, MPI_DOUBLE, MPI_MAX, mesh));
	if (!(worst <= 1e-4)) {
		fail("the result is wrong", "it differs from the closed form");
	}
	if (rank == 0) {
		qsort(us, (size_t)iterations, sizeof(double), ascending);
		double median = (us[(iterations - 1) / 2] + us[iterations / 2]) / 2;
		double bytes = 2.0 * sizeof(float) * (double)size[0] * (double)size[1] * (double)steps;
		printf("{\"app\":\"stencil\",\"ranks\":%d,\"mesh\":\"%dx%d\",\"threads\":%d,\"dtype\":\"float32\",\"elements\":%ld,\"bytes\":%.0f,"
		       "\"iters\":%ld,\"min_us\":%.1f,\"median_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"gbps\":%.2f,\"ok\":true,\"max_err\":%.2g}\n",
		       ranks, dims[0], dims[1], omp_get_max_threads(), size[0] * size[1], bytes, iterations, us[0], median,
		       us[(iterations * 99 + 99) / 100 - 1], us[iterations - 1], bytes / median * 1e-3, worst);
	}
	free(us);
	free(u[0]);
	free(u[1]);
	check(MPI_Finalize());
	return 0;
}
