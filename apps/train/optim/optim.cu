// The optimizer on a GPU; kernels.go says what it computes. Arenas have a multiple of 64
// elements.
#include "spmd.cuh"

#define INF __int_as_float(0x7f800000)

// copy, if any, receives p rounded.
extern "C" __global__ void __launch_bounds__(256)
    adamw(float *p, float *m, float *v, const float *g, const uint8_t *decay, const float *hyper, const float *norm, bf16 *copy,
          long long n, float beta1, float beta2, float eps, float weight_decay, float clip) {
    float size = *norm, gscale = 1, rate = hyper[0], c1 = hyper[1], c2 = hyper[2];
    if (!(size < INF)) return; // the norm is infinite or NaN
    if (clip > 0 && size > clip) gscale = (float)((double)clip / size);
    for (long long i = 4 * grid_index(); i < n; i += 4 * grid_size()) {
        float4 p4 = load4(p + i), m4 = load4(m + i), v4 = load4(v + i), g4 = load4(g + i);
        float wd = decay[i / 64] ? weight_decay : 0;
        float *pk = &p4.x, *mk = &m4.x, *vk = &v4.x, *gk = &g4.x;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float gi = gk[k] * gscale;
            mk[k] = beta1 * mk[k] + (1 - beta1) * gi;
            vk[k] = beta2 * vk[k] + (1 - beta2) * (gi * gi);
            pk[k] -= rate * (mk[k] * c1 / (sqrtf(vk[k] * c2) + eps) + wd * pk[k]);
        }
        store4(p + i, p4);
        store4(m + i, m4);
        store4(v + i, v4);
        if (copy) store4(copy + i, p4);
    }
}
