// The backward pass of causal attention by the products of warpgroups (wgmma), for compute
// capability 9.0 and heads of up to 64 elements. wgmma.go launches the kernels, which are the last
// functions.
//
// Arguments, shapes and the order of sums are those of mma.cu's backward kernels: equal inputs give
// equal bits here too. qkv, dout and out come as tensors for the copy engine.
//
// A warpgroup takes a square of 64 x 64 scores at a time. While it computes a square's
// exponentials, the scores of the next square, the gradients of this one's probabilities and the
// sums of the one before are under way.
//
// columns, if it is there, receives the sums of the columns of 64 rows of dqkv each:
// (B,T/64,3,heads,hs).
//
// Sources: Shah et al., FlashAttention-3 (2024); PTX ISA, wgmma, its matrices in shared memory,
// mbarrier, cp.async.bulk.tensor.

#ifndef __CUDA_ARCH_FEAT_SM90_ALL

// A program is compiled for other GPUs, too, which take other kernels.
extern "C" __global__ void wgmma_backward_queries() {}
extern "C" __global__ void wgmma_backward_keys() {}

#else

// QueryGradients has a warpgroup's sums over the keys of its queries.
struct QueryGradients {
	Layout<3, 1> l;
	Ring<stages> stage; // of keys and values
	uint32_t held;      // barrier of the stage whose keys are being added up, 0 for none
	Operand q, d, w;
	float dq[32], s[2][32], e[32], base[2], delta[2];
	float scale; // of scores, in powers of 2

	__device__ __forceinline__ QueryGradients(const Layout<3, 1> &l, float scale) : l(l), scale(scale * log2e) {}

	template <int NEXT> __device__ __forceinline__ void begin() {
		barrier_wait(l.full(stage.at), stage.parity);
		products_start();
		products(s[NEXT], q, l.stage(stage.at));
		products_commit();
	}

	// add takes the square whose scores are there, and begins the next unless it is the LAST.
	template <int THIS, bool LAST> __device__ __forceinline__ void add() {
		uint32_t keys = l.stage(stage.at), empty = l.empty(stage.at);
		products_start();
		products(e, d, keys + matrix_bytes);
		products_commit();
		stage.next();
		if (!LAST) {
			begin<1 - THIS>();
		}
#pragma unroll
		for (int i = 0; i < 32; i++) {
			s[THIS][i] = power2(fmaf(s[THIS][i], scale, -base[i / 2 % 2]));
		}
		products_finish<LAST ? 0 : 1>(); // the keys of the square before, too
		settle(e);
		if (held) {
			release(held);
		}
		held = empty;
#pragma unroll
		for (int k = 0; k < 4; k++) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int j = 8 * k + 2 * i;
				w[k][i] = pack(s[THIS][j] * (e[j] - delta[i % 2]), s[THIS][j + 1] * (e[j + 1] - delta[i % 2]));
			}
		}
		products_start();
		add_weighted(dq, w, keys);
		products_commit();
		if (LAST) {
			products_finish<0>();
			settle(dq);
			release(held);
		} else {
			products_finish<1>();
			settle(s[1 - THIS]);
		}
	}

	// sum takes n squares; the first is on the diagonal.
	__device__ __forceinline__ void sum(int n) {
		clear(dq);
		held = 0;
		begin<0>();
		products_finish<0>();
		settle(s[0]);
		mask(s[0], false);
		each_square(*this, n);
	}
};

// KeyGradients has a warpgroup's sums over the queries of its keys. Scores are transposed.
struct KeyGradients {
	Layout<2, 2> l;
	Ring<stages> stage; // of queries and gradients
	uint32_t held;      // barrier of the stage whose rows are being added up, 0 for none
	Operand k, w, y;
	uint32_t v; // the matrix of values
	float dk[32], dv[32], s[2][32], e[32];
	float scale; // of scores, in powers of 2

	__device__ __forceinline__ KeyGradients(const Layout<2, 2> &l, float scale) : l(l), scale(scale * log2e) {}

	template <int NEXT> __device__ __forceinline__ void begin() {
		barrier_wait(l.full(stage.at), stage.parity);
		products_start();
		products(s[NEXT], k, l.stage(stage.at));
		products_commit();
	}

