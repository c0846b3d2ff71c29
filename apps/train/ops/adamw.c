#include "adamw.h"

#include "../../../host/loops.h"

CLONES void train_adamw(float *restrict p, float *restrict m, float *restrict v, const float *restrict g, const uint8_t *decay,
                        const float *hyper, float gscale, float beta1, float beta2, float eps, float weight_decay, long lo, long hi) {
    float rate = hyper[0], c1 = hyper[1], c2 = hyper[2];
    float a1 = 1.0f - beta1, a2 = 1.0f - beta2;
    for (long end; lo < hi; lo = end) {
        end = min_l(hi, (lo / 64 + 1) * 64);
        float wd = decay[lo / 64] ? weight_decay : 0.0f;
        for (long i = lo; i < end; i++) {
            float gi = g[i] * gscale;
            float mi = beta1 * m[i] + a1 * gi;
            float vi = beta2 * v[i] + a2 * (gi * gi);
            m[i] = mi;
            v[i] = vi;
            p[i] -= rate * (mi * c1 / (sqrtf(vi * c2) + eps) + wd * p[i]);
        }
    }
}
