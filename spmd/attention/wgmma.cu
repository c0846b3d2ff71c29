// The backward pass of causal attention by the products of warpgroups (wgmma), for compute capability 9.0 and heads of
// up to 64 elements. Arguments, shapes and what is summed in which order are as of mma.cu's backward kernels, so that
// equal inputs give equal bits here too. wgmma.go launches the kernels, which are the last two functions.
//
// A block stays on its multiprocessor and takes one tile after the other: 128 queries, or keys, of one head. Its first
// warpgroup copies, the other two compute, 64 rows of the tile each. The tile's own rows lie in shared memory until the
// computing warps have them in registers. What these rows meet comes in stages of 64 rows of two matrices, in a ring that
// also runs on from tile to tile, so that copies of the next tile are under way while the last sums are stored.
// A warpgroup computes a square of 64 x 64 scores at a time; the products after a square's probabilities and before them
// overlap with the exponentials of the same and of the other warpgroup.
//
// Sources: Shah et al., FlashAttention-3 (2024); PTX ISA, wgmma, its matrices in shared memory, mbarrier.

#ifndef __CUDA_ARCH_FEAT_SM90_ALL

// A program is compiled for other GPUs, too, which are given other kernels.
extern "C" __global__ void wgmma_backward_queries() {}
extern "C" __global__ void wgmma_backward_keys() {}

#else

const int square = 64; // rows of a stage and of a warpgroup
const int matrix_bytes = square * D * 2;
const int rows_per_tile = 2 * square;
const int stages = 9; // of the ring

// load_rows starts the copies of ROWS rows of hs elements, of which rows exist, by the first warpgroup.
template <int ROWS> SPMD_FN void load_rows(uint32_t to, const bf16 *from, int stride, int rows, int hs) {
	int c = threadIdx.x % 8, r = threadIdx.x / 8;
	const bf16 *at = from + r * stride + c * 8;
	to += chunk_at<D>(r, c);
	rows = c * 8 < hs ? rows - r : 0;
#pragma unroll 4
	for (int i = 0; i < ROWS; i += 16) {
		copy_async<16>(to + i * 2 * D, at, i >= rows);
		at += 16 * stride;
	}
}

// store_rows writes a warp's 16 rows of sums, of which rows exist, by way of its part of shared memory.
SPMD_FN void store_rows(bf16 *to, int stride, int rows, int hs, char *part, const float (&c)[32], float scale) {
	int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	__syncwarp(); // the others may still read what was stored last
#pragma unroll
	for (int i = 0; i < 32; i += 2) {
		*(uint32_t *)(part + chunk_at<D>(i / 2 % 2 * 8 + g, i / 4) + 4 * t) = pack(c[i] * scale, c[i + 1] * scale);
	}
	__syncwarp();
	int chunk = lane % 8;
#pragma unroll
	for (int r = lane / 8; r < 16; r += 4) {
		if (r < rows && chunk * 8 < hs) {
			*(uint4 *)(to + r * stride + chunk * 8) = *(const uint4 *)(part + chunk_at<D>(r, chunk));
		}
	}
}

// Ring counts the uses of N buffers in turn.
template <int N> struct Ring {
	int at, parity;

	__device__ __forceinline__ Ring() : at(0), parity(0) {}

	__device__ __forceinline__ void next() {
		if (++at == N) {
			at = 0, parity ^= 1;
		}
	}
};

// Layout is that of shared memory: OWN matrices of a tile's rows, the stages, room for sums on their way out, 8 bytes for
// each row of the stages, and the barriers. wgmma.go has the size.
template <int OWN> struct Layout {
	char *shared;
	uint32_t base;

	__device__ __forceinline__ Layout(char *shared) : shared(shared), base(shared_address(shared)) {
		if (threadIdx.x == 0) {
			for (int i = 0; i <= stages; i++) {
				barrier_init(full(i), 128);
				barrier_init(empty(i), 8);
			}
		}
		__syncthreads();
	}

	__device__ __forceinline__ uint32_t own(int i) const { return base + i * 2 * matrix_bytes; }
	__device__ __forceinline__ uint32_t stage(int i) const { return own(OWN) + i * 2 * matrix_bytes; }
	__device__ __forceinline__ uint32_t sums(int warp) const { return stage(stages) + warp * 32 * D; }
	__device__ __forceinline__ uint32_t rows(int stage) const { return sums(8) + stage * square * 8; }

	// The copying threads arrive at full, the computing warps at empty. The last pair is for the tile's own rows.
	__device__ __forceinline__ uint32_t full(int i) const { return rows(stages) + i * 8; }
	__device__ __forceinline__ uint32_t empty(int i) const { return full(stages + 1) + i * 8; }

	__device__ __forceinline__ char *pointer(uint32_t address) const { return shared + (address - base); }
};

