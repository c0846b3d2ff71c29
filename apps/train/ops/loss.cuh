// What kernels of the loss have in common, behind common.cuh.

// exp_from is e^(x-top). bfloat16 logits take the hardware's power of 2, within 2^-18 where it matters.
SPMD_FN float exp_from(float x, float top) {
    if (sizeof(act) == 4) return expf(x - top);
#ifdef SPMD_EMULATED
    return expf(x - top);
#else
    float e; // the difference first: where x is near the top, it is exact
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"((x - top) * 1.44269504f));
    return e;
#endif
}

// unpack leaves in x the logits of chunk q of a row, of which v count: e^x is 0 in the columns beyond.
enum { LOGITS = 16 / sizeof(act) }; // in a chunk of 16 bytes

SPMD_FN void unpack(float (&x)[LOGITS], uint4 raw, int q, int v) {
    union { uint4 raw; act x[LOGITS]; } u;
    u.raw = raw;
#pragma unroll
    for (int k = 0; k < LOGITS; k++) x[k] = to_float(u.x[k]);
    if (LOGITS * (q + 1) > v) {
#pragma unroll
        for (int k = 0; k < LOGITS; k++)
            if (LOGITS * q + k >= v) x[k] = -INF;
    }
}

// sums_of_row leaves the largest of the v logits of a block's row, and the sum of e^(x-highest), to all threads. chunk(x, q)
// unpacks chunk q.
template <typename F> SPMD_FN void sums_of_row(float &highest, float &sum, int v, F chunk) {
    float top = -INF; // of this thread's columns; sum is that of e^(x-top)
    sum = 0;
    for (int q = threadIdx.x; LOGITS * q < v; q += blockDim.x) {
        float x[LOGITS], high = top;
        chunk(x, q);
#pragma unroll
        for (int k = 0; k < LOGITS; k++) high = max(high, x[k]);
        if (high > top) sum *= exp_from(top, high);
        top = high;
#pragma unroll
        for (int k = 0; k < LOGITS; k++) sum += exp_from(x[k], top);
    }
    highest = block_max(top);
    if (top > -INF) sum *= exp_from(top, highest);
    sum = block_sum(sum);
}
