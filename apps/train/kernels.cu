// The kernels of the model on a GPU, each for activations of float (suffix _f32) and
// of bfloat16 (_bf16); kernels.go says what they compute. Sums run in float32 and
// in an order that depends on the sizes alone, so that the ranks of a job, and
// every run, get the same bits.
//
// Rows of a multiple of 8 elements are read and written 8 at a time: rows, biases
// and weights then begin at multiples of 16 bytes. Others go element by element.
#include "spmd.cuh"

#define BOTH_TYPES(KERNEL) KERNEL(float, f32) KERNEL(bf16, bf16)

// WIDTH runs BODY with V elements at a time, c being the length of a row.
#define WIDTH(c, BODY)       \
    if ((c) % 8 == 0) {      \
        enum { V = 8 };      \
        BODY;                \
    } else {                 \
        enum { V = 1 };      \
        BODY;                \
    }

template <typename T> SPMD_FN void load(float (&v)[8], const T *p) { load8(v, p); }
template <typename T> SPMD_FN void load(float (&v)[1], const T *p) { v[0] = to_float(*p); }
template <typename T> SPMD_FN void store(T *p, const float (&v)[8]) { store8(p, v); }
template <typename T> SPMD_FN void store(T *p, const float (&v)[1]) { *p = from_float<T>(v[0]); }

// rounded is x as T holds it.
template <typename T> SPMD_FN float rounded(float x) { return to_float(from_float<T>(x)); }

#define INF __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)

// FOR_ROWS gives each warp of the grid a row i of n in turn, FOR_COLUMNS each thread of a
// warp the columns from j to j + V.
#define FOR_ROWS(i, n) for (long long i = grid_index() / 32; i < (n); i += grid_size() / 32)
#define FOR_COLUMNS(j, c) for (int j = threadIdx.x % 32 * V; j < (c); j += 32 * V)

// --- embeddings ---

// A token outside the vocabulary reads nothing: its row becomes NaN, and so the loss.
template <typename T, int V>
SPMD_FN void encoder_forward(T *out, const int *tokens, const float *wte, const float *wpe, int n, int t, int c, int vocab) {
    FOR_ROWS(i, n) {
        int token = tokens[i];
        bool known = 0 <= token && token < vocab;
        const float *a = wte + (known ? (long long)token * c : 0), *b = wpe + i % t * c;
        FOR_COLUMNS(j, c) {
            float x[V], y[V];
            load(x, a + j);
            load(y, b + j);
            for (int k = 0; k < V; k++) x[k] = known ? x[k] + y[k] : NOT_A_NUMBER;
            store(out + i * c + j, x);
        }
    }
}

#define KERNEL(T, S)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        encoder_forward_##S(T *out, const int *tokens, const float *wte, const float *wpe, int n, int t, int c, int vocab) { \
        WIDTH(c, (encoder_forward<T, V>(out, tokens, wte, wpe, n, t, c, vocab)))                             \
    }
BOTH_TYPES(KERNEL)
#undef KERNEL

// add_rows adds to sum(c) the rows of d whose token is that of row first, in their
// order. list is scratch of the block.
template <typename T, int V>
SPMD_FN void add_rows(float *sum, const T *d, const int *tokens, int first, int n, int c, int *list) {
    int token = tokens[first], thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    int *counts = list + 256; // of each warp
    for (int j0 = 0; j0 < c; j0 += 256 * V) {
        int j = j0 + thread * V;
        float s[V];
        if (j < c) load(s, sum + j);
        for (long long i0 = first; i0 < n; i0 += 256) {
            bool same = i0 + thread < n && tokens[i0 + thread] == token;
            int found = __syncthreads_count(same);
            if (found == 0) continue;
            unsigned votes = __ballot_sync(0xffffffffu, same);
            if (lane == 0) counts[warp] = __popc(votes);
            __syncthreads();
            int at = __popc(votes & ((1u << lane) - 1));
            for (int w = 0; w < warp; w++) at += counts[w];
            if (same) list[at] = thread;
            __syncthreads();
            if (j < c) {
                for (int f = 0; f < found; f++) {
                    float x[V];
                    load(x, d + (i0 + list[f]) * c + j);
                    for (int k = 0; k < V; k++) s[k] += x[k];
                }
            }
        }
        if (j < c) store(sum + j, s);
    }
}

