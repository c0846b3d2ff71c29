// The kernels of a modern model on a GPU, behind common.cuh; modern.go and modern.h say what they compute. What a
// model does not have is a null pointer. Rows are of a multiple of 8 numbers.

#define EPSILON 1.1920929e-7f

typedef float vec[8];

// --- norms: a warp has a row in its registers, PIECES times 8 numbers a lane ---

// FOR_PIECES gives a lane its 8 numbers from j on of each piece k of a row of c.
#define FOR_PIECES(k, j, c)                                                                                              \
    _Pragma("unroll") for (int k = 0, j = threadIdx.x % 32 * 8; k < PIECES; k++, j += 256) if (j < (c))

// add_scaled adds s·p to v.
template <typename T> SPMD_FN void add_scaled(vec &v, float s, const T *p) {
    vec a;
    load(a, p);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += s * a[i];
}

SPMD_FN void scale_by(vec &v, float s) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= s;
}

// dot adds a·b to sum.
SPMD_FN void dot(float &sum, const vec &a, const vec &b) {
#pragma unroll
    for (int i = 0; i < 8; i++) sum += a[i] * b[i];
}

// inverse_norm is 1/√(mean of squares + ε) of the sum of n squares, and NaN where that has overflowed: a run that diverges is
// to end.
SPMD_FN float inverse_norm(float squares, int n) { return squares < INF ? inverse_root(squares / n + EPSILON) : NOT_A_NUMBER; }

// back leaves in d the gradient of x from that of x·inv, of whose product with x·inv the mean is given.
SPMD_FN void back(vec &d, const vec &x, float inv, float mean) {
#pragma unroll
    for (int i = 0; i < 8; i++) d[i] = inv * (d[i] - x[i] * inv * mean);
}

// put stores 8 activations at a place. With COPY it also stores their codes, and returns the largest size of these and of top.
template <bool COPY> SPMD_FN float put(act *to, f8e4m3 *codes, long long at, vec &v, float scale, float top) {
    if (!COPY) {
        store(to + at, v);
        return top;
    }
    store_rounded(to + at, v);
    return code(codes + at, v, scale, top);
}

// A token outside the vocabulary makes its row NaN, and so the loss.
template <int PIECES>
__global__ void __launch_bounds__(256) modern_embed(act *out, const int *tokens, const float *wte, int n, int c, int vocab) {
    FOR_ROWS(i, n) {
        int token = tokens[i];
        bool known = 0 <= token && token < vocab;
        const float *row = wte + (known ? (long long)token * c : 0);
        vec v[PIECES];
        float squares = 0;
        FOR_PIECES(k, j, c) {
            load(v[k], row + j);
            dot(squares, v[k], v[k]);
        }
        float inv = known ? inverse_norm(warp_sum(squares), c) : NOT_A_NUMBER;
        FOR_PIECES(k, j, c) {
            scale_by(v[k], inv);
            store(out + i * c + j, v[k]);
        }
    }
}

template <int PIECES>
__global__ void __launch_bounds__(256)
    modern_embed_backward(act *d, const int *tokens, const float *wte, int n, int c, int vocab) {
    FOR_ROWS(i, n) {
        int token = tokens[i];
        bool known = 0 <= token && token < vocab;
        const float *row = wte + (known ? (long long)token * c : 0);
        vec v[PIECES], g[PIECES];
        float squares = 0, mean = 0;
        FOR_PIECES(k, j, c) {
            load(v[k], row + j);
            load(g[k], d + i * c + j);
            dot(squares, v[k], v[k]);
            dot(mean, v[k], g[k]);
        }
        float inv = inverse_norm(warp_sum(squares), c);
        mean = warp_sum(mean) * inv / c;
        FOR_PIECES(k, j, c) {
            back(g[k], v[k], inv, mean);
            store(d + i * c + j, g[k]);
        }
    }
}

// With COPY codes receives out times *up, in 8-bit floats.
template <int PIECES, bool COPY>
__global__ void __launch_bounds__(256)
    modern_norm(act *out, act *sum, const act *x, const act *kept, const float *skip, int n, int c, f8e4m3 *codes, const float *up,
                float *peak) {
    float s = kept ? *skip : 0, times = COPY ? *up : 0, largest = 0;
    FOR_ROWS(i, n) {
        vec v[PIECES];
        float squares = 0;
        FOR_PIECES(k, j, c) {
            long long at = i * c + j;
            load(v[k], x + at);
            if (kept) {
                add_scaled(v[k], s, kept + at);
                store(sum + at, v[k]);
#pragma unroll
                for (int e = 0; e < 8; e++) v[k][e] = rounded(v[k][e]);
            }
            dot(squares, v[k], v[k]);
        }
        float inv = inverse_norm(warp_sum(squares), c);
        FOR_PIECES(k, j, c) {
            scale_by(v[k], inv);
            largest = put<COPY>(out, codes, i * c + j, v[k], times, largest);
        }
    }
    if (COPY) raise(peak, largest);
}

