#include "modern.h"

#include "../../../host/loops.h"

#define EPSILON 1.1920929e-7f // float32's, as PyTorch's rms_norm has it

// norm is 1/√(mean of x² + ε), and NaN where the sum overflows: a run that diverges is to end.
INLINE float norm(const float *x, long c) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (long j = 0; j < c; j++) squares += x[j] * x[j];
    return squares < INFINITY ? 1.0f / sqrtf(squares / c + EPSILON) : NAN;
}

// through is the mean of dy·y, where y = x·inv.
INLINE float through(const float *dy, const float *x, float inv, long c) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < c; j++) sum += dy[j] * x[j];
    return sum * inv / c;
}

// --- embeddings ---

CLONES void modern_embed(float *out, const int32_t *tokens, const float *wte, long c, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        const float *x = wte + tokens[i] * c;
        float *restrict o = out + i * c, inv = norm(x, c);
        for (long j = 0; j < c; j++) o[j] = x[j] * inv;
    }
}

CLONES void modern_embed_backward(float *d, const int32_t *tokens, const float *wte, long c, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        const float *x = wte + tokens[i] * c;
        float *restrict o = d + i * c, inv = norm(x, c), mean = through(o, x, inv, c);
        for (long j = 0; j < c; j++) o[j] = inv * (o[j] - x[j] * inv * mean);
    }
}

// --- norms ---

CLONES void modern_norm(float *out, float *sum, const float *x, const float *kept, const float *skip, long c, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        const float *m = x + i * c;
        if (kept) {
            float *restrict r = sum + i * c, s = *skip;
            for (long j = 0; j < c; j++) r[j] = m[j] + s * kept[i * c + j];
            m = r;
        }
        float inv = norm(m, c), *restrict o = out + i * c;
        for (long j = 0; j < c; j++) o[j] = m[j] * inv;
    }
}

CLONES void modern_norm_backward(float *d, float *dkept, float *sums, const float *dnorm, const float *x, const float *kept,
                                 const float *above, const float *skip, long c, int add, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        const float *m = x + i * c, *dn = dnorm + i * c;
        float *g = d + i * c, inv = norm(m, c), mean = through(dn, m, inv, c);
        if (add)
            for (long j = 0; j < c; j++) g[j] += inv * (dn[j] - m[j] * inv * mean);
        else
            for (long j = 0; j < c; j++) g[j] = inv * (dn[j] - m[j] * inv * mean);
        if (kept) {
            const float *k = kept + i * c;
            float s = *skip, sum = 0;
#pragma omp simd reduction(+ : sum)
            for (long j = 0; j < c; j++) sum += g[j] * k[j];
            sums[i] = sum;
            for (long j = 0; j < c; j++) dkept[i * c + j] = s * g[j];
        }
        if (above)
            for (long j = 0; j < c; j++) g[j] += above[i * c + j];
    }
}

// --- heads ---

enum { MOST = 256 }; // channels of a head

CLONES void modern_heads(float *out, const float *qkv, const int32_t *tokens, const float *table, const float *mix, const float *turn,
                         long t, long heads, long size, int normed, float scale, long lo, long hi) {
    long c = heads * size, half = size / 2, turned = size / 4;
    for (long i = lo; i < hi; i++) {
        const float *w = turn + i % t * size / 2;
        for (long h = 0; h < 2 * heads; h++) {
            const float *x = qkv + 3 * i * c + h * size;
            float *restrict o = out + 3 * i * c + h * size, f = (normed ? norm(x, size) : 1) * (h < heads ? scale : 1);
            for (long j = 0; j < turned; j++) {
                float p = x[j] * f, q = x[j + half] * f;
                o[j] = p * w[2 * j] + q * w[2 * j + 1];
                o[j + half] = q * w[2 * j] - p * w[2 * j + 1];
            }
            for (long j = turned; j < half; j++) {
                o[j] = x[j] * f;
                o[j + half] = x[j + half] * f;
            }
        }
        const float *v = qkv + (3 * i + 2) * c;
        float *restrict o = out + (3 * i + 2) * c;
        if (!table) {
            memcpy(o, v, c * sizeof(float));
            continue;
        }
        const float *e = table + tokens[i] * c;
        for (long j = 0; j < c; j++) o[j] = mix[0] * v[j] + mix[1] * e[j];
    }
}

CLONES void modern_heads_backward(float *d, float *dtable, float *sums, const float *qkv, const int32_t *tokens, const float *table,
                                  const float *mix, const float *turn, long t, long heads, long size, int normed, float scale,
                                  int fresh, long lo, long hi) {
    long c = heads * size, half = size / 2, turned = size / 4;
    for (long i = lo; i < hi; i++) {
        const float *w = turn + i % t * size / 2;
        for (long h = 0; h < 2 * heads; h++) {
            const float *x = qkv + 3 * i * c + h * size;
            float *o = d + 3 * i * c + h * size, dy[MOST], f = h < heads ? scale : 1;
            for (long j = 0; j < turned; j++) {
                dy[j] = f * (o[j] * w[2 * j] - o[j + half] * w[2 * j + 1]);
                dy[j + half] = f * (o[j] * w[2 * j + 1] + o[j + half] * w[2 * j]);
            }
            for (long j = turned; j < half; j++) {
                dy[j] = f * o[j];
                dy[j + half] = f * o[j + half];
            }
            float inv = 1, mean = 0;
            if (normed) {
                inv = norm(x, size);
                mean = through(dy, x, inv, size);
            }
            for (long j = 0; j < size; j++) o[j] = inv * (dy[j] - x[j] * inv * mean);
        }
        if (!table) continue;
        const float *v = qkv + (3 * i + 2) * c, *e = table + tokens[i] * c;
        float *o = d + (3 * i + 2) * c, *r = dtable + i * c, sv = 0, se = 0;
#pragma omp simd reduction(+ : sv, se)
        for (long j = 0; j < c; j++) {
            sv += o[j] * v[j];
            se += o[j] * e[j];
        }
        sums[2 * i] = sv;
        sums[2 * i + 1] = se;
        if (fresh)
            for (long j = 0; j < c; j++) r[j] = mix[1] * o[j];
        else
            for (long j = 0; j < c; j++) r[j] += mix[1] * o[j];
        for (long j = 0; j < c; j++) o[j] *= mix[0];
    }
}
