// Causal self-attention in float32 on CUDA cores: for float32, and for shapes that the tensor cores
// do not take. The order of sums depends on the sizes alone, so that every run gets the same bits.
// No sum is rounded to bfloat16.
#include "spmd.cuh"

#define INF __int_as_float(0x7f800000)

// A block of 256 threads works on tiles of 64 by 64, in shared memory as float: the
// first index is the one that a product sums over. Thread (ty, tx) of 16 by 16 has
// rows 4·ty and columns 4·tx on of the product. Heads of more than 64 channels
// go in slices of 64, the last padded with zeros.
enum { TILE = 64 };
typedef float tile[TILE][TILE];
typedef float sub[4][4]; // a thread's part of a product

// Element 4·g of row k of a tile that was written by columns stands at place swizzle.
SPMD_FN int swizzle(int k, int g) { return (g ^ (k >> 2)) * 4; }

// multiply adds to s the product Σₖ x[k][row]·y[k][column].
template <bool SWIZZLED> SPMD_FN void multiply(sub &s, const tile &x, const tile &y) {
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll 8
    for (int k = 0; k < TILE; k++) {
        float4 a = *(const float4 *)&x[k][SWIZZLED ? swizzle(k, ty) : 4 * ty];
        float4 b = *(const float4 *)&y[k][4 * tx];
        float u[4] = {a.x, a.y, a.z, a.w}, v[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) s[i][j] += u[i] * v[j];
    }
}

SPMD_FN void clear(sub &s) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] = 0;
}

// four loads p[0..4), of which only the first left exist.
template <typename T> SPMD_FN float4 four(const T *p, int left, bool aligned) {
    if (aligned && left >= 4) return load4(p);
    return make_float4(left > 0 ? to_float(p[0]) : 0, left > 1 ? to_float(p[1]) : 0, left > 2 ? to_float(p[2]) : 0,
        left > 3 ? to_float(p[3]) : 0);
}

// load_columns stores the matrix m of r rows and d columns, rows stride apart, as m[column][row];
// load_rows stores it as m[row][column]. Both fill the tile up with zeros.
template <typename T> SPMD_FN void load_columns(tile &to, const T *m, long long stride, int r, int d, bool aligned) {
    int row = threadIdx.x % TILE;
#pragma unroll
    for (int j = threadIdx.x / TILE * 4; j < TILE; j += 16) {
        float4 v = four(m + row * stride + j, row < r ? d - j : 0, aligned);
        to[j][row] = v.x;
        to[j + 1][row] = v.y;
        to[j + 2][row] = v.z;
        to[j + 3][row] = v.w;
    }
}

template <typename T> SPMD_FN void load_rows(tile &to, const T *m, long long stride, int r, int d, bool aligned) {
    int j = threadIdx.x % 16 * 4;
#pragma unroll
    for (int row = threadIdx.x / 16; row < TILE; row += 16) {
        *(float4 *)&to[row][j] = four(m + row * stride + j, row < r ? d - j : 0, aligned);
    }
}

// scores sets s to the product of ra rows of a and rb rows of b, both of hs channels. x and y are
// scratch: no thread may still read them when the block comes here.
template <typename T>
SPMD_FN void scores(sub &s, tile &x, tile &y, const T *a, long long astride, int ra, const T *b, long long bstride,
    int rb, int hs) {
    bool aligned = hs % 4 == 0;
    clear(s);
    for (int d = 0; d < hs; d += TILE) {
        if (d > 0) __syncthreads();
        load_columns(x, a + d, astride, ra, hs - d, aligned);
        load_columns(y, b + d, bstride, rb, hs - d, aligned);
        __syncthreads();
        multiply<false>(s, x, y);
    }
}

// write_rows stores a product of r rows and d columns.
template <typename T> SPMD_FN void write_rows(T *to, long long stride, const sub &s, int r, int d) {
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (4 * ty + i < r && 4 * tx + j < d) to[(4 * ty + i) * stride + 4 * tx + j] = from_float<T>(s[i][j]);
}

