// The kernels of the model on a GPU but LayerNorm, behind common.cuh; kernels.go says what they compute. It compiles this
// once for each type of activations, ACT.

// --- embeddings ---

// A token outside the vocabulary reads nothing: its row becomes NaN, and so the loss. wte has the rows of own tokens from
// first on: others add 0, and positions only where that is said.
template <int V>
SPMD_FN void encoder_forward_of(act *out, const int *tokens, const float *wte, const float *wpe, int n, int t, int c, int vocab,
                                int first, int own, int positions) {
    FOR_ROWS(i, n) {
        int token = tokens[i];
        bool known = 0 <= token && token < vocab, mine = known && token >= first && token - first < own;
        const float *a = wte + (mine ? (long long)(token - first) * c : 0), *b = wpe + i % t * c;
        FOR_COLUMNS(j, c) {
            float x[V] = {0}, y[V] = {0};
            if (mine) load(x, a + j);
            if (positions) load(y, b + j);
            for (int k = 0; k < V; k++) x[k] = known ? x[k] + y[k] : NOT_A_NUMBER;
            store(out + i * c + j, x);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    encoder_forward(act *out, const int *tokens, const float *wte, const float *wpe, int n, int t, int c, int vocab, int first,
                    int own, int positions) {
    if (c % 8 == 0) encoder_forward_of<8>(out, tokens, wte, wpe, n, t, c, vocab, first, own, positions);
    else encoder_forward_of<1>(out, tokens, wte, wpe, n, t, c, vocab, first, own, positions);
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

// The parts of the list of rows by token, which sorted.go makes.
struct __align__(16) token_part { int token, first, end, split; }; // its rows in order; split is -1 where it is the only part
struct __align__(16) token_split { int row, first, parts, unused; }; // row of partial, its first part, how many

// A warp takes 32·V columns of a position, or of a part of a token's rows. Parts of the same token go to rows of
// partial, which the last warp to arrive adds up. sorted is a plan of sorted.go. dwte has the rows of own tokens from
// first on.
template <int V>
SPMD_FN void encoder_backward_of(float *dwte, float *dwpe, float *partial, unsigned *arrived, const act *dout, const int *sorted,
                                 int n, int t, int c, int positions, int vocab, int most_parts, int most_split, int first, int own,
                                 int accumulate) {
    const token_part *parts = (const token_part *)(sorted + 4);
    const token_split *splits = (const token_split *)(parts + most_parts);
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
        token_part part = parts[item - positions];
        if (part.token < 0 || part.token >= vocab || part.token < first || part.token - first >= own) continue;
        float *to = dwte + (long long)(part.token - first) * c + j;
        if (part.split < 0) {
            if (!mine) continue;
            load(s, to);
            add_order(s, dout + j, order, part.first, part.end, c);
            store(to, s);
            continue;
        }
        token_split split = splits[part.split];
        float *rows = partial + (long long)split.row * c + j;
        if (mine) {
            add_order(s, dout + j, order, part.first, part.end, c);
            store(rows + (long long)(item - positions - split.first) * c, s);
        }
        __threadfence();
        __syncwarp();
        bool last = false;
        if (lane == 0) last = atomicInc(arrived + part.split * chunks + chunk, split.parts - 1) == split.parts - 1;
        if (!__shfl_sync(0xffffffffu, last, 0)) continue;
        __threadfence();
        if (!mine) continue;
#pragma unroll 1
        for (int k = 0; k < V; k++) {
            float sum[1];
            add_rows(sum, rows + k, split.parts, c);
            to[k] += sum[0];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    encoder_backward(float *dwte, float *dwpe, float *partial, unsigned *arrived, const act *dout, const int *sorted, int n, int t,
                     int c, int positions, int vocab, int most_parts, int most_split, int first, int own, int accumulate) {
    if (c % 8 == 0) encoder_backward_of<8>(dwte, dwpe, partial, arrived, dout, sorted, n, t, c, positions, vocab, most_parts, most_split,
                                           first, own, accumulate);
    else encoder_backward_of<1>(dwte, dwpe, partial, arrived, dout, sorted, n, t, c, positions, vocab, most_parts, most_split,
                                           first, own, accumulate);
}

// --- loss ---

// gradient writes that of a block's row i in place of its logits. target is its column of the vp, if it has one. With COPY
// codes receives the gradient times *up, in 8-bit floats.
template <bool COPY, typename F>
SPMD_FN void gradient(act *logits, long long i, int target, int v, int vp, float highest, float sum, float scale, F chunk,
                      f8e5m2 *codes, const float *up, float *peak) {
    enum { E = LOGITS };
    uint4 *row = (uint4 *)(logits + i * vp);
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

// A block has a row, in chunks of 16 bytes, of which the first held fit into its shared memory; a thread has the same
// chunks from beginning to end. The last rows go first: a product that has just written them has left them in the cache.
// A target outside the vocabulary makes the loss NaN.
template <bool COPY>
SPMD_FN void classify(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad,
                      f8e5m2 *codes, const float *up, float *peak) {
    long long i = n - 1 - blockIdx.x;
    const uint4 *row = (const uint4 *)(logits + i * vp);
    for (int q = threadIdx.x; q < held; q += blockDim.x) copy_async(copy + q, row + q);
    copy_commit();
    int target = targets[i];
    bool known = 0 <= target && target < v;
    float at = known ? to_float(logits[i * vp + target]) : NOT_A_NUMBER;
    auto chunk = [=](float (&x)[LOGITS], int q) { unpack(x, q < held ? copy[q] : row[q], q, v); };
    copy_wait<0>();
    float highest, sum;
    sums_of_row(highest, sum, v, chunk); // after which every thread has read the target's logit
    if (threadIdx.x == 0) losses[i] = logf(sum) + highest - at;
    if (grad) gradient<COPY>(logits, i, target, v, vp, highest, sum, scale, chunk, codes, up, peak);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    classifier(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad) {
    classify<false>(losses, logits, targets, n, v, vp, held, scale, grad, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    classifier_8(float *losses, act *logits, const int *targets, int n, int v, int vp, int held, float scale, int grad,
                 f8e5m2 *codes, const float *up, float *peak) {
    classify<true>(losses, logits, targets, n, v, vp, held, scale, grad, codes, up, peak);
}

// Where ranks divide the vocabulary each has the columns of v tokens from first on. logit_sums leaves three numbers a row
// of these, logit_parts: the largest, the sum of e^(x-largest) and the target's; what there is none of is -INF.
struct logit_part { float highest, sum, at; };

extern "C" __global__ void __launch_bounds__(512, 2)
    logit_sums(logit_part *sums, const act *logits, const int *targets, int n, int v, int vp, int first) {
    long long i = n - 1 - blockIdx.x;
    const uint4 *row = (const uint4 *)(logits + i * vp);
    float highest, sum;
    sums_of_row(highest, sum, v, [=](float (&x)[LOGITS], int q) { unpack(x, row[q], q, v); });
    if (threadIdx.x > 0) return;
    int target = targets[i] - first;
    sums[i] = {highest, sum, 0 <= target && target < v ? to_float(logits[i * vp + target]) : -INF};
}

// all(parts,n) is what all ranks have, in their order: each computes the same from it.
extern "C" __global__ void __launch_bounds__(512, 2)
    classifier_of_parts(float *losses, act *logits, const int *targets, const logit_part *all, int parts, int n, int v, int vp,
                        int first, int vocab, float scale, int grad) {
    long long i = n - 1 - blockIdx.x;
    const uint4 *row = (const uint4 *)(logits + i * vp);
    float highest = -INF, sum = 0, at = -INF;
    for (int r = 0; r < parts; r++) {
        logit_part p = all[(long long)r * n + i];
        highest = max(highest, p.highest);
        at = max(at, p.at);
    }
    for (int r = 0; r < parts; r++) {
        logit_part p = all[(long long)r * n + i];
        if (p.sum != 0) sum += p.sum * exp_from(p.highest, highest); // 0 is a part without tokens
    }
    int target = targets[i];
    bool known = 0 <= target && target < vocab;
    if (threadIdx.x == 0) losses[i] = logf(sum) + highest - (known ? at : NOT_A_NUMBER);
    if (!grad) return;
    auto chunk = [=](float (&x)[LOGITS], int q) { unpack(x, row[q], q, v); };
    gradient<false>(logits, i, known ? target - first : -1, v, vp, highest, sum, scale, chunk, 0, 0, 0);
}