// Of skip each block leaves its sum in a row of partial(blocks + sets, 1). normBackwardBlocks in kernels.go has as many blocks to
// a multiprocessor as registers allow here: all then run at once.
// With COPY codes receives d times *up, in 8-bit floats.
template <int PIECES, bool COPY>
__global__ void __launch_bounds__(256, PIECES == 1 ? 3 : PIECES < 8 ? 2 : 1)
    modern_norm_backward(act *d, act *dkept, float *dskip, float *partial, unsigned *arrived, const act *dnorm, const act *x,
                         const act *kept, const act *above, const float *skip, int n, int c, int add, int accumulate, int twice,
                         f8e4m3 *codes, const float *up, float *peak) {
    float s = kept ? *skip : 0, of_kept = 0, times = COPY ? *up : 0, largest = 0;
    FOR_ROWS(i, n) {
        vec v[PIECES], g[PIECES];
        packed8 stream[PIECES]; // is on its way while the sums are made
        float squares = 0, mean = 0;
        FOR_PIECES(k, j, c) {
            if (add) stream[k] = fetch8(d + i * c + j);
            load(v[k], x + i * c + j);
            load(g[k], dnorm + i * c + j);
            dot(squares, v[k], v[k]);
            dot(mean, v[k], g[k]);
        }
        float inv = inverse_norm(warp_sum(squares), c);
        mean = warp_sum(mean) * inv / c;
        FOR_PIECES(k, j, c) {
            long long at = i * c + j;
            packed8 of[2]; // are on their way before the first is used
            if (kept) of[0] = fetch8(kept + at);
            if (above) of[1] = fetch8(above + at);
            back(g[k], v[k], inv, mean);
            vec o;
            if (add) {
                unpack8(o, stream[k]);
#pragma unroll
                for (int e = 0; e < 8; e++) g[k][e] += o[e];
            }
            if (kept) {
                unpack8(o, of[0]);
                dot(of_kept, g[k], o);
#pragma unroll
                for (int e = 0; e < 8; e++) o[e] = s * g[k][e];
                store(dkept + at, o);
                if (twice)
#pragma unroll
                    for (int e = 0; e < 8; e++) g[k][e] += o[e];
            }
            if (above) {
                unpack8(o, of[1]);
#pragma unroll
                for (int e = 0; e < 8; e++) g[k][e] += o[e];
            }
            largest = put<COPY>(d, codes, at, g[k], times, largest);
        }
    }
    if (COPY) raise(peak, largest);
    if (!kept) return;
    of_kept = block_sum(of_kept);
    if (threadIdx.x == 0) partial[blockIdx.x] = of_kept;
    sum_blocks(partial, arrived, 1, [=](int, float sum) { *dskip = accumulate ? *dskip + sum : sum; });
}

// --- heads ---

// Of each row that its block has, a thread has V numbers of both halves of a head: a query, a key or a value. Some lanes have
// the head; where a row needs more than PART threads, some blocks have it, each a part.
enum { PART = 384, V = 4 };

struct halves { float a[V], b[V]; };

struct head { int which, j, at, row, rows; }; // which is 0 for a query, 1 for a key, 2 for a value, 3 for none; at: in a row

SPMD_FN head head_of(int lanes, int heads, int size, int parts) {
    head h;
    int thread = blockIdx.x % parts * blockDim.x + threadIdx.x, unit = thread / lanes;
    h.j = thread % lanes * V;
    h.at = unit * size + h.j;
    h.which = unit < 3 * heads && h.j < size / 2 ? unit / heads : 3;
    h.row = blockIdx.x / parts;
    h.rows = gridDim.x / parts;
    return h;
}