	template <int THIS, bool LAST> __device__ __forceinline__ void add() {
		uint32_t queries = l.stage(stage.at), empty = l.empty(stage.at);
		// The results of backward_queries for two queries in every eighth float4.
		const float4 *row = (const float4 *)l.pointer(l.rows(stage.at)) + threadIdx.x % 4;
		products_start();
		products_of(e, v, queries + matrix_bytes);
		products_commit();
		stage.next();
		if (!LAST) {
			begin<1 - THIS>();
		}
#pragma unroll
		for (int n = 0; n < 8; n++) {
			float4 x = row[n * 4];
#pragma unroll
			for (int i = 0; i < 4; i++) {
				s[THIS][4 * n + i] = power2(fmaf(s[THIS][4 * n + i], scale, i % 2 ? -x.z : -x.x));
			}
		}
		products_finish<LAST ? 0 : 1>(); // the queries of the square before, too
		settle(e);
		if (held) {
			release(held);
		}
		held = empty;
#pragma unroll
		for (int n = 0; n < 8; n++) {
			float4 x = row[n * 4];
#pragma unroll
			for (int h = 0; h < 2; h++) {
				int j = 4 * n + 2 * h, i = n % 2 * 2 + h;
				w[n / 2][i] = pack(s[THIS][j], s[THIS][j + 1]);
				y[n / 2][i] = pack(s[THIS][j] * (e[j] - x.y), s[THIS][j + 1] * (e[j + 1] - x.w));
			}
		}
		products_start();
		add_weighted(dv, w, queries + matrix_bytes);
		add_weighted(dk, y, queries);
		products_commit();
		if (LAST) {
			products_finish<0>();
			settle(dk);
			settle(dv);
			release(held);
		} else {
			products_finish<1>();
			settle(s[1 - THIS]);
		}
	}

	__device__ __forceinline__ void sum(int n) {
		clear(dk);
		clear(dv);
		held = 0;
		begin<0>();
		products_finish<0>();
		settle(s[0]);
		mask(s[0], true);
		each_square(*this, n);
	}
};

extern "C" __global__ void __launch_bounds__(384, 1)
wgmma_backward_queries(bf16 *dqkv, float2 *rows, const __grid_constant__ tensor_map dout,
	const __grid_constant__ tensor_map out, const float *lse, const __grid_constant__ tensor_map qkv, int B,
	int T, int heads, int hs, float scale, int window, float *columns) {
	extern __shared__ __align__(1024) char shared[];
	Layout<3, 1> l(shared);
	Ring<1> own;
	int warp = warp_index(), tiles = (T + rows_per_tile - 1) / rows_per_tile;
	if (warp < 4) {
		give_registers();
		Ring<stages> stage;
		each_tile(T, B * heads, [&](int head, int place, int) {
			if (warp > 0) {
				return;
			}
			Head h(head, T, heads, hs);
			int first = (tiles - 1 - place) * rows_per_tile;
			uint32_t full = l.full(stages);
			barrier_wait(l.empty(stages), own.parity ^ 1);
			if (threadIdx.x == 0) {
				barrier_expect(full, 6 * matrix_bytes);
				for (int i = 0; i < 2; i++) {
					int row = first + i * square, to = i * matrix_bytes;
					copy_square(l.own(0) + to, qkv, h.number, row, h.sequence, full);
					copy_square(l.own(1) + to, dout, h.number, row, h.sequence, full);
					copy_square(l.own(2) + to, out, h.number, row, h.sequence, full);
				}
			}
			for (int i = threadIdx.x; i < rows_per_tile; i += 32) {
				copy_async<4>(l.rows(0) + i * 4, lse + (long long)head * T + first + i, first + i >= T);
			}
			barrier_arrive_copied(full);
			own.next();
			copy_keys(l, stage, qkv, h, heads, first + square, first_key(first, window));
		});
	} else {
		take_registers();
		int lane = threadIdx.x % 32, t = lane % 4;
		int turn = 0;
		QueryGradients x(l, scale);
		each_tile(T, B * heads, [&](int head, int place, int second) {
			int half = (warp >= 8) ^ second, mine = half * square + warp % 4 * 16; // the warp's first row in the tile
			int first = (tiles - 1 - place) * rows_per_tile;
			barrier_wait(l.full(stages), own.parity);
			load_operand(x.q, l.own(0) + half * matrix_bytes);
			load_operand(x.d, l.own(1) + half * matrix_bytes);
			// A quad of lanes sums a row's delta, each lane every fourth chunk.
#pragma unroll
			for (int m = 0; m < 2; m++) {
				int r = mine + m * 8 + lane / 4;
				float sum = 0;
#pragma unroll
				for (int c = 0; c < 8; c += 4) {
					float a[8], b[8];
					load8(a, (const bf16 *)l.pointer(l.own(1) + chunk_at<D>(r, c + t)));
					load8(b, (const bf16 *)l.pointer(l.own(2) + chunk_at<D>(r, c + t)));
#pragma unroll
					for (int i = 0; i < 8; i++) {
						sum = fmaf(a[i], b[i], sum);
					}
				}
				sum += __shfl_xor_sync(0xffffffffu, sum, 1);
				sum += __shfl_xor_sync(0xffffffffu, sum, 2);
				x.delta[m] = sum;
				x.base[m] = ((const float *)l.pointer(l.rows(0)))[r] * log2e;
				if (t == 0 && first + r < T) {
					rows[(long long)head * T + first + r] = make_float2(x.base[m], sum);
				}
			}
			release(l.empty(stages));
			own.next();
			if (half == 0) { // the tile's last keys are after these queries
				skip(l, x.stage);
			}
			x.sum((first - first_key(first, window)) / square + half + 1);
			Head h(head, T, heads, hs);
			char *part = l.pointer(l.sums(warp - 4));
			store_rows(dqkv + h.in + (long long)(first + mine) * h.stride, h.stride, T - first - mine, hs,
				part, x.dq, scale);
			if (columns && first + half * square < T) {
				sum_columns<1>(columns + h.columns((first + half * square) / square, T), 0, hs, l.columns(turn ^= 1),
					{&x.dq}, {scale});
			}
		});
	}
}

