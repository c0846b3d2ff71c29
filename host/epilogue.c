#include "epilogue.h"

#include "loops.h"

// gelu(x) = x (1 + tanh(u)) / 2 = x / (1 + e^-2u) with u = sqrt(2/pi) (x + 0.044715 x^3): one
// exponential, and nothing cancels for large -x.
#define GELU_2K 1.5957691216f // 2 sqrt(2/pi)
#define GELU_A 0.044715f

CLONES void add_rows(float *y, size_t ldy, const float *bias, const float *add, size_t ldadd, size_t rows, size_t n) {
	for (size_t i = 0; i < rows; i++) {
		float *restrict o = y + i * ldy;
		const float *a = add + i * ldadd;
		if (bias && add) {
			for (size_t j = 0; j < n; j++) o[j] = a[j] + (o[j] + bias[j]);
		} else if (bias) {
			for (size_t j = 0; j < n; j++) o[j] += bias[j];
		} else {
			for (size_t j = 0; j < n; j++) o[j] += a[j];
		}
	}
}

INLINE void gelu_row(float *restrict o, float *restrict x, size_t n) {
	for (size_t j = 0; j < n; j++) {
		float v = x[j];
		o[j] = v / (1.0f + exp_(-GELU_2K * (v + GELU_A * v * v * v)));
	}
}

INLINE void bias_gelu_row(float *restrict o, float *restrict x, const float *restrict bias, size_t n) {
	for (size_t j = 0; j < n; j++) {
		float v = o[j] + bias[j];
		x[j] = v;
		o[j] = v / (1.0f + exp_(-GELU_2K * (v + GELU_A * v * v * v)));
	}
}

CLONES void gelu_rows(float *y, size_t ldy, float *x, size_t ldx, const float *bias, size_t rows, size_t n) {
	for (size_t i = 0; i < rows; i++) {
		if (bias) {
			bias_gelu_row(y + i * ldy, x + i * ldx, bias, n);
		} else {
			memcpy(x + i * ldx, y + i * ldy, n * sizeof *x);
			gelu_row(y + i * ldy, x + i * ldx, n);
		}
	}
}

CLONES void dgelu_rows(float *y, size_t ldy, const float *x, size_t ldx, size_t rows, size_t n) {
	for (size_t i = 0; i < rows; i++) {
		float *restrict o = y + i * ldy;
		const float *restrict xi = x + i * ldx;
		for (size_t j = 0; j < n; j++) {
			float v = xi[j], q = v * v;
			float e = exp_(-GELU_2K * (v + GELU_A * q * v));
			float s = 1.0f / (1.0f + e);
			o[j] *= s + v * s * (e * s) * (GELU_2K * (1.0f + 3.0f * GELU_A * q)); // e s is 1 - s
		}
	}
}

// Column sums go by strips that stay in the first cache, and by runs of rows, so that the error of a sum
// grows with the run and the number of runs, not with the number of rows.
enum { STRIP = 256, RUN = 64 };

CLONES void sum_columns(float *sum, const float *x, size_t ld, size_t rows, size_t n) {
	for (size_t s = 0; s < n; s += STRIP) {
		size_t w = n - s < STRIP ? n - s : STRIP;
		float *restrict out = sum + s;
		memset(out, 0, w * sizeof *out);
		for (size_t i = 0; i < rows;) {
			float part[STRIP] = {0};
			size_t end = rows - i < RUN ? rows : i + RUN;
			for (; i < end; i++) {
				const float *xi = x + i * ld + s;
				for (size_t j = 0; j < w; j++) part[j] += xi[j];
			}
			for (size_t j = 0; j < w; j++) out[j] += part[j];
		}
	}
}
