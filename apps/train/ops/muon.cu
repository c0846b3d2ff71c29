// The direction of Muon on a GPU; muon.go says what it computes.
#include "spmd.cuh"

#define INF __int_as_float(0x7f800000)
typedef ACT act;

enum { CHUNK = 4096, PLACE_NUMBERS = 5, THREADS = 256 };

// A block has the numbers of chunk blockIdx.x of matrix first + blockIdx.y that this rank has; places say which. They begin at
// a multiple of 64 numbers, in arenas too.
extern "C" __global__ void __launch_bounds__(THREADS)
    muon_direction(act *x, const float *squares, const float *m, const float *g, const long long *places, const float *hyper,
                   const float *norm, long long n, float clip, int first, int matrices) {
    float of = *norm;
    if (!(of < INF)) return;
    float momentum = hyper[1], rest = 1 - momentum, scale = clip > 0 && of > clip ? (float)((double)clip / of) : 1, sum = 0;
    int matrix = first + blockIdx.y;
    const long long *place = places + PLACE_NUMBERS * matrix;
    long long from = place[0], to = place[1], begin = (long long)blockIdx.x * CHUNK;
    long long lo = max(begin, from), hi = min(begin + CHUNK, to);
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += squares[(long long)matrix * gridDim.x + i];
    float inverse = 1 / (sqrtf(block_sum(sum)) + 1e-7f);
    g += place[3];
    m += place[4];
    x += matrix * n;
    if (n % 4) { // the next matrix is not aligned
        for (long long i = lo + threadIdx.x; i < hi; i += THREADS) x[i] = from_float<act>((momentum * m[i] + rest * (g[i] * scale)) * inverse);
        return;
    }
    for (long long i = lo + 4 * threadIdx.x; i < hi; i += 4 * THREADS) {
        float4 m4 = load4(m + i), g4 = load4(g + i);
        float *mk = &m4.x, *gk = &g4.x;
#pragma unroll
        for (int k = 0; k < 4; k++) mk[k] = (momentum * mk[k] + rest * (gk[k] * scale)) * inverse;
        store4(x + i, m4);
    }
}
