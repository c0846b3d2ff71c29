#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Loops with sqrtf are vectorised only where it need not set errno.
float sqrtf(float) __attribute__((const));

// One binary for every x86-64: the loader picks the version for the CPU.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define WIDE __attribute__((target("arch=x86-64-v4")))
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define NARROW __attribute__((target_clones("arch=x86-64-v3", "default")))
#define HAS_WIDE __builtin_cpu_supports("x86-64-v4")
#else
#define WIDE
#define CLONES
#define NARROW
#define HAS_WIDE 0
#endif

// Without this GCC does not inline into the versions for other CPUs.
#define INLINE static inline __attribute__((always_inline))

INLINE long min_l(long a, long b) { return a < b ? a : b; }

// exp_ is eˣ within 1.5 ulp on [-87, 88], and the value at the end beyond it:
// 2ⁿ·e^r with |r| <= ln(2)/2, e^r by a minimax polynomial (Cephes, expf).
INLINE float exp_(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float magic = 12582912.0f; // 1.5·2²³: adding it rounds to an integer, in the low bits
    union { float f; uint32_t i; } n = {.f = x * 1.44269504f + magic};
    float f = n.f - magic;
    float r = x - f * 0.693359375f;
    r = r + f * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    n.i = (n.i + 127) << 23; // the bits of magic leave at the top
    return p * n.f;
}

// --- embeddings ---

CLONES void train_encoder_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe,
                                  long t, long c, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        float *restrict o = out + i * c;
        const float *a = wte + tokens[i] * c, *b = wpe + i % t * c;
        for (long j = 0; j < c; j++) o[j] = a[j] + b[j];
    }
}

CLONES void train_encoder_backward(float *dwte, float *dwpe, const float *dout, const int32_t *order, const int32_t *parts,
                                   long count, long n, long t, long c, long positions, int accumulate, long lo, long hi) {
    if (!accumulate)
        for (long i = 0; i < positions; i++) memset(dwpe + i * c + lo, 0, (hi - lo) * sizeof(float));
    for (long i = 0; i < n; i++) {
        const float *d = dout + i * c;
        float *restrict b = dwpe + i % t * c;
        for (long j = lo; j < hi; j++) b[j] += d[j];
    }
    for (long p = 0; p < count; p++, parts += 4) {
        float *restrict a = dwte + parts[0] * c;
        for (long i = parts[1]; i < parts[2]; i++) {
            const float *d = dout + order[i] * c;
            for (long j = lo; j < hi; j++) a[j] += d[j];
        }
    }
}

// --- LayerNorm ---

CLONES void train_layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *weight,
                                    const float *bias, long c, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        const float *r = x + i * c;
        float sum = 0, var = 0;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < c; j++) sum += r[j];
        float mu = sum / c;
#pragma omp simd reduction(+ : var)
        for (long j = 0; j < c; j++) var += (r[j] - mu) * (r[j] - mu);
        float inv = 1.0f / sqrtf(var / c + 1e-5f);
        float *restrict o = out + i * c;
        for (long j = 0; j < c; j++) o[j] = (r[j] - mu) * inv * weight[j] + bias[j];
        mean[i] = mu;
        rstd[i] = inv;
    }
}

CLONES void train_layernorm_backward_input(float *dx, const float *dout, const float *x, const float *weight,
                                           const float *mean, const float *rstd, long c, int add, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        const float *d = dout + i * c, *xi = x + i * c;
        float *restrict o = dx + i * c;
        float mu = mean[i], inv = rstd[i], a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
        for (long j = 0; j < c; j++) {
            float g = d[j] * weight[j];
            a += g;
            b += g * ((xi[j] - mu) * inv);
        }
        a /= c;
        b /= c;
        if (add)
            for (long j = 0; j < c; j++) o[j] += (d[j] * weight[j] - a - (xi[j] - mu) * inv * b) * inv;
        else
            for (long j = 0; j < c; j++) o[j] = (d[j] * weight[j] - a - (xi[j] - mu) * inv * b) * inv;
    }
}

