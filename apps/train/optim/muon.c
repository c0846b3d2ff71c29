#include "muon.h"

#include "../../../host/loops.h"

CLONES double train_muon_momentum(float *m, const float *g, float gscale, float momentum, long n) {
    float rest = 1.0f - momentum;
    double squares = 0;
    for (long i0 = 0; i0 < n; i0 += 1024) { // the error of a sum grows with the run
        float run = 0;
        long end = min_l(i0 + 1024, n);
#pragma omp simd reduction(+ : run)
        for (long i = i0; i < end; i++) {
            float gi = rest * (g[i] * gscale), mi = momentum * m[i] + gi, x = momentum * mi + gi;
            m[i] = mi;
            run += x * x;
        }
        squares += run;
    }
    return squares;
}

CLONES void train_muon_direction(float *x, const float *m, const float *g, float gscale, float momentum, float scale, long n) {
    float rest = 1.0f - momentum;
    for (long i = 0; i < n; i++) x[i] = (momentum * m[i] + rest * (g[i] * gscale)) * scale;
}

CLONES void train_muon_update(float *p, const float *x, float rate, float decay, long n) {
    for (long i = 0; i < n; i++) p[i] -= decay * p[i] + rate * x[i];
}
