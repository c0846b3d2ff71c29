// The epilogues of a matrix product, in float32, one thread each. Rows of n elements are ld..
// apart.

#include <stddef.h>

// y = (y + bias) + add; either may be NULL.
void add_rows(float *y, size_t ldy, const float *bias, const float *add, size_t ldadd, size_t rows, size_t n);
// x = y + bias, y = gelu(x); bias may be NULL.
void gelu_rows(float *y, size_t ldy, float *x, size_t ldx, const float *bias, size_t rows, size_t n);
// y = y * gelu'(x)
void dgelu_rows(float *y, size_t ldy, const float *x, size_t ldx, size_t rows, size_t n);
// sum[j] = the sum of column j
void sum_columns(float *sum, const float *x, size_t ld, size_t rows, size_t n);
