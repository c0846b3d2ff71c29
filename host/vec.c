#include "vec.h"

#include "loops.h"

// WIDEST compiles a function once for each instruction set and lets the loader choose, so that one
// binary runs on every x86-64. It needs glibc (ifunc). Elsewhere the compiler's baseline is used,
// which on arm64 has vectors anyway.
#if defined(__x86_64__) && defined(__GLIBC__)
#define WIDEST __attribute__((target_clones("default", "fma", "avx512f")))
#else
#define WIDEST
#endif

// Sums run in LANES independent partial sums, so that no addition waits for the one before. They
// are arrays, which the compiler turns into the widest registers there are. So the order of
// additions, and with it every bit of a sum, is the same on every processor.
enum { LANES = 32 };

// FOLD adds up lane[0..n), n a power of two, into lane[0], halves at a time.
#define FOLD(lane, n)                               \
	for (int half = (n) / 2; half > 0; half /= 2) { \
		for (int l = 0; l < half; l++) {            \
			(lane)[l] += (lane)[l + half];          \
		}                                           \
	}

// AHEAD asks for the cache lines of the n floats that lie distance floats after p. The processor's
// own prefetching starts anew at every page; this covers the gap, and the time it takes to widen
// floats to doubles. Past the end of an array it does nothing: a prefetch never faults.
#define AHEAD(p, n, distance)                        \
	for (int line = 0; line < (n); line += LINE) {   \
		__builtin_prefetch((p) + (distance) + line); \
	}
enum { LINE = 16, FAR = 2048, NEAR = 512 }; // floats; NEAR where several rows are read at once

INLINE double sum_one(const float *x, size_t n) {
	double lane[LANES] = {0};
	size_t i = 0;
	for (; i + LANES <= n; i += LANES) {
		AHEAD(x + i, LANES, FAR);
		for (int l = 0; l < LANES; l++) {
			lane[l] += x[i + l];
		}
	}
	for (int l = 0; i + l < n; l++) {
		lane[l] += x[i + l];
	}
	FOLD(lane, LANES);
	return lane[0];
}

// The square of a float is exact in double, so a fused multiply-add changes nothing.
INLINE double sum_squares_one(const float *x, size_t n) {
	double lane[LANES] = {0};
	size_t i = 0;
	for (; i + LANES <= n; i += LANES) {
		AHEAD(x + i, LANES, FAR);
		for (int l = 0; l < LANES; l++) {
			lane[l] += (double)x[i + l] * x[i + l];
		}
	}
	for (int l = 0; i + l < n; l++) {
		lane[l] += (double)x[i + l] * x[i + l];
	}
	FOLD(lane, LANES);
	return lane[0];
}

WIDEST void sum_chunks(double *part, const float *x, size_t n, size_t chunk) {
	for (; n > 0; part++) {
		size_t len = n < chunk ? n : chunk;
		*part = sum_one(x, len);
		x += len;
		n -= len;
	}
}

WIDEST void sum_squares_chunks(double *part, const float *x, size_t n, size_t chunk) {
	for (; n > 0; part++) {
		size_t len = n < chunk ? n : chunk;
		*part = sum_squares_one(x, len);
		x += len;
		n -= len;
	}
}

WIDEST float dot(const float *x, const float *y, size_t n) {
	float lane[LANES] = {0};
	size_t i = 0;
	for (; i + LANES <= n; i += LANES) {
		for (int l = 0; l < LANES; l++) {
			lane[l] += x[i + l] * y[i + l];
		}
	}
	for (int l = 0; i + l < n; l++) {
		lane[l] += x[i + l] * y[i + l];
	}
	FOLD(lane, LANES);
	return lane[0];
}

WIDEST void axpy(float *y, float alpha, const float *x, size_t n) {
	for (size_t i = 0; i < n; i++) {
		y[i] += alpha * x[i];
	}
}

WIDEST void scale(float *x, float alpha, size_t n) {
	for (size_t i = 0; i < n; i++) {
		x[i] *= alpha;
	}
}

// ROWS rows are read together, so that an element of x fetched from cache serves all of them. With
// more rows there are more streams than the processor prefetches well. A lane adds up at most
// BLOCK/LANES products before its sum goes into a double.
enum { ROWS = 2, BLOCK = 1 << 14 };

