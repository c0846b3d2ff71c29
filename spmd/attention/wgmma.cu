// The backward pass of causal attention by the products of warpgroups (wgmma), for compute capability 9.0 and heads of
// up to 64 elements. Arguments, shapes and what is summed in which order are as of mma.cu's backward kernels, so that
// equal inputs give equal bits here too. wgmma.go launches the kernels, which are the last functions.
//
// A warpgroup computes a square of 64 x 64 scores at a time; the products after a square's probabilities and before them
// overlap with the exponentials of the same and of the other warpgroup.
//
// Where columns is not missing it receives the sums of the columns of 64 rows of dqkv each: (B,T/64,3,heads,hs).
//
// Sources: Shah et al., FlashAttention-3 (2024); PTX ISA, wgmma, its matrices in shared memory, mbarrier.

#ifndef __CUDA_ARCH_FEAT_SM90_ALL

// A program is compiled for other GPUs, too, which are given other kernels.
extern "C" __global__ void wgmma_backward_queries() {}
extern "C" __global__ void wgmma_backward_keys() {}

#else

// QueryGradients is what a warpgroup sums over the keys of its queries.
struct QueryGradients {
	Layout<3> l;
	Ring<stages> stage; // of keys and values
	Operand q, d;
	float dq[32], s[32], e[32], base[2], delta[2];
	float scale; // of scores, in powers of 2

	__device__ __forceinline__ QueryGradients(const Layout<3> &l, float scale) : l(l), scale(scale * log2e) {}

	// begin starts a square: its scores, and behind them the gradients of its probabilities.
	__device__ __forceinline__ void begin() {
		barrier_wait(l.full(stage.at), stage.parity);
		uint32_t keys = l.stage(stage.at);
		products_start();
		products(s, q, keys);
		products_commit();
		products(e, d, keys + matrix_bytes);
		products_commit();
		products_finish<1>();
		settle(s);
	}

	__device__ __forceinline__ void probabilities() {
#pragma unroll
		for (int i = 0; i < 32; i++) {
			s[i] = power2(fmaf(s[i], scale, -base[i / 2 % 2]));
		}
	}

	// end adds up the square that was begun, and begins the next unless it is the LAST.
	template <bool LAST> __device__ __forceinline__ void end() {
		uint32_t keys = l.stage(stage.at), empty = l.empty(stage.at);
		Operand w;
		products_finish<0>();
		settle(e);
#pragma unroll
		for (int k = 0; k < 4; k++) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int j = 8 * k + 2 * i;
				w[k][i] = pack(s[j] * (e[j] - delta[i % 2]), s[j + 1] * (e[j + 1] - delta[i % 2]));
			}
		}
		products_start();
		add_weighted(dq, w, keys);
		products_commit();
		stage.next();
		if (LAST) {
			products_finish<0>();
			release(empty);
		} else {
			begin(); // which ends behind the products of this square
			release(empty);
			probabilities();
		}
	}

	// sum takes n squares, of which the first is on the diagonal.
	__device__ __forceinline__ void sum(int n) {
		clear(dq);
		begin();
		mask(s, false);
		probabilities();
#pragma unroll 1
		for (int i = 1; i < n; i++) {
			end<false>();
		}
		end<true>();
		settle(dq);
	}
};

// KeyGradients is what a warpgroup sums over the queries of its keys. Scores are transposed.
struct KeyGradients {
	Layout<2> l;
	Ring<stages> stage; // of queries and gradients
	Operand k, v;
	float dk[32], dv[32], s[32], e[32];
	float scale; // of scores, in powers of 2

	__device__ __forceinline__ KeyGradients(const Layout<2> &l, float scale) : l(l), scale(scale * log2e) {}

	// of is what backward_queries left of two queries in every eighth float4.
	__device__ __forceinline__ const float4 *of() const { return (const float4 *)l.pointer(l.rows(stage.at)) + threadIdx.x % 4; }

	__device__ __forceinline__ void begin_scores() {
		barrier_wait(l.full(stage.at), stage.parity);
		products_start();
		products(s, k, l.stage(stage.at));
		products_commit();
	}

	__device__ __forceinline__ void begin_gradients() {
		products_start();
		products(e, v, l.stage(stage.at) + matrix_bytes);
		products_commit();
		products_finish<1>();
		settle(s);
	}

	__device__ __forceinline__ void probabilities() {
		const float4 *queries = of();
#pragma unroll
		for (int n = 0; n < 8; n++) {
			float4 x = queries[n * 4];
#pragma unroll
			for (int i = 0; i < 4; i++) {
				s[4 * n + i] = power2(fmaf(s[4 * n + i], scale, i % 2 ? -x.z : -x.x));
			}
		}
	}

	template <bool LAST> __device__ __forceinline__ void end() {
		uint32_t queries = l.stage(stage.at), empty = l.empty(stage.at);
		const float4 *row = of();
		Operand w, y;
		products_finish<0>();
		settle(e);
#pragma unroll
		for (int n = 0; n < 8; n++) {
			float4 x = row[n * 4];
#pragma unroll
			for (int h = 0; h < 2; h++) {
				int j = 4 * n + 2 * h, i = n % 2 * 2 + h;
				w[n / 2][i] = pack(s[j], s[j + 1]);
				y[n / 2][i] = pack(s[j] * (e[j] - x.y), s[j + 1] * (e[j + 1] - x.w));
			}
		}
		products_start();
		add_weighted(dv, w, queries + matrix_bytes);
		add_weighted(dk, y, queries);
		products_commit();
		stage.next();
		if (LAST) {
			products_finish<0>();
			release(empty);
		} else {
			begin_scores();
			products_finish<1>();
			release(empty);
			begin_gradients();
			probabilities();
		}
	}