// Block b < n takes the token of row b if no row before it has that token: one
// block adds all rows of a token, in their order, without atomics. The blocks from
// n on take a position each.
template <typename T, int V>
SPMD_FN void encoder_backward(float *dwte, float *dwpe, const T *dout, const int *tokens, int n, int t, int c, int positions, int vocab, int accumulate) {
    __shared__ int list[256 + 8];
    int thread = threadIdx.x;
    if (blockIdx.x < n) {
        int row = blockIdx.x, token = tokens[row];
        if (token < 0 || token >= vocab) return;
        for (int i = row - 1; i >= 0; i -= 256) {
            if (__syncthreads_or(i >= thread && tokens[max(i - thread, 0)] == token)) return;
        }
        add_rows<T, V>(dwte + (long long)token * c, dout, tokens, row, n, c, list);
        return;
    }
    int position = blockIdx.x - n;
    float *sum = dwpe + (long long)position * c;
    for (int j = thread * V; j < c; j += 256 * V) {
        float s[V] = {0};
        if (accumulate) load(s, sum + j);
        if (position < t) {
            for (long long i = position; i < n; i += t) {
                float x[V];
                load(x, dout + i * c + j);
                for (int k = 0; k < V; k++) s[k] += x[k];
            }
        }
        store(sum + j, s);
    }
}

#define KERNEL(T, S)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        encoder_backward_##S(float *dwte, float *dwpe, const T *dout, const int *tokens, int n, int t, int c, int positions, \
                             int vocab, int accumulate) {                                                    \
        WIDTH(c, (encoder_backward<T, V>(dwte, dwpe, dout, tokens, n, t, c, positions, vocab, accumulate)))  \
    }
BOTH_TYPES(KERNEL)
#undef KERNEL

// --- LayerNorm ---

// With RESIDUAL the row is res = x + y + ybias, as T holds it, else x.
template <typename T, int V, bool RESIDUAL>
SPMD_FN void layernorm_forward(T *res, T *out, float *mean, float *rstd, const T *x, const T *y, const float *ybias,
                               const float *weight, const float *bias, int n, int c) {
    FOR_ROWS(i, n) {
        const T *row = x + i * c;
        float sum = 0, squares = 0;
        FOR_COLUMNS(j, c) {
            float v[V];
            load(v, row + j);
            if (RESIDUAL) {
                float a[V], b[V];
                load(a, y + i * c + j);
                load(b, ybias + j);
                for (int k = 0; k < V; k++) v[k] = rounded<T>(v[k] + (a[k] + b[k]));
                store(res + i * c + j, v);
            }
            for (int k = 0; k < V; k++) sum += v[k];
        }
        if (RESIDUAL) row = res + i * c; // of which a thread reads what it has written
        float mu = warp_sum(sum) / c;
        FOR_COLUMNS(j, c) {
            float v[V];
            load(v, row + j);
            for (int k = 0; k < V; k++) squares += (v[k] - mu) * (v[k] - mu);
        }
        float inv = 1.0f / sqrtf(warp_sum(squares) / c + 1e-5f);
        FOR_COLUMNS(j, c) {
            float v[V], w[V], b[V];
            load(v, row + j);
            load(w, weight + j);
            load(b, bias + j);
            for (int k = 0; k < V; k++) v[k] = (v[k] - mu) * inv * w[k] + b[k];
            store(out + i * c + j, v);
        }
        if (threadIdx.x % 32 == 0) {
            mean[i] = mu;
            rstd[i] = inv;
        }
    }
}

