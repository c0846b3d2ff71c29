// The kernels of the model on a GPU; kernels.go says what they compute. It compiles this
// file once for each type of activations, ACT. Sums run in float32 and in an order that
// depends on the sizes alone, so that the ranks of a job, and every run, get the same bits.
//
// Rows of a multiple of 8 elements are read and written 8 at a time: rows, biases
// and weights then begin at multiples of 16 bytes. Others go element by element.
#include "spmd.cuh"

typedef ACT act;

template <typename T> SPMD_FN void load(float (&v)[8], const T *p) { load8(v, p); }
template <typename T> SPMD_FN void load(float (&v)[1], const T *p) { v[0] = to_float(*p); }
template <typename T> SPMD_FN void store(T *p, const float (&v)[8]) { store8(p, v); }
template <typename T> SPMD_FN void store(T *p, const float (&v)[1]) { *p = from_float<T>(v[0]); }

// inverse_root is 1/√x within a unit of the last place, without the branches of a division.
SPMD_FN float inverse_root(float x) {
    float y = rsqrtf(x);
    return y * (1.5f - 0.5f * x * y * y);
}

// rounded is x as activations hold it.
SPMD_FN float rounded(float x) { return to_float(from_float<act>(x)); }

// store_rounded stores v, and leaves it as it is stored.
SPMD_FN void store_rounded(act *p, float (&v)[8]) {
    struct __align__(16) { act v[8]; } u;
    store8(u.v, v);
    load8(v, u.v);
    *(decltype(u) *)p = u;
}

#define INF __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)

// FOR_ROWS gives each warp of the grid a row i of n in turn, FOR_COLUMNS each thread of a
// warp the columns from j to j + V.
#define FOR_ROWS(i, n) for (long long i = grid_index() / 32; i < (n); i += grid_size() / 32)
#define FOR_COLUMNS(j, c) for (int j = threadIdx.x % 32 * V; j < (c); j += 32 * V)

// --- copies to shared memory that come while the thread goes on ---

extern __shared__ uint4 copy[]; // of the launch

// copy_async copies T, of 4 or 16 bytes. A thread reads what it has copied itself once copy_wait says so.
template <typename T> SPMD_FN void copy_async(T *to, const T *from) {
#if __CUDA_ARCH__ >= 800
    unsigned at = __cvta_generic_to_shared(to);
    if (sizeof(T) == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(sizeof(T)) : "memory");
#else
    *to = *from;
#endif
}

// copy_commit ends a group of copies, copy_wait waits for all groups but the last N.
SPMD_FN void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> SPMD_FN void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// --- sums that blocks share ---

