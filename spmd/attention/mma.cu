// Causal attention on tensor cores, for compute capability 8.0 and above: bfloat16 in and out,
// float32 sums. The wrappers at the end are the kernels; mma.go launches them.
//
// qkv and dqkv are (B,T,3,heads,hs), out and dout (B,T,heads,hs), lse (B,heads,T). hs is a multiple
// of 8 up to D; all rows are aligned to 16 bytes. window is as in window.cuh.
//
// Each warp owns MT·16 rows of a score matrix and holds its sums in registers. So one thread adds
// up every element in one order: equal inputs give equal bits. Tiles and their products are in
// mma.cuh.
//
// Sources: Dao, FlashAttention-2 (2023), algorithms 1 and 2; PTX ISA, mma.m16n8k16 and ldmatrix.

#if __CUDA_ARCH__ < 800

// A program is compiled for older GPUs, too, which take other kernels.
extern "C" __global__ void mma_forward_64() {}
extern "C" __global__ void mma_forward_128() {}
extern "C" __global__ void mma_backward_queries_64() {}
extern "C" __global__ void mma_backward_queries_128() {}
extern "C" __global__ void mma_backward_keys_64() {}
extern "C" __global__ void mma_backward_keys_128() {}

#else

// forward: a block has WARPS·MT·16 queries and goes over the keys and values in tiles of N.
template <int D, int MT, int WARPS, int N, bool KEEP>
SPMD_FN void forward(bf16 *out, float *lse, const bf16 *qkv, int T, int heads, int hs, float scale, int window) {
	const int M = WARPS * MT * 16, threads = WARPS * 32;
	extern __shared__ __align__(256) char shared[];
	const int stage = 4 * N * D; // bytes of a tile of keys and one of values
	uint32_t queries = shared_address(shared), pairs = queries + 2 * M * D;

	Place p((T + M - 1) / M, true, T, heads, hs);
	const bf16 *q = qkv + p.in, *k = q + p.width, *v = k + p.width;
	// begin is even
	int first = p.tile * M, tiles = (min(first + M, T) + N - 1) / N, begin = first_key(first, window) / N;
	load_tile<D, M, threads>(queries, q + first * p.stride, p.stride, T - first, hs);
	load_tile<D, N, threads>(pairs, k + begin * N * p.stride, p.stride, T - begin * N, hs);
	load_tile<D, N, threads>(pairs + stage / 2, v + begin * N * p.stride, p.stride, T - begin * N, hs);
	copy_commit();

	int warp = warp_index(), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	int row0 = first + warp * MT * 16; // the warp's first
	uint32_t own = queries + warp * MT * 32 * D, across = lane_across<D>(), along = lane_along<D>();
	copy_wait<0>();
	__syncthreads();
	Operand<D, MT, KEEP> a(own);

	// Exponents are relative to top, in powers of 2: near the largest score so far.
	float o[MT][D / 8][4], top[MT][2], sum[MT][2];
	clear(o);
#pragma unroll
	for (int m = 0; m < MT; m++) {
		top[m][0] = top[m][1] = __int_as_float(0xff800000);
		sum[m][0] = sum[m][1] = 0;
	}
	scale *= log2e;
	for (int j = begin; j < tiles; j++) {
		if (j > begin) {
			copy_wait<0>();
			__syncthreads(); // tile j is here, tile j - 1 is not read any more
		}
		if (j + 1 < tiles) {
			int next = (j + 1) * N;
			uint32_t to = pairs + (j + 1) % 2 * stage;
			load_tile<D, N, threads>(to, k + next * p.stride, p.stride, T - next, hs);
			load_tile<D, N, threads>(to + stage / 2, v + next * p.stride, p.stride, T - next, hs);
			copy_commit();
		}
		int column0 = j * N;
		if (column0 >= row0 + MT * 16) {
			continue; // all of it lies in the future of the warp's rows
		}
		uint32_t keys = pairs + j % 2 * stage;
		float s[MT][N / 8][4];
		products<D, MT, N>(s, a, keys + across);
		if (column0 + N > row0 + 1) {
			mask(s, row0, column0, false);
		}
		// The sums are scaled anew only when a score exceeds top by 8 powers of 2. That costs no
		// precision: a row's sums are all relative to one top, the same in its quad of lanes.
		float most[MT][2];
		bool exceeds = false;
#pragma unroll
		for (int m = 0; m < MT; m++) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				float x = s[m][0][2 * h];
#pragma unroll
				for (int n = 0; n < N / 8; n++) {
					x = fmaxf(x, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
				}
				most[m][h] = x * scale;
				exceeds |= most[m][h] > top[m][h] + 8;
			}
		}
		if (__any_sync(0xffffffffu, exceeds)) {
#pragma unroll
			for (int m = 0; m < MT; m++) {
#pragma unroll
				for (int h = 0; h < 2; h++) {
					float next = fmaxf(top[m][h], most[m][h]);
					next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 1));
					next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 2));
					float shrink = power2(top[m][h] - next);
					top[m][h] = next;
					sum[m][h] *= shrink;
