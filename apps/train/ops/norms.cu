// LayerNorm on a GPU, behind common.cuh; norms.go says what the kernels compute. It compiles this once for each type of
// activations, ACT.

// Rows of bfloat16 of 512 to 1,024 elements, a multiple of 8, are each worked on by a warp: a lane has 8 of every 256
// columns. What a warp reads of its next DEEP rows is on the way to its part of shared memory; normByWarps in
// norms.go knows its size. Each lane copies what it will read itself, so that no one waits for another.
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
// for 8 columns, which keep several rows at a time in registers. tileGrid in norms.go fits the block to this.
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
    group_barrier(1 + g.index, g.threads);
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
    // Each part has memory of its own. One for all in turn would do, but racecheck takes a write behind __syncthreads
    // for a race with the read before it, in a kernel that has passed named barriers, too.
    __shared__ __align__(16) float parts[3][MOST_THREADS * 8];
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
    for (int part = 0; part < 3; part++) store8(parts[part] + threadIdx.x * 8, total[part]);
    __syncthreads();
#pragma unroll
    for (int part = 0; part < 3; part++)
        for (int at = threadIdx.x; at < c; at += blockDim.x) {
            float sum = 0;
            for (int i = 0; i < g.groups; i++) sum += parts[part][i * g.threads * 8 + at];
            partial[(blockIdx.x * 3LL + part) * c + at] = sum;
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
