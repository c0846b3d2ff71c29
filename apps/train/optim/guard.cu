// What decides whether a step changes the weights; guard.go says how.
#include "spmd.cuh"

// One thread.
extern "C" __global__ void judge_step(float *gate, float *hyper, int *counts, const float *norm, const double *loss, double beta1,
                                      double beta2, int skip_bad) {
    // Of what is not finite, and of nothing else, the difference to itself is not 0.
    bool good = *norm - *norm == 0 && *loss - *loss == 0;
    counts[good ? 0 : 1]++;
    *gate = good && (skip_bad || counts[1] == 0) ? *norm : __int_as_float(0x7fc00000);
    hyper[1] = (float)(1 / (1 - pow(beta1, (double)counts[0])));
    hyper[2] = (float)(1 / (1 - pow(beta2, (double)counts[0])));
}