#pragma unroll
					for (int n = 0; n < D / 8; n++) {
						o[m][n][2 * h] *= shrink;
						o[m][n][2 * h + 1] *= shrink;
					}
				}
			}
		}
#pragma unroll
		for (int m = 0; m < MT; m++) {
#pragma unroll
			for (int n = 0; n < N / 8; n++) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					s[m][n][i] = power2(fmaf(s[m][n][i], scale, -top[m][i / 2]));
					sum[m][i / 2] += s[m][n][i];
				}
			}
		}
		add_weighted<D, MT, N>(o, s, keys + stage / 2 + along);
	}
	float inverse[MT][2];
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float x = sum[m][h];
			x += __shfl_xor_sync(0xffffffffu, x, 1);
			x += __shfl_xor_sync(0xffffffffu, x, 2);
			inverse[m][h] = 1 / x;
			int row = row0 + m * 16 + h * 8 + g;
			if (t == 0 && row < T) {
				lse[(long long)p.head * T + row] = (top[m][h] + log2f(x)) * ln2;
			}
		}
	}
	store_rows<D, MT>(out + p.out + row0 * p.width, p.width, T - row0, hs, shared + warp * MT * 32 * D, o, inverse);
}

// QueryGradients has a warp's sums over the keys of its queries in the backward pass.
template <int D, int MT> struct QueryGradients {
	float dq[MT][D / 8][4], base[MT][2], delta[MT][2];
	float scale; // of scores, in powers of 2

	// add takes in C keys, from column0 on; some are masked only if MASKED.
	template <int C, bool MASKED, typename A>
	__device__ __forceinline__ void add(const A &q, const A &d, uint32_t keys, uint32_t values, int row0, int column0) {
		float s[MT][C / 8][4], e[MT][C / 8][4];
		products<D, MT, C>(s, q, keys + lane_across<D>());
		products<D, MT, C>(e, d, values + lane_across<D>());
		if (MASKED) {
			mask(s, row0, column0, false);
		}
#pragma unroll
		for (int m = 0; m < MT; m++) {
#pragma unroll
			for (int n = 0; n < C / 8; n++) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					e[m][n][i] = power2(fmaf(s[m][n][i], scale, -base[m][i / 2])) * (e[m][n][i] - delta[m][i / 2]);
				}
			}
		}
		add_weighted<D, MT, C>(dq, e, keys + lane_along<D>());
	}
};