// Column sums go by strips that stay in the first cache, and by runs of rows, so
// that the error of a sum grows with the run and the number of runs, not with n.
enum { STRIP = 256, RUN = 64 };

CLONES void train_layernorm_backward_params(float *dweight, float *dbias, const float *dout, const float *x,
                                            const float *mean, const float *rstd, long n, long c, int accumulate,
                                            long lo, long hi) {
    for (long s = lo; s < hi; s += STRIP) {
        long w = min_l(STRIP, hi - s);
        float *restrict dw = dweight + s, *restrict db = dbias + s;
        if (!accumulate) {
            memset(dw, 0, w * sizeof(float));
            memset(db, 0, w * sizeof(float));
        }
        for (long i0 = 0; i0 < n; i0 += RUN) {
            float aw[STRIP] = {0}, ab[STRIP] = {0};
            for (long i = i0; i < min_l(i0 + RUN, n); i++) {
                const float *d = dout + i * c + s, *xi = x + i * c + s;
                float mu = mean[i], inv = rstd[i];
                for (long j = 0; j < w; j++) {
                    aw[j] += d[j] * ((xi[j] - mu) * inv);
                    ab[j] += d[j];
                }
            }
            for (long j = 0; j < w; j++) {
                dw[j] += aw[j];
                db[j] += ab[j];
            }
        }
    }
}

// --- sums over rows ---

CLONES void train_bias_backward(float *dbias, const float *dy, long n, long c, int accumulate, long lo, long hi) {
    for (long s = lo; s < hi; s += STRIP) {
        long w = min_l(STRIP, hi - s);
        float *restrict db = dbias + s;
        if (!accumulate) memset(db, 0, w * sizeof(float));
        for (long i0 = 0; i0 < n; i0 += RUN) {
            float a[STRIP] = {0};
            for (long i = i0; i < min_l(i0 + RUN, n); i++) {
                const float *d = dy + i * c + s;
                for (long j = 0; j < w; j++) a[j] += d[j];
            }
            for (long j = 0; j < w; j++) db[j] += a[j];
        }
    }
}

// --- attention ---

typedef float vec16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));

// TILE computes R rows and Q vectors of C = A·B, the sums in registers. Element
// (i,k) of A is at a[i*ar + k*ac]; rows of B and C are contiguous.
#define TILE(V, R, Q)                                                                        \
    do {                                                                                     \
        V s[R][Q];                                                                           \
        for (int r = 0; r < R; r++)                                                          \
            for (int q = 0; q < Q; q++)                                                      \
                s[r][q] = add ? ((const V *)(c + (i + r) * ldc + j))[q] : (V){0};            \
        for (long p = 0; p < k; p++) {                                                       \
            const V *bp = (const V *)(b + p * ldb + j);                                      \
            const float *ap = a + i * ar + p * ac;                                           \
            for (int r = 0; r < R; r++)                                                      \
                for (int q = 0; q < Q; q++) s[r][q] += ap[r * ar] * bp[q];                   \
        }                                                                                    \
        for (int r = 0; r < R; r++)                                                          \
            for (int q = 0; q < Q; q++) ((V *)(c + (i + r) * ldc + j))[q] = s[r][q];         \
    } while (0)

// PANEL runs TILE over all rows of the columns from j.
#define PANEL(V, R, Q)                         \
    do {                                       \
        long i = 0;                            \
        for (; i + R <= m; i += R) TILE(V, R, Q); \
        for (; i < m; i++) TILE(V, 1, Q);      \
    } while (0)

// MATMUL defines C(m,n) = A(m,k)·B(k,n), plus C with add. The heads are too small
// and too many for a BLAS call each.
#define MATMUL(name, attr, V, R, Q)                                                                  \
    attr static void name(long m, long n, long k, const float *a, long ar, long ac, const float *b,  \
                          long ldb, float *c, long ldc, int add) {                                   \
        enum { W = sizeof(V) / sizeof(float) };                                                      \
        long j = 0;                                                                                  \
        for (; j + Q * W <= n; j += Q * W) PANEL(V, R, Q);                                           \
        for (; j + W <= n; j += W) PANEL(V, R, 1);                                                   \
        for (; j < n; j++) PANEL(float, R, 1);                                                      \
    }

