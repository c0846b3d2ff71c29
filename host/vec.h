// Vector loops over float32, one thread each. vec.go says how exact the sums are.

#include <stddef.h>
#include <stdint.h>

// sum_chunks adds up each run of chunk elements (the last may be shorter) into part[0], part[1],
// ...
void sum_chunks(double *part, const float *x, size_t n, size_t chunk);
void sum_squares_chunks(double *part, const float *x, size_t n, size_t chunk);

float dot(const float *x, const float *y, size_t n);
void axpy(float *y, float alpha, const float *x, size_t n); // y += alpha x
void scale(float *x, float alpha, size_t n);                // x *= alpha

// A is (m, n), row-major, rows lda apart. With beta == 0 the old contents of y do not count, not
// even a NaN.
// y = alpha A x + beta y
void gemv_rows(size_t m, size_t n, float alpha, const float *a, size_t lda, const float *x, float beta, float *y);
// y = alpha A' x + beta y
void gemv_trans(size_t m, size_t n, float alpha, const float *a, size_t lda, const float *x, float beta, float *y);

// bfloat16, the upper half of a float: to float, and back to the nearest, ties to even, a NaN
// staying one.
void widen_bf16(float *restrict dst, const uint16_t *restrict src, size_t n);
void round_bf16(uint16_t *restrict dst, const float *restrict src, size_t n);