#define KERNEL(T, S)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        layernorm_forward_##S(T *out, float *mean, float *rstd, const T *x, const float *weight, const float *bias, int n, int c) { \
        WIDTH(c, (layernorm_forward<T, V, false>(0, out, mean, rstd, x, 0, 0, weight, bias, n, c)))          \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        residual_layernorm_forward_##S(T *res, T *out, float *mean, float *rstd, const T *x, const T *y, const float *ybias, \
                                       const float *weight, const float *bias, int n, int c) {               \
        WIDTH(c, (layernorm_forward<T, V, true>(res, out, mean, rstd, x, y, ybias, weight, bias, n, c)))     \
    }
BOTH_TYPES(KERNEL)
#undef KERNEL

template <typename T, int V>
SPMD_FN void layernorm_backward_input(T *dx, const T *dout, const T *x, const float *weight, const float *mean,
                                      const float *rstd, int n, int c, int add) {
    FOR_ROWS(i, n) {
        float mu = mean[i], inv = rstd[i], a = 0, b = 0;
        FOR_COLUMNS(j, c) {
            float d[V], v[V], w[V];
            load(d, dout + i * c + j);
            load(v, x + i * c + j);
            load(w, weight + j);
            for (int k = 0; k < V; k++) {
                float g = d[k] * w[k];
                a += g;
                b += g * ((v[k] - mu) * inv);
            }
        }
        a = warp_sum(a) / c;
        b = warp_sum(b) / c;
        FOR_COLUMNS(j, c) {
            float d[V], v[V], w[V], o[V] = {0};
            load(d, dout + i * c + j);
            load(v, x + i * c + j);
            load(w, weight + j);
            if (add) load(o, dx + i * c + j);
            for (int k = 0; k < V; k++) o[k] += (d[k] * w[k] - a - (v[k] - mu) * inv * b) * inv;
            store(dx + i * c + j, o);
        }
    }
}

#define KERNEL(T, S)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        layernorm_backward_input_##S(T *dx, const T *dout, const T *x, const float *weight, const float *mean, \
                                     const float *rstd, int n, int c, int add) {                             \
        WIDTH(c, (layernorm_backward_input<T, V>(dx, dout, x, weight, mean, rstd, n, c, add)))               \
    }
BOTH_TYPES(KERNEL)
#undef KERNEL

// --- sums over rows ---

