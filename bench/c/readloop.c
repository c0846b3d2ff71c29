/*
 * readloop: how fast can this machine read memory?
 *
 * Each thread sums its own contiguous part of one large array of float32. Nothing is written,
 * so the time is that of reading. It is the yardstick for reduce and matvec, which also read
 * every element once.
 *
 *   cc -O3 -march=native -pthread -o readloop readloop.c
 *   ./readloop [bytes [threads [iterations]]]          default: 480000000, all cores, 20
 *
 * Prints one JSON line:
 *   {"what":"c read loop","bytes":480000000,"threads":2,"median_us":9000.0,"gbps":53.3}
 * median_us is the median over the iterations, after warm-up, of the time from the start of the
 * first thread to the end of the last; gbps is bytes / median (1 GB = 1e9 bytes).
 */
#define _GNU_SOURCE /* pthread_barrier_t, sysconf(_SC_NPROCESSORS_ONLN) */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#define PROGRAM "readloop"
#include "yardstick.h"

enum { WARMUP = 3, LANES = 64 };

typedef struct {
	pthread_t thread;
	float *part;
	size_t len;
	uint64_t seed;
	double sum;    /* of the last pass: used, so that the loop cannot be optimised away */
	double expect; /* of the data as they were written */
	double *begin, *end; /* of each pass, in microseconds */
} worker;

static pthread_barrier_t start; /* before every pass */
static int passes;

static void wait_for_all(void) {
	int err = pthread_barrier_wait(&start);
	if (err != 0 && err != PTHREAD_BARRIER_SERIAL_THREAD) {
		fail("pthread_barrier_wait", strerror(err));
	}
}

/*
 * The loop that is measured. A single running sum would wait for each addition to finish;
 * LANES independent sums become a few vector registers, and memory is the only limit left.
 */
static double read_part(const float *x, size_t n) {
	float lane[LANES] = {0};
	size_t i = 0;
	for (; i + LANES <= n; i += LANES) {
		for (int l = 0; l < LANES; l++) {
			lane[l] += x[i + l];
		}
	}
	double sum = 0;
	for (; i < n; i++) {
		sum += x[i];
	}
	for (int l = 0; l < LANES; l++) {
		sum += lane[l];
	}
	return sum;
}

/* fill writes random values, none of them zero, since zero pages or zero data might be read faster. */
static double fill(float *x, size_t n, uint64_t seed) {
	uint64_t s = seed * 0x9E3779B97F4A7C15u + 1;
	double sum = 0;
	for (size_t i = 0; i < n; i++) {
		s ^= s << 13; /* Marsaglia's xorshift64 */
		s ^= s >> 7;
		s ^= s << 17;
		x[i] = 0.5f + (float)(s >> 40) * 0x1p-24f; /* [0.5, 1.5) */
		sum += x[i];
	}
	return sum;
}

static void *run(void *arg) {
	worker *w = arg;
	w->expect = fill(w->part, w->len, w->seed); /* first touch: the pages lie near this thread */
	for (int p = 0; p < passes; p++) {
		wait_for_all();
		w->begin[p] = now_us();
		w->sum = read_part(w->part, w->len);
		w->end[p] = now_us();
	}
	return NULL;
}

static double *zeros(size_t n) {
	double *x = calloc(n, sizeof(double));
	if (x == NULL) {
		fail("calloc", strerror(ENOMEM));
	}
	return x;
}

static long number(const char *text, const char *name) {
	char *end;
	errno = 0;
	long v = strtol(text, &end, 10);
	if (errno != 0 || *end != '\0' || v < 1) {
		fprintf(stderr, "readloop: %s is \"%s\": a positive whole number is needed\n", name, text);
		exit(2);
	}
	return v;
}

int main(int argc, char **argv) {
	if (argc > 4) {
		fprintf(stderr, "usage: readloop [bytes [threads [iterations]]]\n");
		return 2;
	}
	size_t n = (size_t)(argc > 1 ? number(argv[1], "bytes") : 480000000) / sizeof(float);
	long threads = argc > 2 ? number(argv[2], "threads") : sysconf(_SC_NPROCESSORS_ONLN);
	long iterations = argc > 3 ? number(argv[3], "iterations") : 20;
	if (n < (size_t)threads) {
		fprintf(stderr, "readloop: %zu floats are fewer than %ld threads\n", n, threads);
		return 2;
	}
	passes = WARMUP + (int)iterations;

	float *x;
	int err = posix_memalign((void **)&x, 4096, n * sizeof(float));
	if (err != 0) {
		fail("posix_memalign", strerror(err));
	}
	double *us = zeros((size_t)iterations);
	worker *w = calloc((size_t)threads, sizeof(worker));
	if (w == NULL) {
		fail("calloc", strerror(ENOMEM));
	}
	if ((err = pthread_barrier_init(&start, NULL, (unsigned)threads)) != 0) {
		fail("pthread_barrier_init", strerror(err));
	}
	size_t each = n / (size_t)threads;
	for (long t = 0; t < threads; t++) {
		w[t].part = x + (size_t)t * each;
		w[t].len = t + 1 < threads ? each : n - (size_t)t * each;
		w[t].seed = (uint64_t)t + 1;
		w[t].begin = zeros((size_t)passes);
		w[t].end = zeros((size_t)passes);
		if ((err = pthread_create(&w[t].thread, NULL, run, &w[t])) != 0) {
			fail("pthread_create", strerror(err));
		}
	}

	for (long t = 0; t < threads; t++) {
		if ((err = pthread_join(w[t].thread, NULL)) != 0) {
			fail("pthread_join", strerror(err));
		}
		double off = (w[t].sum - w[t].expect) / w[t].expect;
		if (off > 1e-3 || off < -1e-3) {
			fprintf(stderr, "readloop: thread %ld read %g, but %g was written\n", t, w[t].sum, w[t].expect);
			return 1;
		}
	}
	for (long i = 0; i < iterations; i++) {
		long p = WARMUP + i;
		double begin = w[0].begin[p], end = w[0].end[p];
		for (long t = 1; t < threads; t++) {
			begin = w[t].begin[p] < begin ? w[t].begin[p] : begin;
			end = w[t].end[p] > end ? w[t].end[p] : end;
		}
		us[i] = end - begin;
	}
	qsort(us, (size_t)iterations, sizeof(double), ascending);
	double median = iterations % 2 == 1 ? us[iterations / 2] : (us[iterations / 2 - 1] + us[iterations / 2]) / 2;
	printf("{\"what\":\"c read loop\",\"bytes\":%zu,\"threads\":%ld,\"median_us\":%.1f,\"gbps\":%.2f}\n",
	       n * sizeof(float), threads, median, (double)(n * sizeof(float)) / median * 1e-3);
	for (long t = 0; t < threads; t++) {
		free(w[t].begin);
		free(w[t].end);
	}
	free(us);
	free(w);
	free(x);
	return 0;
}
