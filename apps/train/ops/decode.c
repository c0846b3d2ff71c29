#include "decode.h"

#include "../../../host/loops.h"

CLONES void train_decode_attend(float *out, float *scores, const float *qkv, const float *keys, const float *values, long place, long nh,
                                long hs, long seq, long lo, long hi) {
    float scale = 1.0f / sqrtf(hs);
    for (long row = lo; row < hi; row++) {
        long i = row / nh, h = row % nh, count = place + i + 1;
        const float *q = qkv + 3 * i * nh * hs + h * hs, *k = keys + h * seq * hs, *v = values + h * seq * hs;
        float *restrict o = out + row * hs, *restrict s = scores;
        float top = -INFINITY, sum = 0;
        for (long j = 0; j < count; j++) {
            const float *kj = k + j * hs;
            float dot = 0;
#pragma omp simd reduction(+ : dot)
            for (long d = 0; d < hs; d++) dot += q[d] * kj[d];
            s[j] = dot * scale;
            top = s[j] > top ? s[j] : top;
        }
        memset(o, 0, hs * sizeof(float));
        for (long j = 0; j < count; j++) {
            const float *vj = v + j * hs;
            float e = expf(s[j] - top);
            sum += e;
#pragma omp simd
            for (long d = 0; d < hs; d++) o[d] += e * vj[d];
        }
        for (long d = 0; d < hs; d++) o[d] /= sum;
    }
}