// Publisher tells of copies that have arrived. Tensor cores see them only behind a fence of the thread that copied, which
// waits for the copies: so they are told of two groups later, or when the thread has to wait for room.
struct Publisher {
	uint32_t older, newer; // barriers of groups under way, 0 for none

	__device__ __forceinline__ Publisher() : older(0), newer(0) {}

	__device__ __forceinline__ void arrive(uint32_t barrier) {
		if (barrier) {
			barrier_arrive(barrier);
		}
	}

	// copied ends a group of copies.
	__device__ __forceinline__ void copied(uint32_t barrier) {
		copy_commit();
		copy_wait<2>();
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
		arrive(older);
		older = newer, newer = barrier;
	}

	__device__ __forceinline__ void flush() {
		copy_wait<0>();
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
		arrive(older);
		arrive(newer);
		older = newer = 0;
	}

	__device__ __forceinline__ void wait(uint32_t barrier, int parity) {
		if (!barrier_passed(barrier, parity)) {
			flush();
			barrier_wait(barrier, parity);
		}
	}
};

// each_tile calls f for the block's tiles with the number of the head over the batch, the tile's place among the head's by
// the work that it is, most first, and which of a pair it is: the most and the least in turn, so that blocks have equal work.
template <typename F> SPMD_FN void each_tile(int T, int heads, F f) {
	int tiles = (T + rows_per_tile - 1) / rows_per_tile, pairs = (tiles + 1) / 2, second = 0;
	for (uint32_t i = blockIdx.x; i < (uint32_t)heads * pairs; second ^= 1) {
		int head = i / pairs, place = i % pairs;
		if (second) {
			place = tiles - 1 - place;
			i += gridDim.x;
		}
		if (!second || place >= pairs) {
			f(head, place, second);
		}
	}
}

// Head is where the rows of a head begin in qkv and in out, and how many elements lie from one to the next.
struct Head {
	long long in, out;
	int stride, width;

	__device__ __forceinline__ Head(int head, int T, int heads, int hs) {
		width = heads * hs, stride = 3 * width;
		long long row = (long long)(head / heads) * T;
		int column = head % heads * hs;
		in = row * stride + column, out = row * width + column;
	}
};

// The first warpgroup hands most of its registers to the others.
SPMD_FN void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }
SPMD_FN void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }

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

extern "C" __global__ void __launch_bounds__(384, 1) wgmma_backward_queries(bf16 *dqkv, float2 *rows, const bf16 *dout, const bf16 *out, const float *lse, const bf16 *qkv, int B, int T, int heads, int hs, float scale) {
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
			for (long long row = first + square; row >= 0; row -= square) {
				publisher.wait(l.empty(stage.at), stage.parity ^ 1);
				load_rows<square>(l.stage(stage.at), k + row * h.stride, h.stride, T - row, hs);
				load_rows<square>(l.stage(stage.at) + matrix_bytes, k + h.width + row * h.stride, h.stride, T - row, hs);
				publisher.copied(l.full(stage.at));
				stage.next();
			}
		});
		publisher.flush();
	} else {
		take_registers();
		int lane = threadIdx.x % 32, t = lane % 4;
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
				barrier_wait(l.full(x.stage.at), x.stage.parity);
				release(l.empty(x.stage.at));
				x.stage.next();
			}
			x.sum(first / square + half + 1);
			Head h(head, T, heads, hs);
			char *part = l.pointer(l.sums(warp - 4));
			store_rows(dqkv + h.in + (long long)(first + mine) * h.stride, h.stride, T - first - mine, hs, part, x.dq, scale);
		});
	}
}

extern "C" __global__ void __launch_bounds__(384, 1) wgmma_backward_keys(bf16 *dqkv, const float2 *rows, const bf16 *dout, const bf16 *qkv, int B, int T, int heads, int hs, float scale) {
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
		KeyGradients x(l, scale);
		each_tile(T, B * heads, [&](int head, int place, int second) {
			int half = (warp >= 8) ^ second, first = place * rows_per_tile + half * square;
			barrier_wait(l.full(stages), own.parity);
			load_operand(x.k, l.own(0) + half * matrix_bytes);
			load_operand(x.v, l.own(1) + half * matrix_bytes);
			release(l.empty(stages));
			own.next();
			if (half == 1) { // the tile's first queries are before these keys
				barrier_wait(l.full(x.stage.at), x.stage.parity);
				release(l.empty(x.stage.at));
				x.stage.next();
			}
			if (first < T) {
				x.sum((T - first + square - 1) / square);
				Head h(head, T, heads, hs);
				int mine = first + warp % 4 * 16;
				bf16 *to = dqkv + h.in + h.width + (long long)mine * h.stride;
				char *part = l.pointer(l.sums(warp - 4));
				store_rows(to, h.stride, T - mine, hs, part, x.dk, scale);
				store_rows(to + h.width, h.stride, T - mine, hs, part, x.dv, 1);
			}
		});
	}
}

#endif