MATMUL(matmul_wide, WIDE, vec16, 4, 4)
MATMUL(matmul_narrow, NARROW, vec8, 4, 2)

typedef void matmul_fn(long m, long n, long k, const float *a, long ar, long ac, const float *b, long ldb,
                       float *c, long ldc, int add);

enum { QUERIES = 32 }; // rows of the score matrix worked on at a time

// transpose writes out(c,r) = x(r,c)ᵀ; rows of x are ld apart.
static void transpose(float *restrict out, const float *restrict x, long r, long c, long ld) {
    for (long i = 0; i < r; i++)
        for (long j = 0; j < c; j++) out[j * r + i] = x[i * ld + j];
}

CLONES int train_attention_forward(float *out, float *lse, const float *qkv, long t, long nh, long hs, long lo, long hi) {
    matmul_fn *matmul = HAS_WIDE ? matmul_wide : matmul_narrow;
    long c = nh * hs, c3 = 3 * c;
    float scale = 1.0f / sqrtf(hs);
    float *s = malloc((QUERIES + hs) * t * sizeof(float)); // scores, then the keys' transpose
    if (!s) return 1;
    float *kt = s + QUERIES * t;
    for (long h = lo; h < hi; h++) {
        long b = h / nh;
        const float *q = qkv + b * t * c3 + h % nh * hs, *k = q + c, *v = k + c;
        float *o = out + b * t * c + h % nh * hs, *l = lse + h * t;
        transpose(kt, k, t, hs, c3);
        for (long i0 = 0; i0 < t; i0 += QUERIES) {
            long rows = min_l(QUERIES, t - i0), keys = i0 + rows;
            matmul(rows, keys, hs, q + i0 * c3, c3, 1, kt, t, s, t, 0);
            float inv[QUERIES];
            for (long i = 0; i < rows; i++) {
                float *restrict si = s + i * t;
                long n = i0 + i + 1;
                float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
                for (long j = 0; j < n; j++) top = si[j] > top ? si[j] : top;
#pragma omp simd reduction(+ : sum)
                for (long j = 0; j < n; j++) {
                    float e = exp_((si[j] - top) * scale);
                    si[j] = e;
                    sum += e;
                }
                for (long j = n; j < keys; j++) si[j] = 0;
                l[i0 + i] = top * scale + logf(sum);
                inv[i] = 1.0f / sum;
            }
            matmul(rows, hs, keys, s, t, 1, v, c3, o + i0 * c, c, 0);
            for (long i = 0; i < rows; i++) {
                float *restrict oi = o + (i0 + i) * c;
                for (long j = 0; j < hs; j++) oi[j] *= inv[i];
            }
        }
    }
    free(s);
    return 0;
}

