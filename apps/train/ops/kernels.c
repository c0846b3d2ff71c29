#include "kernels.h"

#include "../../../host/loops.h"

// --- embeddings ---

CLONES void train_encoder_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe,
                                  long t, long c, long first, long own, int positions, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        float *restrict o = out + i * c;
        long row = tokens[i] - first;
        const float *a = wte + row * c, *b = wpe + i % t * c;
        int mine = 0 <= row && row < own;
        if (mine && positions)
            for (long j = 0; j < c; j++) o[j] = a[j] + b[j];
        else if (mine || positions)
            memcpy(o, mine ? a : b, c * sizeof(float));
        else
            memset(o, 0, c * sizeof(float));
    }
}

CLONES void train_encoder_backward(float *dwte, float *dwpe, const float *dout, const int32_t *order, const struct token_part *parts,
                                   long count, long n, long t, long c, long positions, long first, long own, int accumulate,
                                   long lo, long hi) {
    if (!accumulate)
        for (long i = 0; i < positions; i++) memset(dwpe + i * c + lo, 0, (hi - lo) * sizeof(float));
    for (long i = 0; positions > 0 && i < n; i++) {
        const float *d = dout + i * c;
        float *restrict b = dwpe + i % t * c;
        for (long j = lo; j < hi; j++) b[j] += d[j];
    }
    for (const struct token_part *p = parts; p < parts + count; p++) {
        long row = p->token - first;
        if (row < 0 || row >= own) continue;
        float *restrict a = dwte + row * c;
        for (long i = p->first; i < p->end; i++) {
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

// By strips and runs, as column_sums.
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
    column_sums(dbias, dy, c, n, accumulate, lo, hi);
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

CLONES void train_logit_sums(float *sums, const float *logits, const int32_t *targets, long v, long vp, long first,
                             long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        const float *x = logits + i * vp;
        long target = targets[i] - first;
        float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
        for (long j = 0; j < v; j++) top = x[j] > top ? x[j] : top;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < v; j++) sum += exp_(x[j] - top);
        float *s = sums + 3 * i;
        s[0] = top, s[1] = sum, s[2] = 0 <= target && target < v ? x[target] : -INFINITY;
    }
}

CLONES void train_classifier_of_parts(float *losses, float *logits, const int32_t *targets, const float *all, long parts,
                                      long n, long v, long vp, long first, float scale, int grad, long lo, long hi) {
    for (long i = lo; i < hi; i++) {
        float *restrict x = logits + i * vp;
        float top = -INFINITY, sum = 0, at = -INFINITY;
        for (long r = 0; r < parts; r++) {
            const float *s = all + 3 * (r * n + i);
            top = s[0] > top ? s[0] : top;
            at = s[2] > at ? s[2] : at;
        }
        for (long r = 0; r < parts; r++) {
            const float *s = all + 3 * (r * n + i);
            if (s[1] != 0) sum += s[1] * exp_(s[0] - top); // 0 is a part without tokens
        }
        losses[i] = logf(sum) + top - at;
        if (!grad) continue;
        float k = scale / sum;
        for (long j = 0; j < v; j++) x[j] = exp_(x[j] - top) * k;
        long target = targets[i] - first;
        if (0 <= target && target < v) x[target] -= scale;
        memset(x + v, 0, (vp - v) * sizeof(float));
    }
}