// backward_queries computes dq as forward does out. It leaves in rows(B,heads,T,2) what
// backward_keys needs of each query: lse in powers of 2, and delta, the sum of dout·out. C columns
// of scores are in registers at a time.
template <int D, int MT, int WARPS, int N, int C, bool KEEP>
SPMD_FN void backward_queries(bf16 *dqkv, float2 *rows, const bf16 *dout, const bf16 *out, const float *lse,
	const bf16 *qkv, int T, int heads, int hs, float scale, int window) {
	const int M = WARPS * MT * 16, threads = WARPS * 32;
	extern __shared__ __align__(256) char shared[];
	const int stage = 4 * N * D; // bytes of a tile of keys and one of values
	uint32_t queries = shared_address(shared), gradients = queries + 2 * M * D, pairs = gradients + 2 * M * D;

	Place p((T + M - 1) / M, true, T, heads, hs);
	const bf16 *q = qkv + p.in, *k = q + p.width, *v = k + p.width;
	// begin is even
	int first = p.tile * M, tiles = (min(first + M, T) + N - 1) / N, begin = first_key(first, window) / N;
	load_tile<D, M, threads>(queries, q + first * p.stride, p.stride, T - first, hs);
	load_tile<D, M, threads>(gradients, dout + p.out + first * p.width, p.width, T - first, hs);
	load_tile<D, N, threads>(pairs, k + begin * N * p.stride, p.stride, T - begin * N, hs);
	load_tile<D, N, threads>(pairs + stage / 2, v + begin * N * p.stride, p.stride, T - begin * N, hs);
	copy_commit();

	int warp = warp_index(), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	int row0 = first + warp * MT * 16; // the warp's first
	uint32_t own = warp * MT * 32 * D;
	copy_wait<0>();
	__syncthreads();

	// A quad of lanes sums a row's delta, each lane every fourth chunk.
	QueryGradients<D, MT> x;
	x.scale = scale * log2e;
	clear(x.dq);
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			int r = m * 16 + h * 8 + g, row = row0 + r;
			float sum = 0;
			if (row < T) {
				const bf16 *o = out + p.out + row * p.width;
#pragma unroll
				for (int n = 0; n < D / 8; n += 4) {
					if ((n + t) * 8 < hs) {
						float a[8], b[8];
						load8(a, o + (n + t) * 8);
						load8(b, (const bf16 *)(shared + 2 * M * D + own + chunk_at<D>(r, n + t)));
#pragma unroll
						for (int i = 0; i < 8; i++) {
							sum = fmaf(a[i], b[i], sum);
						}
					}
				}
			}
			sum += __shfl_xor_sync(0xffffffffu, sum, 1);
			sum += __shfl_xor_sync(0xffffffffu, sum, 2);
			x.delta[m][h] = sum;
			x.base[m][h] = 0;
			if (row < T) {
				long long at = (long long)p.head * T + row;
				x.base[m][h] = lse[at] * log2e;
				if (t == 0) {
					rows[at] = make_float2(x.base[m][h], sum);
				}
			}
		}
	}

	Operand<D, MT, KEEP> aq(queries + own), ad(gradients + own);
	for (int j = begin; j < tiles; j++) {
		if (j > begin) {
			copy_wait<0>();
			__syncthreads(); // tile j is here, tile j - 1 is not read any more
		}
		if (j + 1 < tiles) {
			int next = (j + 1) * N;
			uint32_t to = pairs + (j + 1) % 2 * stage;
			load_tile<D, N, threads>(to, k + next * p.stride, p.stride, T - next, hs);
			load_tile<D, N, threads>(to + stage / 2, v + next * p.stride, p.stride, T - next, hs);
			copy_commit();
		}
		uint32_t pair = pairs + j % 2 * stage;
		if ((j + 1) * N <= row0 + 1) {
#pragma unroll
			for (int c = 0; c < N; c += C) {
				x.template add<C, false>(aq, ad, pair + c * 2 * D, pair + stage / 2 + c * 2 * D, row0, j * N + c);
			}
		} else {
#pragma unroll 1
			for (int c = 0; c < N && j * N + c < row0 + MT * 16; c += C) {
				x.template add<C, true>(aq, ad, pair + c * 2 * D, pair + stage / 2 + c * 2 * D, row0, j * N + c);
			}
		}
	}
	float factor[MT][2];
#pragma unroll
	for (int m = 0; m < MT; m++) {
		factor[m][0] = factor[m][1] = scale;
	}
	store_rows<D, MT>(dqkv + p.in + row0 * p.stride, p.stride, T - row0, hs, shared + own, x.dq, factor);
}

