// The kernels of a forward pass that goes on from cached keys and values; decode.go says
// what they compute. The residual stream and the outputs of products are float, ACT is what
// the products take: float or bf16. Equal inputs give equal bits.
#include "spmd.cuh"

// A block has a row at a time. y, where it is given, is added to x first, with its bias.
extern "C" __global__ void __launch_bounds__(256)
    decode_norm(ACT *out, float *x, const float *y, const float *ybias, const float *weight, const float *bias, int n, int c) {
    for (int i = blockIdx.x; i < n; i += gridDim.x) {
        float *row = x + (long long)i * c, sum = 0, squares = 0;
        for (int j = threadIdx.x; j < c; j += blockDim.x) {
            if (y) row[j] += y[(long long)i * c + j] + ybias[j];
            sum += row[j];
        }
        float mean = block_sum(sum) / c;
        for (int j = threadIdx.x; j < c; j += blockDim.x) squares += (row[j] - mean) * (row[j] - mean);
        float scale = 1.0f / sqrtf(block_sum(squares) / c + 1e-5f);
        for (int j = threadIdx.x; j < c; j += blockDim.x) {
            out[(long long)i * c + j] = from_float<ACT>((row[j] - mean) * scale * weight[j] + bias[j]);
        }
    }
}

// Block (row·nh + head, 256 channels of the head in y): each of the 8 warps takes every
// eighth group of 4 keys; a lane holds channels lane, lane+32, ... of the sum of values.
extern "C" __global__ void __launch_bounds__(256)
    decode_attend(ACT *out, const float *qkv, const ACT *keys, const ACT *values, const int *place, int n, int nh, int hs, int seq) {
    __shared__ float tops[8], sums[8], parts[8][256];
    int h = blockIdx.x % nh, i = blockIdx.x / nh, lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.y * 256;
    long long count = *place + i + 1;
    const float *q = qkv + (3LL * i * nh + h) * hs;
    const ACT *k = keys + (long long)h * seq * hs, *v = values + (long long)h * seq * hs;
    float scale = 1.0f / sqrtf((float)hs), top = __int_as_float(0xff800000), sum = 0, o[8] = {0};
    for (long long j = 4 * warp; j < count; j += 32) {
        float s[4] = {0}, high = top;
        for (int d = lane; d < hs; d += 32) {
            float x = q[d];
#pragma unroll
            for (int g = 0; g < 4; g++)
                if (j + g < count) s[g] += x * to_float(k[(j + g) * hs + d]);
        }
#pragma unroll
        for (int g = 0; g < 4; g++) {
            s[g] = warp_sum(s[g]) * scale;
            if (j + g < count) high = max(high, s[g]);
        }
        float keep = expf(top - high); // 0 at first
        top = high;
        sum *= keep;
#pragma unroll
        for (int e = 0; e < 8; e++) o[e] *= keep;
#pragma unroll
        for (int g = 0; g < 4; g++) {
            if (j + g >= count) continue;
            float p = expf(s[g] - top);
            sum += p;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                int d = first + lane + 32 * e;
                if (d < hs) o[e] += p * to_float(v[(j + g) * hs + d]);
            }
        }
    }
    if (lane == 0) {
        tops[warp] = top;
        sums[warp] = sum;
    }
#pragma unroll
    for (int e = 0; e < 8; e++) parts[warp][lane + 32 * e] = o[e];
    __syncthreads();
    float high = tops[0], total = 0, mine = 0;
    for (int w = 1; w < 8; w++) high = max(high, tops[w]);
    for (int w = 0; w < 8; w++) {
        float share = expf(tops[w] - high); // 0 of a warp without keys
        total += sums[w] * share;
        mine += parts[w][threadIdx.x] * share;
    }
    int d = first + threadIdx.x;
    if (d < hs) out[((long long)i * nh + h) * hs + d] = from_float<ACT>(mine / total);
}