// lanes_sum is the sum over the lanes of a head.
SPMD_FN float lanes_sum(float v, int lanes) {
    for (int o = lanes / 2; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

template <typename T> SPMD_FN void load_part(float (&v)[V], const T *p) {
    float4 x = load4(p);
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}
template <typename T> SPMD_FN void store_part(T *p, const float (&v)[V]) { store4(p, make_float4(v[0], v[1], v[2], v[3])); }

template <typename T> SPMD_FN void load_halves(halves &v, const T *p, int half) {
    load_part(v.a, p);
    load_part(v.b, p + half);
}

template <typename T> SPMD_FN void store_halves(T *p, const halves &v, int half) {
    store_part(p, v.a);
    store_part(p + half, v.b);
}

SPMD_FN void scale_by(halves &v, float s) {
#pragma unroll
    for (int k = 0; k < V; k++) v.a[k] *= s, v.b[k] *= s;
}

SPMD_FN void dot(float &sum, const halves &v, const halves &w) {
#pragma unroll
    for (int k = 0; k < V; k++) sum += v.a[k] * w.a[k] + v.b[k] * w.b[k];
}

// load_turn gives the cosines and sines of a position's pairs: those behind the turned ones stay.
SPMD_FN void load_turn(halves &w, const float2 *turn, int j, int turned) {
#pragma unroll
    for (int k = 0; k < V; k += 2) {
        float4 two = j + k < turned ? *(const float4 *)(turn + j + k) : make_float4(1, 0, 1, 0);
        w.a[k] = two.x, w.b[k] = two.y, w.a[k + 1] = two.z, w.b[k + 1] = two.w;
    }
}

// rotate turns the pairs of v by the angles of a position, or back.
SPMD_FN void rotate(halves &v, const halves &w, float back) {
#pragma unroll
    for (int k = 0; k < V; k++) {
        float p = v.a[k], q = v.b[k];
        v.a[k] = p * w.a[k] + back * q * w.b[k];
        v.b[k] = q * w.a[k] - back * p * w.b[k];
    }
}

extern "C" __global__ void __launch_bounds__(PART)
    modern_heads(act *out, const act *qkv, const int *tokens, const float *table, const float *mix, const float2 *turn, int n, int t,
                 int vocab, int heads, int size, int lanes, int parts, int normed, float scale) {
    int half = size / 2, turned = size / 4, c = heads * size;
    float own = table ? mix[0] : 1, other = table ? mix[1] : 0;
    head h = head_of(lanes, heads, size, parts);
    for (int i = h.row; i < n; i += h.rows) {
        long long at = 3LL * i * c + h.at;
        halves v = {}, w = {}; // w: the turn, or what is mixed into a value
        if (h.which < 3) load_halves(v, qkv + at, half);
        if (h.which < 2) load_turn(w, turn + i % t * turned, h.j, turned);
        if (h.which == 2 && table) {
            int token = tokens[i];
            bool known = 0 <= token && token < vocab;
            load_halves(w, table + (known ? (long long)token * c : 0) + h.at - 2 * c, half);
            if (!known) w.a[0] = w.b[0] = NOT_A_NUMBER;
        }
        float squares = 0;
        if (normed) {
            dot(squares, v, v);
            squares = lanes_sum(squares, lanes);
        }
        if (h.which < 2) {
            float f = h.which == 0 ? scale : 1;
            scale_by(v, normed ? f * inverse_norm(squares, size) : f);
            rotate(v, w, 1);
        } else if (table) {
#pragma unroll
            for (int k = 0; k < V; k++) {
                v.a[k] = own * v.a[k] + other * w.a[k];
                v.b[k] = own * v.b[k] + other * w.b[k];
            }
        }
        if (h.which < 3) store_halves(out + at, v, half);
    }
}

// put_halves is put for both halves of a head.
template <bool COPY> SPMD_FN float put_halves(act *to, f8e4m3 *codes, long long at, const halves &v, int half, float scale, float top) {
    store_halves(to + at, v, half);
    if (!COPY) return top;
    float s[2 * V];
#pragma unroll
    for (int k = 0; k < 2 * V; k++) {
        float x = rounded(k < V ? v.a[k] : v.b[k - V]);
        top = fmaxf(top, fabsf(x));
        s[k] = x * scale;
    }
    struct __align__(8) { f8e4m3 x[8]; } u;
    store8(u.x, s);
    *(uint32_t *)(codes + at) = *(uint32_t *)u.x;
    *(uint32_t *)(codes + at + half) = *(uint32_t *)(u.x + 4);
    return top;
}

// Of the numbers mix each block leaves its sums in a row of partial(blocks + sets, 2). With COPY codes receives d times *up, in
// 8-bit floats, also where d stays.
template <bool COPY>
__global__ void __launch_bounds__(PART, 3)
    modern_heads_backward(act *d, act *dtable, float *dmix, float *partial, unsigned *arrived, const act *qkv, const int *tokens,
                          const float *table, const float *mix, const float2 *turn, int n, int t, int vocab, int heads, int size,
                          int lanes, int parts, int normed, float scale, int fresh, int accumulate, f8e4m3 *codes,
                          const float *up, float *peak) {
    float times = COPY ? *up : 0, largest = 0;
    int half = size / 2, turned = size / 4, c = heads * size;
    float own = table ? mix[0] : 1, other = table ? mix[1] : 0, of_own = 0, of_other = 0;
    head h = head_of(lanes, heads, size, parts);
    bool turns = h.which < 2, mixes = h.which == 2 && table;
    for (int i = h.row; i < n; i += h.rows) {
        long long at = 3LL * i * c + h.at;
        long long to = (long long)i * c + h.at - 2 * c; // of dtable
        halves v = {}, g = {}, w = {};
        if (turns || mixes) load_halves(v, qkv + at, half);
        if (COPY ? h.which < 3 : turns || mixes) load_halves(g, d + at, half);
        if (turns) load_turn(w, turn + i % t * turned, h.j, turned);
        if (mixes) {
            int token = tokens[i];
            bool known = 0 <= token && token < vocab;
            load_halves(w, table + (known ? (long long)token * c : 0) + h.at - 2 * c, half);
        }
        if (turns) {
            scale_by(g, h.which == 0 ? scale : 1);
            rotate(g, w, -1);
        }
        if (normed) {
            float squares = 0, mean = 0;
            dot(squares, v, v);
            dot(mean, v, g);
            float inv = inverse_norm(lanes_sum(squares, lanes), size);
            mean = lanes_sum(mean, lanes) * inv / size;
            if (turns)
#pragma unroll
                for (int k = 0; k < V; k++) {
                    g.a[k] = inv * (g.a[k] - v.a[k] * inv * mean);
                    g.b[k] = inv * (g.b[k] - v.b[k] * inv * mean);
                }
        }
        if (mixes) {
            dot(of_own, g, v);
            dot(of_other, g, w);
            if (fresh) v = {};
            else load_halves(v, dtable + to, half);
#pragma unroll
            for (int k = 0; k < V; k++) v.a[k] += other * g.a[k], v.b[k] += other * g.b[k];
            store_halves(dtable + to, v, half);
            scale_by(g, own);
        }
        if (COPY ? h.which < 3 : turns || mixes) largest = put_halves<COPY>(d, codes, at, g, half, times, largest);
    }
    if (COPY) raise(peak, largest);
    if (!table) return;
    of_own = block_sum(of_own);
    of_other = block_sum(of_other);
    if (threadIdx.x == 0) {
        partial[2 * blockIdx.x] = of_own;
        partial[2 * blockIdx.x + 1] = of_other;
    }
    sum_blocks(partial, arrived, 2, [=](int column, float sum) { dmix[column] = accumulate ? dmix[column] + sum : sum; });
}

// Of one sequence a block has a head of one of n tokens, its warps every eighth key.
extern "C" __global__ void __launch_bounds__(256)
    modern_attend(act *out, const act *qkv, int before, int n, int heads, int size, int window) {
    __shared__ float tops[8], sums[8], parts[8][256];
    int h = blockIdx.x % heads, i = blockIdx.x / heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int at = before + i, begin = window ? max(0, at / 128 * 128 - window) : 0;
    long long c = heads * size;
    const act *head = qkv + h * size + 8 * lane;
    bool mine = 8 * lane < size;
    vec q = {0}, sum_of = {0};
    if (mine) load(q, head + 3 * c * at);
    scale_by(q, 1 / sqrtf(size));
    float top = -INF, sum = 0;
    for (int j = begin + warp; j <= at; j += 8) {
        vec x = {0};
        float s = 0;
        if (mine) load(x, head + 3 * c * j + c);
        dot(s, q, x);
        s = warp_sum(s);
        float high = max(top, s), keep = expf(top - high), p = expf(s - high);
        top = high;
        sum = sum * keep + p;
        if (mine) load(x, head + 3 * c * j + 2 * c);
        scale_by(sum_of, keep);
#pragma unroll
        for (int e = 0; e < 8; e++) sum_of[e] += p * x[e];
    }
    if (lane == 0) {
        tops[warp] = top;
        sums[warp] = sum;
    }
#pragma unroll
    for (int e = 0; e < 8; e++) parts[warp][8 * lane + e] = sum_of[e];
    __syncthreads();
    float high = tops[0], total = 0, value = 0;
    for (int w = 1; w < 8; w++) high = max(high, tops[w]);
    for (int w = 0; w < 8; w++) {
        float share = expf(tops[w] - high); // 0 of a warp without keys
        total += sums[w] * share;
        value += parts[w][threadIdx.x] * share;
    }
    if (threadIdx.x < size) out[c * i + h * size + threadIdx.x] = from_float<act>(value / total);
}
