// Muon on a GPU but for its products; muon.go says what it computes. Matrices are in arenas where offsets say, and one behind
// the other in x. A block has CHUNK elements of one, grid.y is the matrix.
#include "spmd.cuh"

#define INF __int_as_float(0x7f800000)
typedef ACT act;

enum { CHUNK = 4096 };

#define FOR_CHUNK(i, n)                                                                              \
    for (long long i = (long long)blockIdx.x * CHUNK + 4 * threadIdx.x, end = i / CHUNK * CHUNK + CHUNK; i < end && i < (n); \
         i += 4 * blockDim.x)

// clipped is what gradients of such a norm are multiplied by.
SPMD_FN float clipped(float norm, float clip) { return clip > 0 && norm > clip ? (float)((double)clip / norm) : 1; }

// hyper is the rate and the momentum. Nothing changes where the norm is not finite.
extern "C" __global__ void __launch_bounds__(256)
    muon_momentum(float *m, float *squares, const float *g, const long long *offsets, const float *hyper, const float *norm, long long n,
                  float clip) {
    if (!(*norm < INF)) return;
    float momentum = hyper[1], rest = 1 - momentum, scale = clipped(*norm, clip), sum = 0;
    long long at = offsets[blockIdx.y];
    FOR_CHUNK(i, n) {
        float4 m4 = load4(m + at + i), g4 = load4(g + at + i);
        float *mk = &m4.x, *gk = &g4.x;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float gi = rest * (gk[k] * scale);
            mk[k] = momentum * mk[k] + gi;
            float x = momentum * mk[k] + gi;
            sum += x * x;
        }
        store4(m + at + i, m4);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) squares[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// x is what is made orthogonal, of Frobenius norm 1. The matrices are those from first on.
extern "C" __global__ void __launch_bounds__(256)
    muon_direction(act *x, const float *squares, const float *m, const float *g, const long long *offsets, const float *hyper,
                   const float *norm, long long n, float clip, int first, int matrices) {
    if (!(*norm < INF)) return;
    float momentum = hyper[1], rest = 1 - momentum, scale = clipped(*norm, clip), sum = 0;
    int matrix = first + blockIdx.y;
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += squares[matrix * gridDim.x + i];
    float inverse = 1 / (sqrtf(block_sum(sum)) + 1e-7f);
    long long at = offsets[matrix];
    FOR_CHUNK(i, n) {
        float4 m4 = load4(m + at + i), g4 = load4(g + at + i);
        float *mk = &m4.x, *gk = &g4.x;
#pragma unroll
        for (int k = 0; k < 4; k++) mk[k] = (momentum * mk[k] + rest * (gk[k] * scale)) * inverse;
        store4(x + matrix * n + i, m4);
    }
}

// copy, if any, receives p rounded.
extern "C" __global__ void __launch_bounds__(256)
    muon_update(float *p, bf16 *copy, const act *x, const long long *offsets, const float *hyper, const float *norm, long long n,
                float factor, float weight_decay) {
    if (!(*norm < INF)) return;
    float rate = hyper[0] * factor, decay = hyper[0] * weight_decay;
    long long at = offsets[blockIdx.y];
    FOR_CHUNK(i, n) {
        float4 p4 = load4(p + at + i), x4 = load4(x + blockIdx.y * n + i);
        float *pk = &p4.x, *xk = &x4.x;
#pragma unroll
        for (int k = 0; k < 4; k++) pk[k] -= decay * pk[k] + rate * xk[k];
        store4(p + at + i, p4);
        if (copy) store4(copy + at + i, p4);
    }
}
