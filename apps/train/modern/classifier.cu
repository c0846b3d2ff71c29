// The loss of a modern model, behind loss.cuh.

// capped is 30·sigmoid(x/7.5).
SPMD_FN float capped(float x) { return 30 / (1 + expf(x * (-1 / 7.5f))); }

// The logit -INF, of a column beyond the vocabulary, stays that.
SPMD_FN void unpack_capped(float (&x)[LOGITS], uint4 raw, int q, int v) {
    unpack(x, raw, q, v);
#pragma unroll
    for (int k = 0; k < LOGITS; k++)
        if (x[k] != -INF) x[k] = capped(x[k]);
}

// store_gradient stores chunk q of the gradient of a row, with COPY its codes too, and returns the largest so far.
template <bool COPY, int N>
SPMD_FN float store_gradient(uint4 *row, f8e5m2 *codes, float (&x)[N], int q, float times, float largest) {
    union { uint4 raw; act x[N]; } u;
#pragma unroll
    for (int k = 0; k < N; k++) u.x[k] = from_float<act>(x[k]);
    row[q] = u.raw;
    if (!COPY) return largest;
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = to_float(u.x[k]);
    return code(codes + N * q, x, times, largest);
}

// As classify in kernels.cu, whose logits are capped on the way.
template <bool COPY>
SPMD_FN void classify_capped(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad,
                             f8e5m2 *codes, const float *up, float *peak) {
    long long i = n - 1 - blockIdx.x;
    uint4 *row = (uint4 *)(logits + i * vp);
    for (int q = threadIdx.x; q < held; q += blockDim.x) copy_async(copy + q, (const uint4 *)row + q);
    copy_commit();
    int target = targets[i];
    bool known = 0 <= target && target < v;
    float at = known ? capped(to_float(logits[i * vp + target])) : NOT_A_NUMBER;
    auto chunk = [=](float (&x)[LOGITS], int q) { unpack_capped(x, q < held ? copy[q] : row[q], q, v); };
    copy_wait<0>();
    float highest, sum;
    sums_of_row(highest, sum, v, chunk); // after which every thread has read the target's logit
    if (threadIdx.x == 0) losses[i] = logf(sum) + highest - at;
    if (!grad) return;
    float each = scale / sum, times = COPY ? *up : 0, largest = 0;
    for (int q = threadIdx.x; LOGITS * q < vp; q += blockDim.x) {
        float x[LOGITS] = {0};
        if (LOGITS * q < v) {
            chunk(x, q);
#pragma unroll
            for (int k = 0; k < LOGITS; k++) {
                float slope = x[k] * (4 / 30.0f) * (1 - x[k] / 30), d = exp_from(x[k], highest) * each;
                if (LOGITS * q + k == target) d -= scale;
                x[k] = LOGITS * q + k < v ? d * slope : 0;
            }
        }
        largest = store_gradient<COPY>(row, codes + i * vp, x, q, times, largest);
    }
    if (COPY) raise(peak, largest);
}

// bfloat16 logits are capped as 15 + 15·y, where y = tanh(x/15) is the hardware's, within 2^-11, in steps of 2^-14. The 16 bits of
// these take the logit's place in shared memory: the second pass needs no other tanh. A float of BEGIN and up counts them in its
// last bits. Since 15·y is within 15 the sum of e^(15·y) needs no largest.
enum { STEPS = 1 << 14, BEGIN = (1 << 23) + (1 << 15) };

SPMD_FN unsigned steps_of(float x) {
    union { float f; unsigned bits; } u;
    x *= 1 / 15.0f;
#ifdef SPMD_EMULATED
    x = tanhf(x);
#else
    asm("tanh.approx.f32 %0, %0;" : "+f"(x));
#endif
    u.f = fmaf(x, STEPS, BEGIN);
    return u.bits & 0xffff;
}

SPMD_FN float of_steps(unsigned steps) {
    union { unsigned bits; float f; } u = {0x4b000000u | steps};
    return fmaf(u.f, 1.0f / STEPS, -(float)BEGIN / STEPS);
}

