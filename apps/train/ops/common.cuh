// What the kernels of the model have in common; norms.cu and kernels.cu follow it. Sums run in float32 and in an order that
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
    __threadfence();
    __syncthreads();
    bool last = __syncthreads_or(threadIdx.x == 0 && atomicInc(counter, blocks - 1) == blocks - 1);
    if (last) __threadfence();
    return last;
}

// add_rows adds up V columns of m rows of floats, width apart, which other blocks have written. V is 1, or 4 where
// the first is aligned to 16 bytes and width is a multiple of 4.
template <int V> SPMD_FN void add_rows(float (&sum)[V], const float *p, int m, int width) {
    enum { DEEP = 16 }; // loads that do not wait for each other
#pragma unroll
    for (int k = 0; k < V; k++) sum[k] = 0;
    for (int left = m; left > 0; left -= DEEP) {
        union { float4 four; float v[V]; } row[DEEP];
#pragma unroll
        for (int r = 0; r < DEEP; r++, p += width) {
            if (r >= left) row[r] = {};
            else if (V == 4) row[r].four = __ldcg((const float4 *)p);
            else row[r].v[0] = __ldcg(p);
        }
#pragma unroll
        for (int r = 0; r < DEEP; r++)
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] += row[r].v[k];
    }
}

// sum_blocks adds up what the blocks of the grid have written to partial(blocks + sets, width), each to its row: the
// last block of every SET of them the rows of the set, the last of these the sets' sums, for which it calls
// add(column, sum). arrived(1 + sets) stays zero.
enum { SET = 16 };

template <int V, typename F> SPMD_FN void sum_blocks_by(float *partial, unsigned *arrived, int width, F add) {
    int sets = (gridDim.x + SET - 1) / SET, set = blockIdx.x / SET, members = min(SET, gridDim.x - set * SET);
    if (!last_of(arrived + 1 + set, members)) return;
    const float *rows = partial + (long long)set * SET * width;
    float *totals = partial + (long long)gridDim.x * width, sum[V];
    for (int j = threadIdx.x * V; j < width; j += blockDim.x * V) {
        add_rows(sum, rows + j, members, width);
#pragma unroll
        for (int k = 0; k < V; k++) totals[(long long)set * width + j + k] = sum[k];
    }
    if (!last_of(arrived, sets)) return;
    for (int j = threadIdx.x * V; j < width; j += blockDim.x * V) {
        add_rows(sum, totals + j, sets, width);
#pragma unroll
        for (int k = 0; k < V; k++) add(j + k, sum[k]);
    }
}

template <typename F> SPMD_FN void sum_blocks(float *partial, unsigned *arrived, int width, F add) {
    if (width % 4 == 0) sum_blocks_by<4>(partial, arrived, width, add);
    else sum_blocks_by<1>(partial, arrived, width, add);
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