extern "C" __global__ void __launch_bounds__(384, 1)
wgmma_backward_keys(bf16 *dqkv, const float2 *rows, const __grid_constant__ tensor_map dout,
	const __grid_constant__ tensor_map qkv, int B, int T, int heads, int hs, float scale, int window, float *columns) {
	extern __shared__ __align__(1024) char shared[];
	Layout<2, 2> l(shared);
	Ring<2> own;
	int warp = warp_index();
	if (warp < 4) {
		give_registers();
		Ring<stages> stage;
		each_tile(T, B * heads, [&](int head, int place, int) {
			if (warp > 0) {
				return;
			}
			Head h(head, T, heads, hs);
			const float2 *r = rows + (long long)head * T;
			int first = place * rows_per_tile;
			uint32_t full = l.full(stages + own.at);
			barrier_wait(l.empty(stages + own.at), own.parity ^ 1);
			if (threadIdx.x == 0) {
				barrier_expect(full, 4 * matrix_bytes);
				for (int i = 0; i < 2; i++) {
					int row = first + i * square, to = i * matrix_bytes;
					copy_square(l.own(0, own.at) + to, qkv, heads + h.number, row, h.sequence, full);
					copy_square(l.own(1, own.at) + to, qkv, 2 * heads + h.number, row, h.sequence, full);
				}
			}
			barrier_arrive_copied(full);
			own.next();
			for (int row = first, end = end_of_queries(first, window, T); row < end; row += square) {
				full = l.full(stage.at);
				barrier_wait(l.empty(stage.at), stage.parity ^ 1);
				if (threadIdx.x == 0) {
					barrier_expect(full, 2 * matrix_bytes);
					copy_square(l.stage(stage.at), qkv, h.number, row, h.sequence, full);
					copy_square(l.stage(stage.at) + matrix_bytes, dout, h.number, row, h.sequence, full);
				}
				for (int i = threadIdx.x; i < square; i += 32) {
					copy_async<8>(l.rows(stage.at) + i * 8, r + row + i, row + i >= T);
				}
				barrier_arrive_copied(full);
				stage.next();
			}
		});
	} else {
		take_registers();
		int turn = 0;
		KeyGradients x(l, scale);
		each_tile(T, B * heads, [&](int head, int place, int second) {
			int half = (warp >= 8) ^ second, first = place * rows_per_tile + half * square;
			barrier_wait(l.full(stages + own.at), own.parity);
			load_operand(x.k, l.own(0, own.at) + half * matrix_bytes);
			x.v = l.own(1, own.at) + half * matrix_bytes;
			if (half == 1) { // the tile's first queries are before these keys
				skip(l, x.stage);
			}
			if (first < T) {
				x.sum((end_of_queries(first, window, T) - first + square - 1) / square);
			}
			release(l.empty(stages + own.at));
			own.next();
			if (first < T) {
				Head h(head, T, heads, hs);
				int mine = first + warp % 4 * 16;
				bf16 *to = dqkv + h.in + h.width + (long long)mine * h.stride;
				char *part = l.pointer(l.sums(warp - 4));
				store_rows(to, h.stride, T - mine, hs, part, x.dk, scale);
				store_rows(to + h.width, h.stride, T - mine, hs, part, x.dv, 1);
				if (columns) {
					float *sums = columns + h.columns(first / square, T) + h.width;
					sum_columns<2>(sums, h.width, hs, l.columns(turn ^= 1), {&x.dk, &x.dv}, {scale, 1});
				}
			}
		});
	}
}

#endif

// wgmma_sum_columns leaves in sums(width) the sums over the rows of columns(rows,width). A block
// has 32 columns, and each of its 8 warps every 8th row.
extern "C" __global__ void __launch_bounds__(256)
wgmma_sum_columns(float *sums, const float *columns, int rows, int width) {
	__shared__ float part[8][32];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = 32 * blockIdx.x + lane;
	float sum = 0;
	if (column < width) {
#pragma unroll 16
		for (int i = warp; i < rows; i += 8) {
			sum += columns[(long long)i * width + column];
		}
	}
	part[warp][lane] = sum;
	__syncthreads();
	if (warp > 0 || column >= width) {
		return;
	}
	for (int i = 1; i < 8; i++) {
		sum += part[i][lane];
	}
	sums[column] = sum;
}