CLONES int train_attention_backward(float *dqkv, float *delta, const float *dout, const float *out, const float *lse,
                                    const float *qkv, long t, long nh, long hs, long lo, long hi) {
    matmul_fn *matmul = HAS_WIDE ? matmul_wide : matmul_narrow;
    long c = nh * hs, c3 = 3 * c;
    float scale = 1.0f / sqrtf(hs);
    float *p = malloc(2 * (QUERIES + hs) * t * sizeof(float)); // probabilities and their gradient, keys, values
    if (!p) return 1;
    float *dp = p + QUERIES * t, *kt = dp + QUERIES * t, *vt = kt + hs * t;
    for (long h = lo; h < hi; h++) {
        long b = h / nh;
        const float *q = qkv + b * t * c3 + h % nh * hs, *k = q + c, *v = k + c;
        float *dq = dqkv + b * t * c3 + h % nh * hs, *dk = dq + c, *dv = dk + c;
        const float *o = out + b * t * c + h % nh * hs, *go = dout + b * t * c + h % nh * hs;
        const float *l = lse + h * t;
        float *dl = delta + h * t;
        transpose(kt, k, t, hs, c3);
        transpose(vt, v, t, hs, c3);
        for (long i0 = 0; i0 < t; i0 += QUERIES) {
            long rows = min_l(QUERIES, t - i0), keys = i0 + rows;
            matmul(rows, keys, hs, q + i0 * c3, c3, 1, kt, t, p, t, 0);
            matmul(rows, keys, hs, go + i0 * c, c, 1, vt, t, dp, t, 0);
            for (long i = 0; i < rows; i++) {
                const float *oi = o + (i0 + i) * c, *gi = go + (i0 + i) * c;
                float *restrict pi = p + i * t, *restrict di = dp + i * t;
                float sum = 0, li = l[i0 + i];
                long n = i0 + i + 1;
#pragma omp simd reduction(+ : sum)
                for (long j = 0; j < hs; j++) sum += oi[j] * gi[j];
                dl[i0 + i] = sum;
                for (long j = 0; j < n; j++) {
                    float e = exp_(pi[j] * scale - li);
                    pi[j] = e;
                    di[j] = e * (di[j] - sum) * scale;
                }
                for (long j = n; j < keys; j++) pi[j] = di[j] = 0;
            }
            // Keys before this block of queries have been written to by earlier blocks.
            matmul(i0, hs, rows, p, 1, t, go + i0 * c, c, dv, c3, 1);
            matmul(rows, hs, rows, p + i0, 1, t, go + i0 * c, c, dv + i0 * c3, c3, 0);
            matmul(i0, hs, rows, dp, 1, t, q + i0 * c3, c3, dk, c3, 1);
            matmul(rows, hs, rows, dp + i0, 1, t, q + i0 * c3, c3, dk + i0 * c3, c3, 0);
            matmul(rows, hs, keys, dp, t, 1, k, c3, dq + i0 * c3, c3, 0);
        }
    }
    free(p);
    return 0;
}

// --- loss ---

CLONES void train_classifier(float *losses, float *logits, const int32_t *targets, long v, long vp,
                             float scale, int grad, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        float *restrict x = logits + i * vp;
        float top = -INFINITY, sum = 0, at = x[targets[i]];
#pragma omp simd reduction(max : top)
        for (long j = 0; j < v; j++) top = x[j] > top ? x[j] : top;
        if (!grad) {
#pragma omp simd reduction(+ : sum)
            for (long j = 0; j < v; j++) sum += exp_(x[j] - top);
            losses[i] = logf(sum) + top - at;
            continue;
        }
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < v; j++) {
            float e = exp_(x[j] - top);
            x[j] = e;
            sum += e;
        }
        losses[i] = logf(sum) + top - at;
        float k = scale / sum;
        for (long j = 0; j < v; j++) x[j] *= k;
        x[targets[i]] -= scale;
        memset(x + v, 0, (vp - v) * sizeof(float));
    }
}

// --- optimizer ---

CLONES void train_adamw(float *p, float *m, float *v, const float *g, const uint8_t *decay, const float *hyper,
                        float gscale, float beta1, float beta2, float eps, float weight_decay, long lo, long hi) {
    float rate = hyper[0], c1 = hyper[1], c2 = hyper[2];
    float a1 = 1.0f - beta1, a2 = 1.0f - beta2;
    for (long b = lo; b < hi; b++) {
        float wd = decay[b] ? weight_decay : 0.0f;
        float *restrict pb = p + b * 64, *restrict mb = m + b * 64, *restrict vb = v + b * 64;
        const float *restrict gb = g + b * 64;
        for (int i = 0; i < 64; i++) {
            float gi = gb[i] * gscale;
            float mi = beta1 * mb[i] + a1 * gi;
            float vi = beta2 * vb[i] + a2 * (gi * gi);
            mb[i] = mi;
            vb[i] = vi;
            pb[i] -= rate * (mi * c1 / (sqrtf(vi * c2) + eps) + wd * pb[i]);
        }
    }
}