// KeyGradients has a warp's sums over the queries of its keys.
template <int D, int MT> struct KeyGradients {
	float dk[MT][D / 8][4], dv[MT][D / 8][4];
	float scale; // of scores, in powers of 2

	// add takes in C queries, from column0 on, and their gradients. of has the results of
	// backward_queries for two queries each. Some are masked only if MASKED.
	template <int C, bool MASKED, typename A>
	__device__ __forceinline__ void add(const A &k, const A &v, uint32_t queries, uint32_t gradients, const float4 *of,
		int row0, int column0) {
		float s[MT][C / 8][4], e[MT][C / 8][4];
		int t = threadIdx.x % 4;
		products<D, MT, C>(s, k, queries + lane_across<D>());
		if (MASKED) {
			mask(s, row0, column0, true);
		}
#pragma unroll
		for (int n = 0; n < C / 8; n++) {
			float4 x = of[n * 4 + t];
#pragma unroll
			for (int m = 0; m < MT; m++) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					s[m][n][i] = power2(fmaf(s[m][n][i], scale, i % 2 ? -x.z : -x.x));
				}
			}
		}
		add_weighted<D, MT, C>(dv, s, gradients + lane_along<D>());
		products<D, MT, C>(e, v, gradients + lane_across<D>());
#pragma unroll
		for (int n = 0; n < C / 8; n++) {
			float4 x = of[n * 4 + t];
#pragma unroll
			for (int m = 0; m < MT; m++) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					e[m][n][i] = s[m][n][i] * (e[m][n][i] - (i % 2 ? x.w : x.y));
				}
			}
		}
		add_weighted<D, MT, C>(dk, e, queries + lane_along<D>());
	}
};

// backward_keys: a block has WARPS·MT·16 keys. It goes over the queries from the first that sees
// them, in tiles of N, with transposed scores: C columns, which are queries, are in registers at a
// time.
template <int D, int MT, int WARPS, int N, int C, bool KEEP>
SPMD_FN void backward_keys(bf16 *dqkv, const float2 *rows, const bf16 *dout, const bf16 *qkv, int T, int heads,
	int hs, float scale, int window) {
	const int M = WARPS * MT * 16, threads = WARPS * 32;
	static_assert(N <= threads, "a thread for each query of a tile");
	extern __shared__ __align__(256) char shared[];
	const int half = 2 * N * D, stage = 2 * half; // bytes of a tile of queries, and with one of gradients
	uint32_t keys = shared_address(shared), values = keys + 2 * M * D, pairs = values + 2 * M * D;
	const int columns = 4 * M * D + 2 * stage; // float2 of each query of two tiles

	Place p((T + M - 1) / M, false, T, heads, hs);
	const bf16 *q = qkv + p.in, *k = q + p.width, *v = k + p.width, *d = dout + p.out;
	const float2 *r = rows + (long long)p.head * T;
	int first = p.tile * M, j = first / N, tiles = (end_of_queries(first, window, T) + N - 1) / N;
	auto load = [&](int j) {
		int row = j * N;
		uint32_t to = pairs + j % 2 * stage;
		load_tile<D, N, threads>(to, q + row * p.stride, p.stride, T - row, hs);
		load_tile<D, N, threads>(to + half, d + row * p.width, p.width, T - row, hs);
		if (threadIdx.x < N) {
			copy_async<8>(keys + columns + (j % 2 * N + threadIdx.x) * 8, r + row + threadIdx.x,
				row + threadIdx.x >= T);
		}
		copy_commit();
	};
	load_tile<D, M, threads>(keys, k + first * p.stride, p.stride, T - first, hs);
	load_tile<D, M, threads>(values, v + first * p.stride, p.stride, T - first, hs);
	load(j);

	int warp = warp_index(), row0 = first + warp * MT * 16; // the warp's first
	uint32_t own = warp * MT * 32 * D;
	copy_wait<0>();
	__syncthreads();
	Operand<D, MT, KEEP> ak(keys + own), av(values + own);

	KeyGradients<D, MT> x;
	x.scale = scale * log2e;
	clear(x.dk);
	clear(x.dv);
	for (int start = j; j < tiles; j++) {
		if (j > start) {
			copy_wait<0>();
			__syncthreads(); // tile j is here, tile j - 1 is not read any more
		}
		if (j + 1 < tiles) {
			load(j + 1);
		}
		uint32_t pair = pairs + j % 2 * stage;
		const float4 *of = (const float4 *)(shared + columns + j % 2 * N * 8);
		if (j * N >= row0 + MT * 16 - 1) {
#pragma unroll 1 // more would need more registers
			for (int c = 0; c < N; c += C) {
				x.template add<C, false>(ak, av, pair + c * 2 * D, pair + half + c * 2 * D, of + c / 2,
					row0, j * N + c);
			}
		} else {
#pragma unroll 1
			for (int c = 0; c < N; c += C) {
				if (j * N + c + C > row0) { // else all queries are before the warp's keys
					x.template add<C, true>(ak, av, pair + c * 2 * D, pair + half + c * 2 * D, of + c / 2,
						row0, j * N + c);
				}
			}
		}
	}
	float factor[MT][2], one[MT][2];
#pragma unroll
	for (int m = 0; m < MT; m++) {
		factor[m][0] = factor[m][1] = scale;
		one[m][0] = one[m][1] = 1;
	}
	bf16 *to = dqkv + p.in + row0 * p.stride + p.width;
	store_rows<D, MT>(to, p.stride, T - row0, hs, shared + own, x.dk, factor);
	store_rows<D, MT>(to + p.width, p.stride, T - row0, hs, shared + 2 * M * D + own, x.dv, one);
}