// Block (x, y, z): head x, the queries of a tile, 64 channels of the values. The late queries,
// which have most keys, begin first. sequences is for the host: the grid has them.
template <typename T>
__global__ void __launch_bounds__(256, 2) simple_forward(T *out, float *lse, const T *qkv, int t, int nh, int hs,
    int sequences, int window) {
    __shared__ __align__(16) tile x, y, values; // y: keys, then probabilities
    long long c = (long long)nh * hs, c3 = 3 * c;
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    int q0 = (gridDim.y - 1 - blockIdx.y) * TILE, rows = min(TILE, t - q0), d0 = blockIdx.z * TILE;
    const T *q = qkv + blockIdx.x / nh * t * c3 + blockIdx.x % nh * hs, *k = q + c, *v = k + c + d0;
    float scale = 1.0f / sqrtf((float)hs), top[4], sum[4];
    sub o;
    clear(o);
    for (int i = 0; i < 4; i++) top[i] = -INF, sum[i] = 0;
    for (int k0 = first_key(q0, window); k0 <= q0; k0 += TILE) {
        int keys = min(TILE, t - k0);
        sub s;
        __syncthreads();
        load_rows(values, v + k0 * c3, c3, keys, hs - d0, hs % 4 == 0);
        scores(s, x, y, q + q0 * c3, c3, rows, k + k0 * c3, c3, keys, hs);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float high = top[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = k0 + 4 * tx + j <= q0 + 4 * ty + i ? s[i][j] * scale : -INF;
                high = max(high, s[i][j]);
            }
            for (int m = 8; m > 0; m /= 2) high = max(high, __shfl_xor_sync(0xffffffffu, high, m));
            float shrink = expf(top[i] - high); // 0 at the first tile, in which every query has a key
            float part = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = expf(s[i][j] - high);
                part += s[i][j];
                o[i][j] *= shrink;
            }
            for (int m = 8; m > 0; m /= 2) part += __shfl_xor_sync(0xffffffffu, part, m);
            sum[i] = sum[i] * shrink + part;
            top[i] = high;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            *(float4 *)&y[4 * tx + j][swizzle(4 * tx + j, ty)] = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
        }
        __syncthreads();
        multiply<true>(o, y, values);
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) o[i][j] /= sum[i];
        int row = 4 * ty + i;
        if (tx == 0 && d0 == 0 && row < rows) lse[(long long)blockIdx.x * t + q0 + row] = top[i] + logf(sum[i]);
    }
    write_rows(out + (blockIdx.x / nh * t + q0) * c + blockIdx.x % nh * hs + d0, c, o, rows, hs - d0);
}

// row_products sets delta to the sums over the channels of a·b, for r rows.
template <typename T> SPMD_FN void row_products(float (&delta)[TILE], const T *a, const T *b, long long stride,
    int r, int hs) {
    int part = threadIdx.x % 4, row = threadIdx.x / 4; // four threads to a row
    float sum = 0;
    if (row < r)
        for (int d = part; d < hs; d += 4) sum += to_float(a[row * stride + d]) * to_float(b[row * stride + d]);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (part == 0) delta[row] = sum;
}

