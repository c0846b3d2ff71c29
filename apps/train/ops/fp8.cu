// The kernels on a GPU of products of 8-bit floats, behind eight.cuh; casts.go and scales.go say what they compute. The
// largest size in a tensor is a maximum, and sums are in an order that depends on the sizes alone: the ranks of a job,
// and every run, get the same bits.
#define INF __int_as_float(0x7f800000)

// values are 8 activations as they lie in memory.
union values {
    uint4 raw;
    bf16 x[8];
    __device__ __forceinline__ void get(float (&v)[8]) const {
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = to_float(x[k]);
    }
};

SPMD_FN uint4 pack(const float (&v)[8]) {
    return make_uint4(from_floats<bf16>(v[0], v[1]), from_floats<bf16>(v[2], v[3]), from_floats<bf16>(v[4], v[5]), from_floats<bf16>(v[6], v[7]));
}

// logistic is (1 + tanh(√(2/π)·(x + 0.044715·x³)))/2, to what bfloat16 shows of it.
SPMD_FN float logistic(float x) { return __fdividef(1, 1 + __expf(-1.5957691216f * (x + 0.044715f * x * x * x))); }

enum { DEEP = 4 }; // loads of a thread that do not wait for each other

// each_8 gives f 8 values of x at a time, and the first one's place.
template <typename F> SPMD_FN void each_8(const bf16 *x, long long n, F f) {
    for (long long i = 8 * grid_index(); i < n; i += 8 * DEEP * grid_size()) {
        values v[DEEP];
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            long long at = i + 8 * d * grid_size();
            if (at < n) v[d].raw = *(const uint4 *)(x + at);
        }
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            long long at = i + 8 * d * grid_size();
            if (at < n) f(v[d], at);
        }
    }
}

// Without codes only y is written.
extern "C" __global__ void __launch_bounds__(256)
    gelu_8(bf16 *y, f8e4m3 *codes, const float *up, float *peak, const bf16 *x, long long n) {
    float scale = codes ? *up : 0, top = 0;
    each_8(x, n, [&](const values &in, long long at) {
        float v[8];
        in.get(v);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] *= logistic(v[k]);
        values out;
        out.raw = pack(v);
        *(uint4 *)(y + at) = out.raw;
        if (!codes) return;
        out.get(v);
        top = code(codes + at, v, scale, top);
    });
    if (codes) raise(peak, top);
}

// A thread has 8 columns of every gridDim.x-th row of x(n,c), and leaves their sums in the block's row of partial. With
// SLOPE x is multiplied by gelu'(pre) first.
template <bool SLOPE>
SPMD_FN void columns_8(bf16 *x, f8e4m3 *codes, const float *up, float *peak, float *partial, const bf16 *pre, int n, int c) {
    int j = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
    float scale = *up, top = 0, sum[8] = {0};
    for (long long i = blockIdx.x; j < c && i < n; i += DEEP * gridDim.x) {
        values d[DEEP], p[DEEP];
#pragma unroll
        for (int r = 0; r < DEEP; r++) {
            long long row = i + r * gridDim.x;
            if (row < n) {
                d[r].raw = *(const uint4 *)(x + row * c + j);
                if (SLOPE) p[r].raw = *(const uint4 *)(pre + row * c + j);
            }
        }
#pragma unroll
        for (int r = 0; r < DEEP; r++) {
            long long at = (i + r * gridDim.x) * c + j;
            if (i + r * gridDim.x >= n) break;
            float v[8];
            d[r].get(v);
            if (SLOPE) {
                float z[8];
                p[r].get(z);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    float s = logistic(z[k]);
                    v[k] *= s + z[k] * s * (1 - s) * 1.5957691216f * (1 + 0.134145f * z[k] * z[k]);
                }
                d[r].raw = pack(v);
                *(uint4 *)(x + at) = d[r].raw;
                d[r].get(v);
            }
            top = code(codes + at, v, scale, top);
#pragma unroll
            for (int k = 0; k < 8; k++) sum[k] += v[k];
        }
    }
    if (j < c) store8(partial + (long long)blockIdx.x * c + j, sum);
    raise(peak, top);
}

extern "C" __global__ void __launch_bounds__(512)
    cast_columns_8(bf16 *x, f8e4m3 *codes, const float *up, float *peak, float *partial, const bf16 *pre, int n, int c) {
    columns_8<false>(x, codes, up, peak, partial, pre, n, c);
}

extern "C" __global__ void __launch_bounds__(512)
    gelu_slope_8(bf16 *x, f8e4m3 *codes, const float *up, float *peak, float *partial, const bf16 *pre, int n, int c) {
    columns_8<true>(x, codes, up, peak, partial, pre, n, c);
}

// power is the exponent of 2 that brings a peak, above 0 and finite, into [128,256).
SPMD_FN int power(float peak) { return min(126, 7 - ((__float_as_int(peak) >> 23) - 127)); }
enum { APART = 4 }; // numbers from a scale of a product to the next: 16 bytes
SPMD_FN float power_of_2(int e) { return __int_as_float(127 + e << 23); }

// --- weights ---

// A matrix lies at from in the arena of weights, its codes at to, and those of the transpose at across.
struct matrix { long long from, to, across, rows, cols; };

// tile is a part of a matrix that a block has, of up to SIDE rows and columns.
struct tile { int matrix, row, col; };

enum { SIDE = 128 };

// each_of gives f the rows of a tile, 8 elements at a time, and their place in it.
template <typename F> SPMD_FN void each_of(const bf16 *weights, const matrix &m, const tile &t, F f) {
    int rows = min((long long)SIDE, m.rows - t.row), cols = min((long long)SIDE, m.cols - t.col);
#pragma unroll 4
    for (int i = threadIdx.x; i < SIDE * SIDE / 8; i += 256) {
        int r = i / (SIDE / 8), c = i % (SIDE / 8) * 8;
        if (r >= rows || c >= cols) continue;
        values v;
        v.raw = *(const uint4 *)(weights + m.from + (t.row + r) * m.cols + t.col + c);
        f(v, r, c);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    cast_weights_8(f8e4m3 *codes, float *down, const float *peaks, const bf16 *weights, const matrix *matrices, const tile *tiles) {
    __shared__ __align__(4) uint8_t turned[SIDE][SIDE + 4]; // by columns
    tile t = tiles[blockIdx.x];
    matrix m = matrices[t.matrix];
    float peak = peaks[t.matrix];
    int e = peak > 0 && peak < INF ? power(peak) : 0;
    if (t.row == 0 && t.col == 0 && threadIdx.x == 0) down[APART * t.matrix] = power_of_2(-e);
    each_of(weights, m, t, [&](const values &in, int r, int c) {
        float v[8];
        in.get(v);
        struct __align__(8) { f8e4m3 x[8]; } u;
        code(u.x, v, power_of_2(e), 0);
        *(uint2 *)(codes + m.to + (t.row + r) * m.cols + t.col + c) = *(uint2 *)&u;
#pragma unroll
        for (int k = 0; k < 8; k++) turned[c + k][r] = u.x[k].bits;
    });
    __syncthreads();
    for (int i = threadIdx.x; i < SIDE * SIDE / 8; i += 256) {
        int c = i / (SIDE / 8), r = i % (SIDE / 8) * 8;
        if (t.row + r < m.rows && t.col + c < m.cols)
            *(uint2 *)(codes + m.across + (t.col + c) * m.rows + t.row + r) = make_uint2(*(uint32_t *)&turned[c][r], *(uint32_t *)&turned[c][r + 4]);
    }
}