// last_of says to all threads of a block whether it is the last of so many blocks to come here with this
// counter, which then is 0 again. What the others have written before is then there to read.
SPMD_FN bool last_of(unsigned *counter, unsigned blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(counter, blocks - 1) == blocks - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// add_rows is the sum of m floats, width apart, which other blocks have written.
SPMD_FN float add_rows(const float *p, int m, int width) {
    enum { DEEP = 16 }; // loads that do not wait for each other
    float sum = 0;
    for (int left = m; left > 0; left -= DEEP) {
        float v[DEEP];
#pragma unroll
        for (int r = 0; r < DEEP; r++, p += width) v[r] = r < left ? __ldcg(p) : 0;
#pragma unroll
        for (int r = 0; r < DEEP; r++) sum += v[r];
    }
    return sum;
}

// sum_blocks adds up what the blocks of the grid have written to partial(blocks + sets, width), each to its row: the
// last block of every SET of them the rows of the set, the last of these the sets' sums, for which it calls
// add(column, sum). arrived(1 + sets) stays zero.
enum { SET = 16 };

template <typename F> SPMD_FN void sum_blocks(float *partial, unsigned *arrived, int width, F add) {
    int sets = (gridDim.x + SET - 1) / SET, set = blockIdx.x / SET, members = min(SET, gridDim.x - set * SET);
    if (!last_of(arrived + 1 + set, members)) return;
    const float *rows = partial + (long long)set * SET * width;
    float *totals = partial + (long long)gridDim.x * width;
    for (int j = threadIdx.x; j < width; j += blockDim.x) totals[(long long)set * width + j] = add_rows(rows + j, members, width);
    if (!last_of(arrived, sets)) return;
    for (int j = threadIdx.x; j < width; j += blockDim.x) add(j, add_rows(totals + j, sets, width));
}

// --- embeddings ---

// A token outside the vocabulary reads nothing: its row becomes NaN, and so the loss.
template <int V>
SPMD_FN void encoder_forward_of(act *out, const int *tokens, const float *wte, const float *wpe, int n, int t, int c, int vocab) {
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

extern "C" __global__ void __launch_bounds__(256)
    encoder_forward(act *out, const int *tokens, const float *wte, const float *wpe, int n, int t, int c, int vocab) {
    if (c % 8 == 0) encoder_forward_of<8>(out, tokens, wte, wpe, n, t, c, vocab);
    else encoder_forward_of<1>(out, tokens, wte, wpe, n, t, c, vocab);
}

// add_order adds to s the rows order[first..end) of d, in their order, 4 loads at a time.
template <int V> SPMD_FN void add_order(float (&s)[V], const act *d, const int *order, int first, int end, int c) {
    int i = first;
    for (; i + 4 <= end; i += 4) {
        float x[4][V];
#pragma unroll
        for (int r = 0; r < 4; r++) load(x[r], d + (long long)order[i + r] * c);
#pragma unroll
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < V; k++) s[k] += x[r][k];
    }
    for (; i < end; i++) {
        float x[V];
        load(x, d + (long long)order[i] * c);
        for (int k = 0; k < V; k++) s[k] += x[k];
    }
}

// A warp takes 32·V columns of a position, or of a part of a token's rows. Parts of the same token go to rows of
// partial, which the last warp to arrive adds up. sorted is laid out by sorter.sort.
template <int V>
SPMD_FN void encoder_backward_of(float *dwte, float *dwpe, float *partial, unsigned *arrived, const act *dout, const int *sorted,
                                 int n, int t, int c, int positions, int vocab, int most_parts, int most_split, int accumulate) {
    const int4 *parts = (const int4 *)(sorted + 4), *splits = parts + most_parts;
    const int *order = (const int *)(splits + most_split);
    int chunks = (c + 32 * V - 1) / (32 * V), lane = threadIdx.x % 32;
    long long units = ((long long)positions + sorted[0]) * chunks;
    FOR_ROWS(unit, units) {
        int item = unit / chunks, chunk = unit % chunks, j = (chunk * 32 + lane) * V;
        bool mine = j < c;
        float s[V] = {0};
        if (item < positions) {
            float *to = dwpe + (long long)item * c + j;
            if (!mine) continue;
            if (accumulate) load(s, to);
            if (item < t) {
#pragma unroll 4
                for (long long i = item; i < n; i += t) {
                    float x[V];
                    load(x, dout + i * c + j);
                    for (int k = 0; k < V; k++) s[k] += x[k];
                }
            }
            store(to, s);
            continue;
        }
        int4 part = parts[item - positions]; // token, first and end in order, number in splits or -1
        if (part.x < 0 || part.x >= vocab) continue;
        float *to = dwte + (long long)part.x * c + j;
        if (part.w < 0) {
            if (!mine) continue;
            load(s, to);
            add_order(s, dout + j, order, part.y, part.z, c);
            store(to, s);
            continue;
        }
        int4 split = splits[part.w]; // first row of partial, first part, number of parts
        float *rows = partial + (long long)split.x * c + j;
        if (mine) {
            add_order(s, dout + j, order, part.y, part.z, c);
            store(rows + (long long)(item - positions - split.y) * c, s);
        }
        __threadfence();
        __syncwarp();
        bool last = false;
        if (lane == 0) last = atomicInc(arrived + part.w * chunks + chunk, split.z - 1) == split.z - 1;
        if (!__shfl_sync(0xffffffffu, last, 0)) continue;
        __threadfence();
        if (!mine) continue;
#pragma unroll 1
        for (int k = 0; k < V; k++) to[k] += add_rows(rows + k, split.z, c);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    encoder_backward(float *dwte, float *dwpe, float *partial, unsigned *arrived, const act *dout, const int *sorted, int n, int t,
                     int c, int positions, int vocab, int most_parts, int most_split, int accumulate) {
    if (c % 8 == 0) encoder_backward_of<8>(dwte, dwpe, partial, arrived, dout, sorted, n, t, c, positions, vocab, most_parts, most_split, accumulate);
    else encoder_backward_of<1>(dwte, dwpe, partial, arrived, dout, sorted, n, t, c, positions, vocab, most_parts, most_split, accumulate);
}

// packed8 is 8 activations as they lie in memory.
struct packed8 { uint4 part[sizeof(act) / 2]; };

SPMD_FN packed8 fetch8(const act *p) {
    packed8 r;
#pragma unroll
    for (int i = 0; i < sizeof(act) / 2; i++) r.part[i] = ((const uint4 *)p)[i];
    return r;
}

SPMD_FN void unpack8(float (&v)[8], packed8 p) {
    union { packed8 raw; act x[8]; } u;
    u.raw = p;
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = to_float(u.x[k]);
}

// --- copies in 8-bit floats ---

// code stores 8 values times scale, and returns the largest size of these and of top. A NaN has none.
SPMD_FN float code(f8e4m3 *to, const float (&v)[8], float scale, float top) {
    float s[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        top = fmaxf(top, fabsf(v[k]));
        s[k] = v[k] * scale;
    }
    store8(to, s);
    return top;
}

// Activations of float have no codes.
SPMD_FN float code(f8e4m3 *, const float (&)[4], float, float top) { return top; }

// raise makes *peak at least top, which is not negative, of all threads of the block; peak may be missing.
SPMD_FN void raise(float *peak, float top) {
    top = block_max(top);
    if (peak && threadIdx.x == 0 && top > *(volatile float *)peak) atomicMax((int *)peak, __float_as_int(top));
}

// --- LayerNorm ---

// Rows of bfloat16 of 512 to 1,024 elements, a multiple of 8, are each worked on by a warp: a lane has 8 of every 256
// columns. What a warp reads of its next DEEP rows is on the way to its part of shared memory; normByWarps in
// kernels.go knows its size. Each lane copies what it will read itself, so that no one waits for another.
enum { WARPS = 8, DEEP = 4 };

// ring is the rows of ARRAYS arrays that a warp has there, and two statistics of each.
template <int ARRAYS> struct ring {
    char *own;
    int c, row; // row is in bytes

    __device__ ring(int c) : c(c), row(ARRAYS * c * sizeof(act) + 32 * 8) {
        own = (char *)copy + threadIdx.x / 32 * DEEP * row;
    }
    __device__ packed8 *place(int slot, int array, int j) const { return (packed8 *)(own + slot * row + (array * c + j) * sizeof(act)); }
    __device__ float *statistics(int slot) const { return (float *)(own + slot * row + ARRAYS * c * sizeof(act)) + threadIdx.x % 32 * 2; }
    __device__ void fetch(int slot, int array, int j, const act *from) const {
        const uint4 *p = (const uint4 *)from;
#pragma unroll
        for (int i = 0; i < sizeof(act) / 2; i++) copy_async(place(slot, array, j)->part + i, p + i);
    }
};

// With COPY codes receives out times *up, in 8-bit floats.
template <int N, bool COPY>
SPMD_FN void layernorm_forward_chunks(act *out, float *mean, float *rstd, const act *x, const float *weight, const float *bias, int n, int c,
                                      f8e4m3 *codes, const float *up, float *peak) {
    ring<1> r(c);
    int first = threadIdx.x % 32 * 8;
    float w[N][8], b[N][8], per = 1.0f / c, times = COPY ? *up : 0, largest = 0;
#pragma unroll
    for (int q = 0; q < N; q++) {
        int j = first + q * 256;
        if (j < c) {
            load8(w[q], weight + j);
            load8(b[q], bias + j);
        }
    }
    long long i = grid_index() / 32, step = grid_size() / 32;
    auto fetch = [&](long long i, int slot) {
#pragma unroll
        for (int q = 0; q < N; q++) {
            int j = first + q * 256;
            if (i < n && j < c) r.fetch(slot, 0, j, x + i * c + j);
        }
        copy_commit();
    };
#pragma unroll
    for (int k = 0; k < DEEP; k++) fetch(i + k * step, k);
    for (int slot = 0; i < n; i += step, slot = (slot + 1) % DEEP) {
        float v[N][8], sum = 0, squares = 0;
        copy_wait<DEEP - 1>();
#pragma unroll
        for (int q = 0; q < N; q++) {
            if (first + q * 256 >= c) continue;
            unpack8(v[q], *r.place(slot, 0, first + q * 256));
            for (int k = 0; k < 8; k++) sum += v[q][k];
        }
        fetch(i + DEEP * step, slot);
        float mu = warp_sum(sum) * per;
#pragma unroll
        for (int q = 0; q < N; q++) {
            if (first + q * 256 >= c) continue;
            for (int k = 0; k < 8; k++) squares += (v[q][k] - mu) * (v[q][k] - mu);
        }
        float inv = inverse_root(warp_sum(squares) * per + 1e-5f);
#pragma unroll
        for (int q = 0; q < N; q++) {
            int j = first + q * 256;
            if (j >= c) continue;
            for (int k = 0; k < 8; k++) v[q][k] = (v[q][k] - mu) * inv * w[q][k] + b[q][k];
            if (!COPY) {
                store8(out + i * c + j, v[q]);
                continue;
            }
            store_rounded(out + i * c + j, v[q]);
            largest = code(codes + i * c + j, v[q], times, largest);
        }
        if (first == 0) mean[i] = mu, rstd[i] = inv;
    }
    if (COPY) raise(peak, largest);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    layernorm_forward_warps(act *out, float *mean, float *rstd, const act *x, const float *weight, const float *bias, int n, int c) {
    if (c <= 768) layernorm_forward_chunks<3, false>(out, mean, rstd, x, weight, bias, n, c, 0, 0, 0);
    else layernorm_forward_chunks<4, false>(out, mean, rstd, x, weight, bias, n, c, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    layernorm_forward_warps_8(act *out, float *mean, float *rstd, const act *x, const float *weight, const float *bias, int n, int c,
                              f8e4m3 *codes, const float *up, float *peak) {
    if (c <= 768) layernorm_forward_chunks<3, true>(out, mean, rstd, x, weight, bias, n, c, codes, up, peak);
    else layernorm_forward_chunks<4, true>(out, mean, rstd, x, weight, bias, n, c, codes, up, peak);
}

// What layernorm_backward_tiles does. With COPY codes receives dx times *up, in 8-bit floats.
template <int N, bool COPY>
SPMD_FN void layernorm_backward_chunks(act *dx, float *partial, const act *dout, const act *x, const float *weight, const float *mean,
                                       const float *rstd, int n, int c, int add, f8e4m3 *codes, const float *up, float *peak) {
    ring<3> r(c);
    int first = threadIdx.x % 32 * 8;
    float w[N][8], total[3][N][8] = {}, per = 1.0f / c, times = COPY ? *up : 0, largest = 0;
#pragma unroll
    for (int q = 0; q < N; q++)
        if (first + q * 256 < c) load8(w[q], weight + first + q * 256);
    long long i = grid_index() / 32, step = grid_size() / 32;
    auto fetch = [&](long long i, int slot) {
        if (i < n) {
#pragma unroll
            for (int q = 0; q < N; q++) {
                int j = first + q * 256;
                if (j >= c) continue;
                r.fetch(slot, 0, j, dout + i * c + j);
                r.fetch(slot, 1, j, x + i * c + j);
                if (add) r.fetch(slot, 2, j, dx + i * c + j);
            }
            copy_async(r.statistics(slot), mean + i);
            copy_async(r.statistics(slot) + 1, rstd + i);
        }
        copy_commit();
    };
#pragma unroll
    for (int k = 0; k < DEEP; k++) fetch(i + k * step, k);
    for (int slot = 0; i < n; i += step, slot = (slot + 1) % DEEP) {
        float d[N][8], v[N][8], a = 0, b = 0;
        copy_wait<DEEP - 1>();
        float mu = r.statistics(slot)[0], inv = r.statistics(slot)[1];
#pragma unroll
        for (int q = 0; q < N; q++) {
            int j = first + q * 256;
            if (j >= c) continue;
            unpack8(d[q], *r.place(slot, 0, j));
            unpack8(v[q], *r.place(slot, 1, j));
#pragma unroll
            for (int k = 0; k < 8; k++) {
                v[q][k] = (v[q][k] - mu) * inv;
                total[0][q][k] += d[q][k] * v[q][k];
                total[1][q][k] += d[q][k];
                d[q][k] *= w[q][k];
                a += d[q][k];
                b += d[q][k] * v[q][k];
            }
        }
        a = warp_sum(a) * per;
        b = warp_sum(b) * per;
#pragma unroll
        for (int q = 0; q < N; q++) {
            int j = first + q * 256;
            if (j >= c) continue;
            float o[8] = {0};
            if (add) unpack8(o, *r.place(slot, 2, j));
#pragma unroll
            for (int k = 0; k < 8; k++) o[k] += (d[q][k] - a - v[q][k] * b) * inv;
            store_rounded(dx + i * c + j, o);
#pragma unroll
            for (int k = 0; k < 8; k++) total[2][q][k] += o[k];
            if (COPY) largest = code(codes + i * c + j, o, times, largest);
        }
        fetch(i + DEEP * step, slot);
    }
    if (COPY) raise(peak, largest);
    copy_wait<0>();
    __syncthreads();
    float *parts = (float *)copy;
#pragma unroll
    for (int part = 0; part < 3; part++)
#pragma unroll
        for (int q = 0; q < N; q++)
            if (first + q * 256 < c) store8(parts + (threadIdx.x / 32 * 3 + part) * c + first + q * 256, total[part][q]);
    __syncthreads();
    for (int j = threadIdx.x; j < 3 * c; j += blockDim.x) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++) sum += parts[k * 3 * c + j];
        partial[blockIdx.x * 3LL * c + j] = sum;
    }
}

// Others of a multiple of 8 elements, and of at most 8·MOST_THREADS, are worked on by groups of whole warps, a thread
// for 8 columns, which keep several rows at a time in registers. tileGrid in kernels.go fits the block to this.
enum { MOST_THREADS = 288 };

SPMD_FN bool in_tiles(int c) { return c % 8 == 0 && c <= 8 * MOST_THREADS; }

struct group {
    int threads, index, groups; // of a group; which of the block's it is; how many these are
    int column;                 // first of the thread's
    int warp;                   // first of the group's in the block
};

SPMD_FN group group_of(int c) {
    group g;
    g.threads = (c / 8 + 31) / 32 * 32;
    g.index = threadIdx.x / g.threads;
    g.groups = blockDim.x / g.threads;
    g.column = threadIdx.x % g.threads * 8;
    g.warp = g.index * g.threads / 32;
    return g;
}

// group_sums replaces each of v by its sum over the threads of the group. sums is of the block; it must not be the
// one of the call before.
template <int N> SPMD_FN void group_sums(float (&v)[N], float (&sums)[MOST_THREADS / 32][N], const group &g) {
    int lane = threadIdx.x % 32;
    // Each exchange halves the number of sums that a lane is after: lane l ends with that of v[l % N].
#pragma unroll
    for (int m = N / 2; m > 0; m /= 2) {
#pragma unroll
        for (int i = 0; i < m; i++) {
            float keep = lane & m ? v[i + m] : v[i], give = lane & m ? v[i] : v[i + m];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, give, m);
        }
    }
#pragma unroll
    for (int m = N; m < 32; m *= 2) v[0] += __shfl_xor_sync(0xffffffffu, v[0], m);
    if (lane < N) sums[threadIdx.x / 32][lane] = v[0];
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(1 + g.index), "r"(g.threads) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = 0;
    for (int w = 0; w < g.threads / 32; w++)
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += sums[g.warp + w][i];
}

SPMD_FN void layernorm_forward_tiles(act *out, float *mean, float *rstd, const act *x, const float *weight, const float *bias, int n, int c) {
    enum { ROWS = 2 };
    __shared__ __align__(16) float sums[2][MOST_THREADS / 32][ROWS];
    group g = group_of(c);
    int j = g.column;
    bool mine = j < c;
    float per = 1.0f / c;
    for (long long i0 = ((long long)blockIdx.x * g.groups + g.index) * ROWS; i0 < n; i0 += (long long)gridDim.x * g.groups * ROWS) {
        float v[ROWS][8], s[ROWS], mu[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            s[r] = 0;
            if (mine && i0 + r < n) {
                load8(v[r], x + (i0 + r) * c + j);
                for (int k = 0; k < 8; k++) s[r] += v[r][k];
            }
        }
        group_sums(s, sums[0], g);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            mu[r] = s[r] * per;
            s[r] = 0;
            if (mine && i0 + r < n)
                for (int k = 0; k < 8; k++) s[r] += (v[r][k] - mu[r]) * (v[r][k] - mu[r]);
        }
        group_sums(s, sums[1], g);
        float w[8] = {0}, b[8] = {0};
        if (mine) {
            load8(w, weight + j);
            load8(b, bias + j);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float inv = inverse_root(s[r] * per + 1e-5f);
            if (!mine || i0 + r >= n) continue;
            for (int k = 0; k < 8; k++) v[r][k] = (v[r][k] - mu[r]) * inv * w[k] + b[k];
            store8(out + (i0 + r) * c + j, v[r]);
            if (j == 0) mean[i0 + r] = mu[r], rstd[i0 + r] = inv;
        }
    }
}

// layernorm_forward_rows is for rows of any length: a block has one at a time.
SPMD_FN void layernorm_forward_rows(act *out, float *mean, float *rstd, const act *x, const float *weight, const float *bias, int n, int c) {
    for (long long i = blockIdx.x; i < n; i += gridDim.x) {
        const act *row = x + i * c;
        float sum = 0, squares = 0;
        for (int j = threadIdx.x; j < c; j += blockDim.x) sum += to_float(row[j]);
        float mu = block_sum(sum) / c;
        for (int j = threadIdx.x; j < c; j += blockDim.x) squares += (to_float(row[j]) - mu) * (to_float(row[j]) - mu);
        float inv = inverse_root(block_sum(squares) / c + 1e-5f);
        for (int j = threadIdx.x; j < c; j += blockDim.x) out[i * c + j] = from_float<act>((to_float(row[j]) - mu) * inv * weight[j] + bias[j]);
        if (threadIdx.x == 0) mean[i] = mu, rstd[i] = inv;
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 4)
    layernorm_forward(act *out, float *mean, float *rstd, const act *x, const float *weight, const float *bias, int n, int c) {
    if (in_tiles(c)) layernorm_forward_tiles(out, mean, rstd, x, weight, bias, n, c);
    else layernorm_forward_rows(out, mean, rstd, x, weight, bias, n, c);
}

// With x̂ = (x - mean)·rstd and g = dout·weight, dx (+)= (g - Σg/c - x̂·Σ(g·x̂)/c)·rstd. A block leaves in its row of
// partial(…,3,c) the sums over its rows of dout·x̂, of dout and of the new dx.
SPMD_FN void layernorm_backward_tiles(act *dx, float *partial, const act *dout, const act *x, const float *weight, const float *mean,
                                      const float *rstd, int n, int c, int add) {
    __shared__ __align__(16) float sums[2][MOST_THREADS / 32][2];
    __shared__ __align__(16) float parts[MOST_THREADS * 8];
    group g = group_of(c);
    int j = g.column, turn = 0;
    bool mine = j < c;
    float per = 1.0f / c, total[3][8] = {0};
    long long i = (long long)blockIdx.x * g.groups + g.index, step = (long long)gridDim.x * g.groups;
    packed8 d1 = {}, x1 = {}, o1 = {}; // of the next row, which come while this one is worked on
    auto fetch = [&](long long i) {
        if (!mine || i >= n) return;
        d1 = fetch8(dout + i * c + j);
        x1 = fetch8(x + i * c + j);
        if (add) o1 = fetch8(dx + i * c + j);
    };
    fetch(i);
    for (; i < n; i += step) {
        float d[8], v[8], w[8] = {0}, s[2] = {0};
        packed8 o0 = o1;
        unpack8(d, d1);
        unpack8(v, x1);
        float mu = mean[i], inv = rstd[i];
        fetch(i + step);
        if (mine) load8(w, weight + j);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = (v[k] - mu) * inv;
            total[0][k] += d[k] * v[k];
            total[1][k] += d[k];
            d[k] *= w[k];
            s[0] += d[k];
            s[1] += d[k] * v[k];
        }
        group_sums(s, sums[turn], g);
        turn = 1 - turn;
        if (!mine) continue;
        float o[8], a = s[0] * per, b = s[1] * per;
        unpack8(o, o0);
#pragma unroll
        for (int k = 0; k < 8; k++) o[k] += (d[k] - a - v[k] * b) * inv;
        store_rounded(dx + i * c + j, o);
#pragma unroll
        for (int k = 0; k < 8; k++) total[2][k] += o[k];
    }
#pragma unroll
    for (int part = 0; part < 3; part++) {
        __syncthreads();
        store8(parts + threadIdx.x * 8, total[part]);
        __syncthreads();
        for (int at = threadIdx.x; at < c; at += blockDim.x) {
            float sum = 0;
            for (int i = 0; i < g.groups; i++) sum += parts[i * g.threads * 8 + at];
            partial[(blockIdx.x * 3LL + part) * c + at] = sum;
        }
    }
}

// layernorm_backward_rows is for rows of any length. A thread has the same columns of every row, and adds them up
// in the block's row of partial.
SPMD_FN void layernorm_backward_rows(act *dx, float *partial, const act *dout, const act *x, const float *weight, const float *mean,
                                     const float *rstd, int n, int c, int add) {
    float *total = partial + blockIdx.x * 3LL * c;
    for (int j = threadIdx.x; j < c; j += blockDim.x) total[j] = total[c + j] = total[2LL * c + j] = 0;
    for (long long i = blockIdx.x; i < n; i += gridDim.x) {
        float mu = mean[i], inv = rstd[i], a = 0, b = 0;
        for (int j = threadIdx.x; j < c; j += blockDim.x) {
            float dw = to_float(dout[i * c + j]) * weight[j];
            a += dw;
            b += dw * ((to_float(x[i * c + j]) - mu) * inv);
        }
        a = block_sum(a) / c;
        b = block_sum(b) / c;
        for (int j = threadIdx.x; j < c; j += blockDim.x) {
            float d = to_float(dout[i * c + j]), v = (to_float(x[i * c + j]) - mu) * inv;
            float o = (d * weight[j] - a - v * b) * inv;
            if (add) o += to_float(dx[i * c + j]);
            o = rounded(o);
            dx[i * c + j] = from_float<act>(o);
            total[j] += d * v;
            total[c + j] += d;
            total[2LL * c + j] += o;
        }
    }
}

// dcolumns, the sums over the rows of the new dx, may be missing.
SPMD_FN void layernorm_backward_sums(float *dweight, float *dbias, float *dcolumns, float *partial, unsigned *arrived, int c, int accumulate) {
    sum_blocks(partial, arrived, 3 * c, [=](int j, float sum) {
        float *to = j < c ? dweight + j : j < 2 * c ? dbias + j - c : dcolumns ? dcolumns + j - 2 * c : 0;
        if (to) *to = accumulate ? *to + sum : sum;
    });
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2)
    layernorm_backward(act *dx, float *dweight, float *dbias, float *dcolumns, float *partial, unsigned *arrived, const act *dout,
                       const act *x, const float *weight, const float *mean, const float *rstd, int n, int c, int add, int accumulate) {
    if (in_tiles(c)) layernorm_backward_tiles(dx, partial, dout, x, weight, mean, rstd, n, c, add);
    else layernorm_backward_rows(dx, partial, dout, x, weight, mean, rstd, n, c, add);
    layernorm_backward_sums(dweight, dbias, dcolumns, partial, arrived, c, accumulate);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    layernorm_backward_warps(act *dx, float *dweight, float *dbias, float *dcolumns, float *partial, unsigned *arrived, const act *dout,
                             const act *x, const float *weight, const float *mean, const float *rstd, int n, int c, int add, int accumulate) {
    if (c <= 768) layernorm_backward_chunks<3, false>(dx, partial, dout, x, weight, mean, rstd, n, c, add, 0, 0, 0);
    else layernorm_backward_chunks<4, false>(dx, partial, dout, x, weight, mean, rstd, n, c, add, 0, 0, 0);
    layernorm_backward_sums(dweight, dbias, dcolumns, partial, arrived, c, accumulate);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    layernorm_backward_warps_8(act *dx, float *dweight, float *dbias, float *dcolumns, float *partial, unsigned *arrived, const act *dout,
                               const act *x, const float *weight, const float *mean, const float *rstd, int n, int c, int add, int accumulate,
                               f8e4m3 *codes, const float *up, float *peak) {
    if (c <= 768) layernorm_backward_chunks<3, true>(dx, partial, dout, x, weight, mean, rstd, n, c, add, codes, up, peak);
    else layernorm_backward_chunks<4, true>(dx, partial, dout, x, weight, mean, rstd, n, c, add, codes, up, peak);
    layernorm_backward_sums(dweight, dbias, dcolumns, partial, arrived, c, accumulate);
}

// --- sums ---

extern "C" __global__ void __launch_bounds__(256) add_to(float *dst, const float *src, int n) {
    for (long long i = grid_index(); i < n; i += grid_size()) dst[i] += src[i];
}

// --- loss ---

// exp_from is e^(x-top). bfloat16 logits take the hardware's power of 2, within 2^-18 where it matters.
SPMD_FN float exp_from(float x, float top) {
    if (sizeof(act) == 4) return expf(x - top);
    float e; // the difference first: where x is near the top, it is exact
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"((x - top) * 1.44269504f));
    return e;
}

// A block has a row, in chunks of 16 bytes, of which the first held fit into its shared memory; a thread has the same
// chunks from beginning to end. The last rows go first: a product that has just written them has left them in the cache.
// A target outside the vocabulary makes the loss NaN. With COPY codes receives the gradient times *up, in 8-bit floats.
template <bool COPY>
SPMD_FN void classify(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad,
                      f8e4m3 *codes, const float *up, float *peak) {
    enum { E = 16 / sizeof(act) };
    long long i = n - 1 - blockIdx.x;
    uint4 *row = (uint4 *)(logits + i * vp);
    for (int q = threadIdx.x; q < held; q += blockDim.x) copy_async(copy + q, row + q);
    copy_commit();
    int target = targets[i];
    bool known = 0 <= target && target < v;
    float at = known ? to_float(logits[i * vp + target]) : NOT_A_NUMBER;
    // chunk is chunk q, with e^x = 0 in the columns beyond the vocabulary.
    auto chunk = [=](float (&x)[E], int q) {
        union { uint4 raw; act x[E]; } u;
        u.raw = q < held ? copy[q] : row[q];
#pragma unroll
        for (int k = 0; k < E; k++) x[k] = to_float(u.x[k]);
        if (E * (q + 1) > v) {
#pragma unroll
            for (int k = 0; k < E; k++)
                if (E * q + k >= v) x[k] = -INF;
        }
    };
    float top = -INF, sum = 0; // of this thread's columns; sum is that of e^(x-top)
    copy_wait<0>();
    for (int q = threadIdx.x; E * q < v; q += blockDim.x) {
        float x[E], high = top;
        chunk(x, q);
#pragma unroll
        for (int k = 0; k < E; k++) high = max(high, x[k]);
        if (high > top) sum *= exp_from(top, high);
        top = high;
#pragma unroll
        for (int k = 0; k < E; k++) sum += exp_from(x[k], top);
    }
    float highest = block_max(top);
    if (top > -INF) sum *= exp_from(top, highest);
    sum = block_sum(sum); // after which every thread has read the target's logit
    if (threadIdx.x == 0) losses[i] = logf(sum) + highest - at;
    if (!grad) return;
    float each = scale / sum, times = COPY ? *up : 0, largest = 0;
    for (int q = threadIdx.x; E * q < vp; q += blockDim.x) {
        float x[E] = {0};
        if (E * q < v) {
            chunk(x, q);
#pragma unroll
            for (int k = 0; k < E; k++) x[k] = exp_from(x[k], highest) * each;
        }
        if (E * q <= target && target < E * (q + 1)) {
#pragma unroll
            for (int k = 0; k < E; k++)
                if (E * q + k == target) x[k] -= scale;
        }
        union { uint4 raw; act x[E]; } u;
#pragma unroll
        for (int k = 0; k < E; k++) u.x[k] = from_float<act>(x[k]);
        row[q] = u.raw;
        if (!COPY) continue;
#pragma unroll
        for (int k = 0; k < E; k++) x[k] = to_float(u.x[k]);
        largest = code(codes + i * vp + E * q, x, times, largest);
    }
    if (COPY) raise(peak, largest);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    classifier(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad) {
    classify<false>(losses, logits, targets, n, v, vp, held, scale, grad, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    classifier_8(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad,
                 f8e4m3 *codes, const float *up, float *peak) {
    classify<true>(losses, logits, targets, n, v, vp, held, scale, grad, codes, up, peak);
}

// One block.
extern "C" __global__ void __launch_bounds__(1024) loss_sum(double *loss, const float *losses, int n, float scale, int accumulate) {
    double sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += losses[i];
    sum = block_sum(sum) * scale;
    if (threadIdx.x == 0) *loss = accumulate ? *loss + sum : sum;
}

// copy receives p rounded.
extern "C" __global__ void __launch_bounds__(256) round_weights(bf16 *copy, const float *p, long long n) {
    for (long long i = 4 * grid_index(); i < n; i += 4 * grid_size()) store4(copy + i, load4(p + i));
}