// column_sums computes dbias (+)= the sum of d(n,c) over its rows, and with NORM also
// dweight (+)= that of d times the normalised x. Block (x, y) of the grid adds up
// columns 32·V·x on of the y-th part of the rows, into partial(gridDim.y,1+NORM,c). The
// last block of these columns to arrive adds the parts, in order, and leaves
// arrived(gridDim.x) at zero.
template <typename T, int V, bool NORM>
SPMD_FN void column_sums(float *dweight, float *dbias, float *partial, unsigned *arrived, const T *d, const T *x,
                         const float *mean, const float *rstd, int n, int c, int accumulate) {
    __shared__ float sums[1 + NORM][8][32 * V];
    __shared__ bool last;
    int thread = threadIdx.x, warp = thread / 32, at = thread % 32 * V, first = blockIdx.x * 32 * V;
    int rows = (n + gridDim.y - 1) / gridDim.y;
    long long lo = (long long)rows * blockIdx.y, hi = min(lo + rows, (long long)n);
    float s[V] = {0}, w[V] = {0};
    if (first + at < c) {
        for (long long i = lo + warp; i < hi; i += 8) {
            float v[V];
            load(v, d + i * c + first + at);
            for (int k = 0; k < V; k++) s[k] += v[k];
            if (NORM) {
                float mu = mean[i], inv = rstd[i], u[V];
                load(u, x + i * c + first + at);
                for (int k = 0; k < V; k++) w[k] += v[k] * ((u[k] - mu) * inv);
            }
        }
    }
    for (int k = 0; k < V; k++) {
        sums[0][warp][at + k] = s[k];
        if (NORM) sums[NORM][warp][at + k] = w[k];
    }
    __syncthreads();
    int column = first + thread;
    bool mine = thread < 32 * V && column < c;
    for (int part = 0; mine && part <= NORM; part++) {
        float sum = 0;
        for (int r = 0; r < 8; r++) sum += sums[part][r][thread];
        partial[((1LL + NORM) * blockIdx.y + part) * c + column] = sum;
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) last = atomicInc(arrived + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    const volatile float *parts = partial; // written by other blocks
    for (int part = 0; mine && part <= NORM; part++) {
        float sum = 0;
        for (int y0 = 0; y0 < gridDim.y; y0 += 8) { // loads that do not wait for each other
            float p[8];
            for (int y = 0; y < 8; y++) p[y] = y0 + y < gridDim.y ? parts[((1LL + NORM) * (y0 + y) + part) * c + column] : 0;
            for (int y = 0; y < 8; y++) sum += p[y];
        }
        float *to = (part ? dweight : dbias) + column;
        *to = accumulate ? *to + sum : sum;
    }
}

#define KERNEL(T, S)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        layernorm_backward_params_##S(float *dweight, float *dbias, float *partial, unsigned *arrived, const T *dout, const T *x, \
                                      const float *mean, const float *rstd, int n, int c, int accumulate) {  \
        WIDTH(c, (column_sums<T, V, true>(dweight, dbias, partial, arrived, dout, x, mean, rstd, n, c, accumulate))) \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        bias_backward_##S(float *dbias, float *partial, unsigned *arrived, const T *dy, int n, int c, int accumulate) { \
        WIDTH(c, (column_sums<T, V, false>(0, dbias, partial, arrived, dy, 0, 0, 0, n, c, accumulate)))      \
    }
BOTH_TYPES(KERNEL)
#undef KERNEL

// --- bias and GELU ---

template <typename T, int V> SPMD_FN void bias_forward(T *y, const float *bias, int n, int c) {
    FOR_ROWS(i, n) {
        FOR_COLUMNS(j, c) {
            float v[V], b[V];
            load(v, y + i * c + j);
            load(b, bias + j);
            for (int k = 0; k < V; k++) v[k] += b[k];
            store(y + i * c + j, v);
        }
    }
}

// gelu_exp is e^-2u of gelu(x) = x·(1 + tanh(u))/2 = x/(1 + e^-2u), u = √(2/π)·(x + 0.044715x³),
// kept finite.
#define GELU_2K 1.5957691216f // 2√(2/π)
#define GELU_A 0.044715f
SPMD_FN float gelu_exp(float x) { return expf(min(-GELU_2K * (x + GELU_A * x * x * x), 80.0f)); }

// The GELU is that of x as T holds it: backward sees no other.
template <typename T, int V> SPMD_FN void bias_gelu_forward(T *out, T *x, const float *bias, int n, int c) {
    FOR_ROWS(i, n) {
        FOR_COLUMNS(j, c) {
            float v[V], b[V];
            load(v, x + i * c + j);
            load(b, bias + j);
            for (int k = 0; k < V; k++) v[k] = rounded<T>(v[k] + b[k]);
            store(x + i * c + j, v);
            for (int k = 0; k < V; k++) v[k] = v[k] / (1.0f + gelu_exp(v[k]));
            store(out + i * c + j, v);
        }
    }
}

template <typename T, int V> SPMD_FN void gelu_backward(T *d, const T *x, long long n) {
    for (long long i = grid_index() * V; i < n; i += grid_size() * V) {
        float g[V], v[V];
        load(g, d + i);
        load(v, x + i);
        for (int k = 0; k < V; k++) {
            float e = gelu_exp(v[k]), s = 1.0f / (1.0f + e);
            g[k] *= s + v[k] * s * (e * s) * (GELU_2K * (1.0f + 3.0f * GELU_A * v[k] * v[k])); // e·s is 1-s
        }
        store(d + i, g);
    }
}