SPMD_FN float power_of_2(float x) {
#ifdef SPMD_EMULATED
    return exp2f(x);
#else
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#endif
}

SPMD_FN uint4 all_steps(uint4 raw) {
    union { uint4 raw; act x[8]; } u;
    union { unsigned pair[4]; uint4 raw; } r;
    u.raw = raw;
#pragma unroll
    for (int k = 0; k < 4; k++) r.pair[k] = steps_of(to_float(u.x[2 * k])) | steps_of(to_float(u.x[2 * k + 1])) << 16;
    return r.raw;
}

SPMD_FN void of_all_steps(float (&y)[8], uint4 raw) {
    union { uint4 raw; unsigned pair[4]; } u;
    u.raw = raw;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        y[2 * k] = of_steps(u.pair[k] & 0xffff);
        y[2 * k + 1] = of_steps(u.pair[k] >> 16);
    }
}

template <bool COPY>
SPMD_FN void classify_steps(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad,
                            f8e5m2 *codes, const float *up, float *peak) {
    const float LOG2 = 15 * 1.44269504f; // of e^15
    long long i = n - 1 - blockIdx.x;
    uint4 *row = (uint4 *)(logits + i * vp);
    for (int q = threadIdx.x; q < held; q += blockDim.x) copy_async(copy + q, (const uint4 *)row + q);
    copy_commit();
    int target = targets[i];
    bool known = 0 <= target && target < v;
    float at = known ? of_steps(steps_of(to_float(logits[i * vp + target]))) : NOT_A_NUMBER;
    float sum = 0, y[8];
    copy_wait<0>();
    for (int q = threadIdx.x; 8 * q < v; q += blockDim.x) {
        uint4 steps = all_steps(q < held ? copy[q] : row[q]);
        if (q < held) copy[q] = steps;
        of_all_steps(y, steps);
        if (8 * (q + 1) > v) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (8 * q + k >= v) y[k] = -INF;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) sum += power_of_2(y[k] * LOG2);
    }
    sum = block_sum(sum); // after which every thread has read the target's logit
    if (threadIdx.x == 0) losses[i] = logf(sum) - 15 * at;
    if (!grad) return;
    float each = log2f(scale / sum), times = COPY ? *up : 0, largest = 0;
    for (int q = threadIdx.x; 8 * q < vp; q += blockDim.x) {
        float x[8] = {0};
        if (8 * q < v) {
            of_all_steps(y, q < held ? copy[q] : all_steps(row[q]));
#pragma unroll
            for (int k = 0; k < 8; k++) x[k] = power_of_2(fmaf(y[k], LOG2, each));
            if (q == target / 8) {
#pragma unroll
                for (int k = 0; k < 8; k++)
                    if (8 * q + k == target) x[k] -= scale;
            }
#pragma unroll
            for (int k = 0; k < 8; k++) x[k] *= fmaf(-y[k], y[k], 1);
            if (8 * (q + 1) > v) {
#pragma unroll
                for (int k = 0; k < 8; k++)
                    if (8 * q + k >= v) x[k] = 0;
            }
        }
        largest = store_gradient<COPY>(row, codes + i * vp, x, q, times, largest);
    }
    if (COPY) raise(peak, largest);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    modern_classifier(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad) {
    if (sizeof(act) == 2) classify_steps<false>(losses, logits, targets, n, v, vp, held, scale, grad, 0, 0, 0);
    else classify_capped<false>(losses, logits, targets, n, v, vp, held, scale, grad, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    modern_classifier_8(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad,
                        f8e5m2 *codes, const float *up, float *peak) {
    if (sizeof(act) == 2) classify_steps<true>(losses, logits, targets, n, v, vp, held, scale, grad, codes, up, peak);
    else classify_capped<true>(losses, logits, targets, n, v, vp, held, scale, grad, codes, up, peak);
}

extern "C" __global__ void __launch_bounds__(256) modern_cap(float *x, int n) {
    for (long long i = grid_index(); i < n; i += grid_size()) x[i] = 30 / (1 + expf(x[i] * (-1 / 7.5f)));
}