// With p = softmax(s), s = scale·q·k and delta the row sums of dout·out:
//
//	dv = pᵀ·dout    ds = p·(dout·vᵀ - delta)·scale    dq = ds·k    dk = dsᵀ·q
//
// The first half of the blocks in y has a tile of queries each and computes dq, the second
// a tile of keys and computes dk and dv. Blocks in x and z as in simple_forward.
template <typename T>
__global__ void __launch_bounds__(256, 2)
    simple_backward(T *dqkv, const T *dout, const T *out, const float *lse, const T *qkv, int t, int nh, int hs,
        int sequences, int window) {
    __shared__ __align__(16) tile x, y;
    __shared__ float delta[TILE], lses[TILE];
    long long c = (long long)nh * hs, c3 = 3 * c, first = blockIdx.x / nh * t;
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16, tiles = gridDim.y / 2, d0 = blockIdx.z * TILE;
    bool aligned = hs % 4 == 0;
    const T *q = qkv + first * c3 + blockIdx.x % nh * hs, *k = q + c, *v = k + c;
    T *dq = dqkv + first * c3 + blockIdx.x % nh * hs + d0, *dk = dq + c, *dv = dk + c;
    out += first * c + blockIdx.x % nh * hs;
    dout += first * c + blockIdx.x % nh * hs;
    lse += (long long)blockIdx.x * t;
    float scale = 1.0f / sqrtf((float)hs);
    sub s, dp, a, b;
    clear(a);
    clear(b);
    if (blockIdx.y < tiles) {
        int q0 = (tiles - 1 - blockIdx.y) * TILE, rows = min(TILE, t - q0);
        row_products(delta, out + q0 * c, dout + q0 * c, c, rows, hs);
        if (threadIdx.x < rows) lses[threadIdx.x] = lse[q0 + threadIdx.x];
        for (int k0 = first_key(q0, window); k0 <= q0; k0 += TILE) { // rows of s and dp are keys, columns queries
            int keys = min(TILE, t - k0);
            __syncthreads();
            scores(s, x, y, k + k0 * c3, c3, keys, q + q0 * c3, c3, rows, hs);
            __syncthreads();
            scores(dp, x, y, v + k0 * c3, c3, keys, dout + q0 * c, c, rows, hs);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float ds[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int key = k0 + 4 * ty + i, row = 4 * tx + j;
                    bool seen = key <= q0 + row && row < rows;
                    ds[j] = seen ? expf(s[i][j] * scale - lses[row]) * (dp[i][j] - delta[row]) * scale : 0;
                }
                *(float4 *)&x[4 * ty + i][4 * tx] = make_float4(ds[0], ds[1], ds[2], ds[3]);
            }
            load_rows(y, k + k0 * c3 + d0, c3, keys, hs - d0, aligned);
            __syncthreads();
            multiply<false>(a, x, y);
        }
        write_rows(dq + q0 * c3, c3, a, rows, hs - d0);
        return;
    }
    int k0 = (blockIdx.y - tiles) * TILE, keys = min(TILE, t - k0);
    // rows of s and dp are queries, columns keys
    for (int q0 = k0, end = end_of_queries(k0, window, t); q0 < end; q0 += TILE) {
        int rows = min(TILE, t - q0);
        __syncthreads();
        row_products(delta, out + q0 * c, dout + q0 * c, c, rows, hs);
        if (threadIdx.x < rows) lses[threadIdx.x] = lse[q0 + threadIdx.x];
        scores(s, x, y, q + q0 * c3, c3, rows, k + k0 * c3, c3, keys, hs);
        __syncthreads();
        scores(dp, x, y, dout + q0 * c, c, rows, v + k0 * c3, c3, keys, hs);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = 4 * ty + i;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                bool seen = k0 + 4 * tx + j <= q0 + row && row < rows;
                s[i][j] = seen ? expf(s[i][j] * scale - lses[row]) : 0;
                dp[i][j] = seen ? s[i][j] * (dp[i][j] - delta[row]) * scale : 0;
            }
            *(float4 *)&x[row][4 * tx] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
        }
        load_rows(y, dout + q0 * c + d0, c, rows, hs - d0, aligned);
        __syncthreads();
        multiply<false>(b, x, y);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            *(float4 *)&x[4 * ty + i][4 * tx] = make_float4(dp[i][0], dp[i][1], dp[i][2], dp[i][3]);
        }
        load_rows(y, q + q0 * c3 + d0, c3, rows, hs - d0, aligned);
        __syncthreads();
        multiply<false>(a, x, y);
    }
    write_rows(dk + k0 * c3, c3, a, keys, hs - d0);
    write_rows(dv + k0 * c3, c3, b, keys, hs - d0);
}