// The kernels, with the shapes of tiles that were fastest on an H200.

extern "C" __global__ void __launch_bounds__(128, 2)
mma_forward_64(bf16 *out, float *lse, const bf16 *qkv, int B, int T, int heads, int hs, float scale, int window) {
	forward<64, 2, 4, 64, true>(out, lse, qkv, T, heads, hs, scale, window);
}

extern "C" __global__ void __launch_bounds__(128, 2)
mma_forward_128(bf16 *out, float *lse, const bf16 *qkv, int B, int T, int heads, int hs, float scale, int window) {
	forward<128, 2, 4, 32, false>(out, lse, qkv, T, heads, hs, scale, window);
}

extern "C" __global__ void __launch_bounds__(128, 4)
mma_backward_queries_64(bf16 *dqkv, float2 *rows, const bf16 *dout, const bf16 *out, const float *lse, const bf16 *qkv,
	int B, int T, int heads, int hs, float scale, int window) {
	backward_queries<64, 1, 4, 64, 32, true>(dqkv, rows, dout, out, lse, qkv, T, heads, hs, scale, window);
}

extern "C" __global__ void __launch_bounds__(128, 2)
mma_backward_queries_128(bf16 *dqkv, float2 *rows, const bf16 *dout, const bf16 *out, const float *lse, const bf16 *qkv,
	int B, int T, int heads, int hs, float scale, int window) {
	backward_queries<128, 1, 4, 64, 32, true>(dqkv, rows, dout, out, lse, qkv, T, heads, hs, scale, window);
}

extern "C" __global__ void __launch_bounds__(128, 3)
mma_backward_keys_64(bf16 *dqkv, const float2 *rows, const bf16 *dout, const bf16 *qkv, int B, int T, int heads,
	int hs, float scale, int window) {
	backward_keys<64, 1, 4, 64, 16, true>(dqkv, rows, dout, qkv, T, heads, hs, scale, window);
}

extern "C" __global__ void __launch_bounds__(128, 2)
mma_backward_keys_128(bf16 *dqkv, const float2 *rows, const bf16 *dout, const bf16 *qkv, int B, int T, int heads,
	int hs, float scale, int window) {
	backward_keys<128, 1, 4, 64, 16, true>(dqkv, rows, dout, qkv, T, heads, hs, scale, window);
}

#endif
