// The loops of simple.h.
#include "simple.h"

#include "../../host/loops.h"

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

// MATMUL defines C(m,n) = A(m,k)·B(k,n), plus C with add. The heads are too small and too many for
// a BLAS call each.
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

enum { QUERIES = 32 }; // rows of the score matrix worked on at a time; they divide 128

// first_key is the first key that a query sees.
static long first_key(long query, long window) {
    long first = query / 128 * 128 - window;
    return window && first > 0 ? first : 0;
}

// transpose writes out(c,r) = x(r,c)ᵀ; rows of x are ld apart.
static void transpose(float *restrict out, const float *restrict x, long r, long c, long ld) {
    for (long i = 0; i < r; i++)
        for (long j = 0; j < c; j++) out[j * r + i] = x[i * ld + j];
}

CLONES int attention_forward(float *out, float *lse, const float *qkv, long t, long nh, long hs, long window,
    long lo, long hi) {
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
            long rows = min_l(QUERIES, t - i0), keys = i0 + rows, past = first_key(i0, window);
            matmul(rows, keys - past, hs, q + i0 * c3, c3, 1, kt + past, t, s + past, t, 0);
            float inv[QUERIES];
            for (long i = 0; i < rows; i++) {
                float *restrict si = s + i * t;
                long n = i0 + i + 1;
                float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
                for (long j = past; j < n; j++) top = si[j] > top ? si[j] : top;
#pragma omp simd reduction(+ : sum)
                for (long j = past; j < n; j++) {
                    float e = exp_((si[j] - top) * scale);
                    si[j] = e;
                    sum += e;
                }
                for (long j = n; j < keys; j++) si[j] = 0;
                l[i0 + i] = top * scale + logf(sum);
                inv[i] = 1.0f / sum;
            }
            matmul(rows, hs, keys - past, s + past, t, 1, v + past * c3, c3, o + i0 * c, c, 0);
            for (long i = 0; i < rows; i++) {
                float *restrict oi = o + (i0 + i) * c;
                for (long j = 0; j < hs; j++) oi[j] *= inv[i];
            }
        }
    }
    free(s);
    return 0;
}

CLONES int attention_backward(float *dqkv, const float *dout, const float *out, const float *lse,
                               const float *qkv, long t, long nh, long hs, long window, long lo, long hi) {
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
        transpose(kt, k, t, hs, c3);
        transpose(vt, v, t, hs, c3);
        for (long i0 = 0; i0 < t; i0 += QUERIES) {
            long rows = min_l(QUERIES, t - i0), keys = i0 + rows, past = first_key(i0, window);
            matmul(rows, keys - past, hs, q + i0 * c3, c3, 1, kt + past, t, p + past, t, 0);
            matmul(rows, keys - past, hs, go + i0 * c, c, 1, vt + past, t, dp + past, t, 0);
            for (long i = 0; i < rows; i++) {
                const float *oi = o + (i0 + i) * c, *gi = go + (i0 + i) * c;
                float *restrict pi = p + i * t, *restrict di = dp + i * t;
                float sum = 0, li = l[i0 + i];
                long n = i0 + i + 1;
#pragma omp simd reduction(+ : sum)
                for (long j = 0; j < hs; j++) sum += oi[j] * gi[j];
                for (long j = past; j < n; j++) {
                    float e = exp_(pi[j] * scale - li);
                    pi[j] = e;
                    di[j] = e * (di[j] - sum) * scale;
                }
                for (long j = n; j < keys; j++) pi[j] = di[j] = 0;
            }
            // Earlier blocks have written to keys before this block of queries.
            matmul(i0 - past, hs, rows, p + past, 1, t, go + i0 * c, c, dv + past * c3, c3, 1);
            matmul(rows, hs, rows, p + i0, 1, t, go + i0 * c, c, dv + i0 * c3, c3, 0);
            matmul(i0 - past, hs, rows, dp + past, 1, t, q + i0 * c3, c3, dk + past * c3, c3, 1);
            matmul(rows, hs, rows, dp + i0, 1, t, q + i0 * c3, c3, dk + i0 * c3, c3, 0);
            matmul(rows, hs, keys - past, dp + past, t, 1, k + past * c3, c3, dq + i0 * c3, c3, 0);
        }
    }
    free(p);
    return 0;
}
