#include "epilogue.h"

#include "loops.h"

// gelu(x) = x (1 + tanh(u)) / 2 = x / (1 + e^-2u) with u = sqrt(2/pi) (x + 0.044715 x^3). The
// second form takes one exponential, and nothing cancels in it for large -x.
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

INLINE float gelu(float v) { return v / (1.0f + exp_(-GELU_2K * (v + GELU_A * v * v * v))); }

INLINE void gelu_row(float *restrict o, const float *restrict x, size_t n) {
	for (size_t j = 0; j < n; j++) o[j] = gelu(x[j]);
}

INLINE void bias_gelu_row(float *restrict o, float *restrict x, const float *restrict bias, size_t n) {
	for (size_t j = 0; j < n; j++) {
		float v = o[j] + bias[j];
		x[j] = v;
		o[j] = gelu(v);
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

CLONES void sum_columns(float *sum, const float *x, size_t ld, size_t rows, size_t n) {
	column_sums(sum, x, (long)ld, (long)rows, 0, 0, (long)n);
}
