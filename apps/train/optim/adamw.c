#include "adamw.h"

#include "../../../host/loops.h"

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