#define KERNEL(T, S)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) bias_forward_##S(T *y, const float *bias, int n, int c) { \
        WIDTH(c, (bias_forward<T, V>(y, bias, n, c)))                                                        \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        bias_gelu_forward_##S(T *out, T *x, const float *bias, int n, int c) {                               \
        WIDTH(c, (bias_gelu_forward<T, V>(out, x, bias, n, c)))                                              \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) gelu_backward_##S(T *d, const T *x, long long n) {     \
        WIDTH(n, (gelu_backward<T, V>(d, x, n)))                                                             \
    }
BOTH_TYPES(KERNEL)
#undef KERNEL

// --- attention ---

// A block of 256 threads works on tiles of 64 by 64, in shared memory as float: the
// first index is the one that a product sums over. Thread (ty, tx) of 16 by 16 has
// rows 4·ty and columns 4·tx on of the product. Heads of more than 64 channels
// go in slices of 64, the last padded with zeros.
enum { TILE = 64 };
typedef float tile[TILE][TILE];
typedef float sub[4][4]; // a thread's part of a product

// swizzle is where element 4·g of row k of a tile stands that was written by columns.
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
    return make_float4(left > 0 ? to_float(p[0]) : 0, left > 1 ? to_float(p[1]) : 0, left > 2 ? to_float(p[2]) : 0, left > 3 ? to_float(p[3]) : 0);
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
// scratch, which no thread may still be reading when the block comes here.
template <typename T>
SPMD_FN void scores(sub &s, tile &x, tile &y, const T *a, long long astride, int ra, const T *b, long long bstride, int rb, int hs) {
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

// Block (x, y, z): head x, the queries of a tile, 64 channels of the values. The late
// queries, which have most keys, begin first.
template <typename T> SPMD_FN void attention_forward(T *out, float *lse, const T *qkv, int t, int nh, int hs) {
    __shared__ __align__(16) tile x, y, values; // y: keys, then probabilities
    long long c = (long long)nh * hs, c3 = 3 * c;
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    int q0 = (gridDim.y - 1 - blockIdx.y) * TILE, rows = min(TILE, t - q0), d0 = blockIdx.z * TILE;
    const T *q = qkv + blockIdx.x / nh * t * c3 + blockIdx.x % nh * hs, *k = q + c, *v = k + c + d0;
    float scale = 1.0f / sqrtf((float)hs), top[4], sum[4];
    sub o;
    clear(o);
    for (int i = 0; i < 4; i++) top[i] = -INF, sum[i] = 0;
    for (int k0 = 0; k0 <= q0; k0 += TILE) {
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
template <typename T> SPMD_FN void row_products(float (&delta)[TILE], const T *a, const T *b, long long stride, int r, int hs) {
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
// a tile of keys and computes dk and dv. Blocks in x and z as in attention_forward.
template <typename T>
SPMD_FN void attention_backward(T *dqkv, const T *dout, const T *out, const float *lse, const T *qkv, int t, int nh, int hs) {
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
        for (int k0 = 0; k0 <= q0; k0 += TILE) { // rows of s and dp are keys, columns queries
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
    for (int q0 = k0; q0 < t; q0 += TILE) { // rows of s and dp are queries, columns keys
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

#define KERNEL(T, S)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                     \
        attention_forward_##S(T *out, float *lse, const T *qkv, int b, int t, int nh, int hs) {              \
        attention_forward<T>(out, lse, qkv, t, nh, hs);                                                      \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                     \
        attention_backward_##S(T *dqkv, float *delta, const T *dout, const T *out, const float *lse, const T *qkv, int b, \
                               int t, int nh, int hs) {                                                      \
        attention_backward<T>(dqkv, dout, out, lse, qkv, t, nh, hs);                                         \
    }
BOTH_TYPES(KERNEL)
#undef KERNEL

// --- loss ---

// A block has a row at a time. A target outside the vocabulary makes the loss NaN.
template <typename T, int V>
SPMD_FN void classifier(float *losses, T *logits, const int *targets, int n, int v, int vp, float scale, int grad) {
    for (long long i = blockIdx.x; i < n; i += gridDim.x) {
        T *row = logits + i * vp;
        int target = targets[i];
        bool known = 0 <= target && target < v;
        float at = known ? to_float(row[target]) : NOT_A_NUMBER;
        float top = -INF, sum = 0; // of this thread's columns; sum is that of e^(x-top)
        for (int j = threadIdx.x * V; j < v; j += blockDim.x * V) {
            float x[V], high = top;
            load(x, row + j);
            for (int k = 0; k < V; k++)
                if (j + k < v) high = max(high, x[k]);
            if (high > top) sum *= expf(top - high);
            top = high;
            for (int k = 0; k < V; k++)
                if (j + k < v) sum += expf(x[k] - top);
        }
        float highest = block_max(top);
        sum = block_sum(sum * expf(top - highest)); // after which every thread has read row[target]
        if (threadIdx.x == 0) losses[i] = logf(sum) + highest - at;
        if (!grad) continue;
        float each = scale / sum;
        for (int j = threadIdx.x * V; j < vp; j += blockDim.x * V) {
            float x[V];
            load(x, row + j);
            for (int k = 0; k < V; k++) {
                x[k] = j + k < v ? expf(x[k] - highest) * each : 0;
                if (j + k == target) x[k] -= scale;
            }
            store(row + j, x);
        }
    }
}

#define KERNEL(T, S)                                                                                         \
    extern "C" __global__ void __launch_bounds__(512)                                                        \
        classifier_##S(float *losses, T *logits, const int *targets, int n, int v, int vp, float scale, int grad) { \
        WIDTH(vp, (classifier<T, V>(losses, logits, targets, n, v, vp, scale, grad)))                        \
    }
BOTH_TYPES(KERNEL)
#undef KERNEL

// One block.
extern "C" __global__ void __launch_bounds__(256) loss_sum(double *loss, const float *losses, int n, float scale, int accumulate) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += losses[i];
    sum = block_sum(sum) * scale;
    if (threadIdx.x == 0) *loss = accumulate ? *loss + sum : sum;
}

// --- optimizer ---

// copy, if any, receives p rounded. n is a multiple of 64.
extern "C" __global__ void __launch_bounds__(256)
    adamw(float *p, float *m, float *v, const float *g, const uint8_t *decay, const float *hyper, const float *norm, bf16 *copy,
          long long n, float beta1, float beta2, float eps, float weight_decay, float clip) {
    float size = *norm, gscale = 1, rate = hyper[0], c1 = hyper[1], c2 = hyper[2];
    if (!(size < INF)) return; // the norm is infinite or NaN
    if (clip > 0 && size > clip) gscale = (float)((double)clip / size);
    for (long long i = 4 * grid_index(); i < n; i += 4 * grid_size()) {
        float4 p4 = load4(p + i), m4 = load4(m + i), v4 = load4(v + i), g4 = load4(g + i);
        float wd = decay[i / 64] ? weight_decay : 0;
        float *pk = &p4.x, *mk = &m4.x, *vk = &v4.x, *gk = &g4.x;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float gi = gk[k] * gscale;
            mk[k] = beta1 * mk[k] + (1 - beta1) * gi;
            vk[k] = beta2 * vk[k] + (1 - beta2) * (gi * gi);
            pk[k] -= rate * (mk[k] * c1 / (sqrtf(vk[k] * c2) + eps) + wd * pk[k]);
        }
        store4(p + i, p4);
        store4(m + i, m4);
        store4(v + i, v4);
        if (copy) store4(copy + i, p4);
    }
}

// n is a multiple of 64.
extern "C" __global__ void __launch_bounds__(256) round_weights(bf16 *copy, const float *p, long long n) {
    for (long long i = 4 * grid_index(); i < n; i += 4 * grid_size()) store4(copy + i, load4(p + i));
}