INLINE void gemv_some(size_t rows, size_t n, float alpha, const float *a, size_t lda, const float *x,
	float beta, float *y) {
	double sum[ROWS] = {0};
	for (size_t j = 0; j < n;) {
		float lane[ROWS][LANES] = {{0}};
		size_t end = n - j < BLOCK ? n : j + BLOCK;
		for (; j + LANES <= end; j += LANES) {
			for (size_t r = 0; r < rows; r++) {
				AHEAD(a + r * lda + j, LANES, NEAR);
				for (int l = 0; l < LANES; l++) {
					lane[r][l] += a[r * lda + j + l] * x[j + l];
				}
			}
		}
		for (size_t r = 0; r < rows; r++) {
			for (int l = 0; j + l < end; l++) {
				lane[r][l] += a[r * lda + j + l] * x[j + l];
			}
			FOLD(lane[r], LANES);
			sum[r] += lane[r][0];
		}
		j = end;
	}
	for (size_t r = 0; r < rows; r++) {
		y[r] = alpha * (float)sum[r] + (beta == 0 ? 0 : beta * y[r]);
	}
}

WIDEST void gemv_rows(size_t m, size_t n, float alpha, const float *a, size_t lda, const float *x,
	float beta, float *y) {
	size_t i = 0;
	for (; i + ROWS <= m; i += ROWS) {
		gemv_some(ROWS, n, alpha, a + i * lda, lda, x, beta, y + i);
	}
	for (; i < m; i++) {
		gemv_some(1, n, alpha, a + i * lda, lda, x, beta, y + i);
	}
}

// Transposed, each row of A adds to all of y. TRANS_ROWS go together, so that y is read and written
// less often, for TRANS_BLOCK elements of y, which fit in the second-level cache.
enum { TRANS_ROWS = 4, TRANS_BLOCK = 1 << 15 };

WIDEST void gemv_trans(size_t m, size_t n, float alpha, const float *a, size_t lda, const float *x,
	float beta, float *y) {
	for (size_t j = 0; j < n; j += TRANS_BLOCK) {
		size_t len = n - j < TRANS_BLOCK ? n - j : TRANS_BLOCK;
		float *restrict out = y + j;
		for (size_t k = 0; k < len; k++) {
			out[k] = beta == 0 ? 0 : beta * out[k];
		}
		size_t i = 0;
		for (; i + TRANS_ROWS <= m; i += TRANS_ROWS) {
			const float *r0 = a + i * lda + j, *r1 = r0 + lda, *r2 = r1 + lda, *r3 = r2 + lda;
			float x0 = alpha * x[i], x1 = alpha * x[i + 1], x2 = alpha * x[i + 2], x3 = alpha * x[i + 3];
			size_t k = 0;
			for (; k + LINE <= len; k += LINE) {
				AHEAD(r0 + k, LINE, NEAR);
				AHEAD(r1 + k, LINE, NEAR);
				AHEAD(r2 + k, LINE, NEAR);
				AHEAD(r3 + k, LINE, NEAR);
				for (int l = 0; l < LINE; l++) {
					out[k + l] += (x0 * r0[k + l] + x1 * r1[k + l]) + (x2 * r2[k + l] + x3 * r3[k + l]);
				}
			}
			for (; k < len; k++) {
				out[k] += (x0 * r0[k] + x1 * r1[k]) + (x2 * r2[k] + x3 * r3[k]);
			}
		}
		for (; i < m; i++) {
			const float *row = a + i * lda + j;
			float xi = alpha * x[i];
			for (size_t k = 0; k < len; k++) {
				out[k] += xi * row[k];
			}
		}
	}
}

WIDEST void widen_bf16(float *restrict dst, const uint16_t *restrict src, size_t n) {
	for (size_t i = 0; i < n; i++) {
		uint32_t bits = (uint32_t)src[i] << 16;
		memcpy(dst + i, &bits, sizeof bits);
	}
}

WIDEST void round_bf16(uint16_t *restrict dst, const float *restrict src, size_t n) {
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, src + i, sizeof bits);
		uint32_t nan = (bits >> 16) | 1 << 6, near = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
		dst[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : near);
	}
}