	__device__ __forceinline__ void sum(int n) {
		clear(dk);
		clear(dv);
		begin_scores();
		begin_gradients();
		mask(s, true);
		probabilities();
#pragma unroll 1
		for (int i = 1; i < n; i++) {
			end<false>();
		}
		end<true>();
		settle(dk);
		settle(dv);
	}
};

extern "C" __global__ void __launch_bounds__(384, 1) wgmma_backward_queries(bf16 *dqkv, float2 *rows, const bf16 *dout, const bf16 *out, const float *lse, const bf16 *qkv, int B, int T, int heads, int hs, float scale, float *columns) {
	extern __shared__ __align__(1024) char shared[];
	Layout<3> l(shared);
	Ring<1> own;
	int warp = warp_index(), tiles = (T + rows_per_tile - 1) / rows_per_tile;
	if (warp < 4) {
		give_registers();
		Publisher publisher;
		Ring<stages> stage;
		each_tile(T, B * heads, [&](int head, int place, int) {
			Head h(head, T, heads, hs);
			const bf16 *q = qkv + h.in, *k = q + h.width;
			long long first = (long long)(tiles - 1 - place) * rows_per_tile;
			int left = T - first;
			publisher.wait(l.empty(stages), own.parity ^ 1);
			load_rows<rows_per_tile>(l.own(0), q + first * h.stride, h.stride, left, hs);
			load_rows<rows_per_tile>(l.own(1), dout + h.out + first * h.width, h.width, left, hs);
			load_rows<rows_per_tile>(l.own(2), out + h.out + first * h.width, h.width, left, hs);
			copy_async<4>(l.rows(0) + threadIdx.x * 4, lse + (long long)head * T + first + threadIdx.x, threadIdx.x >= left);
			publisher.copied(l.full(stages));
			own.next();
			copy_keys(l, publisher, stage, k, h, first + square, T, hs);
		});
		publisher.flush();
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
			x.sum(first / square + half + 1);
			Head h(head, T, heads, hs);
			char *part = l.pointer(l.sums(warp - 4));
			store_rows(dqkv + h.in + (long long)(first + mine) * h.stride, h.stride, T - first - mine, hs, part, x.dq, scale);
			if (columns && first + half * square < T) {
				sum_columns<1>(columns + h.columns((first + half * square) / square, T), 0, hs, l.columns(turn ^= 1), {&x.dq}, {scale});
			}
		});
	}
}

extern "C" __global__ void __launch_bounds__(384, 1) wgmma_backward_keys(bf16 *dqkv, const float2 *rows, const bf16 *dout, const bf16 *qkv, int B, int T, int heads, int hs, float scale, float *columns) {
	extern __shared__ __align__(1024) char shared[];
	Layout<2> l(shared);
	Ring<1> own;
	int warp = warp_index();
	if (warp < 4) {
		give_registers();
		Publisher publisher;
		Ring<stages> stage;
		each_tile(T, B * heads, [&](int head, int place, int) {
			Head h(head, T, heads, hs);
			const bf16 *q = qkv + h.in, *d = dout + h.out;
			const float2 *r = rows + (long long)head * T;
			long long first = (long long)place * rows_per_tile;
			const bf16 *k = q + h.width + first * h.stride;
			publisher.wait(l.empty(stages), own.parity ^ 1);
			load_rows<rows_per_tile>(l.own(0), k, h.stride, T - first, hs);
			load_rows<rows_per_tile>(l.own(1), k + h.width, h.stride, T - first, hs);
			publisher.copied(l.full(stages));
			own.next();
			for (long long row = first; row < T; row += square) {
				publisher.wait(l.empty(stage.at), stage.parity ^ 1);
				load_rows<square>(l.stage(stage.at), q + row * h.stride, h.stride, T - row, hs);
				load_rows<square>(l.stage(stage.at) + matrix_bytes, d + row * h.width, h.width, T - row, hs);
				if (threadIdx.x < square) {
					copy_async<8>(l.rows(stage.at) + threadIdx.x * 8, r + row + threadIdx.x, row + threadIdx.x >= T);
				}
				publisher.copied(l.full(stage.at));
				stage.next();
			}
		});
		publisher.flush();
	} else {
		take_registers();
		int turn = 0;
		KeyGradients x(l, scale);
		each_tile(T, B * heads, [&](int head, int place, int second) {
			int half = (warp >= 8) ^ second, first = place * rows_per_tile + half * square;
			barrier_wait(l.full(stages), own.parity);
			load_operand(x.k, l.own(0) + half * matrix_bytes);
			load_operand(x.v, l.own(1) + half * matrix_bytes);
			release(l.empty(stages));
			own.next();
			if (half == 1) { // the tile's first queries are before these keys
				skip(l, x.stage);
			}
			if (first < T) {
				x.sum((T - first + square - 1) / square);
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

// wgmma_sum_columns leaves in sums(width) those of the rows of columns(rows,width). A block has 32 columns, and each of its 8
// warps every 8th row.
extern "C" __global__ void __launch_bounds__(256) wgmma_sum_columns(float *sums, const float *columns, int rows, int width) {
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
