// Causal attention by the products of warpgroups (wgmma), for compute capability 9.0 and heads of
// up to 64 elements. Arguments and shapes are those of mma.cu's forward kernel; qkv comes as a
// tensor for the copy engine. wgmma.go launches the kernel, which is the last function.
//
// A warpgroup takes a square of 64 x 64 scores at a time, from the diagonal to the first keys.
// While it computes a square's exponentials, the scores of the next square and the sum of values of
// the one before are under way.
//
// Sources: Shah et al., FlashAttention-3 (2024), section 3.2; PTX ISA, wgmma.

#ifndef __CUDA_ARCH_FEAT_SM90_ALL

// A program is compiled for other GPUs, too, which take other kernels.
extern "C" __global__ void wgmma_forward() {}

#else

// Outputs has a warpgroup's sums over the keys of its queries. A lane has parts of two rows.
struct Outputs {
	Layout<1, 1> l;
	Ring<stages> stage; // of keys and values
	uint32_t held;      // barrier of the stage whose values are being added up, 0 for none
	Operand q, w;
	float o[32], s[2][32];
	float top[2], sum[2]; // of a row's scores so far: the largest in powers of 2; of a lane's, of 2 to the score - top
	float scale;          // of scores, in powers of 2

	__device__ __forceinline__ Outputs(const Layout<1, 1> &l, float scale) : l(l), scale(scale * log2e) {}

	template <int NEXT> __device__ __forceinline__ void begin() {
		barrier_wait(l.full(stage.at), stage.parity);
		products_start();
		products(s[NEXT], q, l.stage(stage.at));
		products_commit();
	}

	// probabilities replaces scores by 2 to the score - top. It returns the factor of earlier sums.
	__device__ __forceinline__ void probabilities(float (&s)[32], float (&less)[2]) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float high = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
			for (int i = 4; i < 32; i += 4) {
				high = fmaxf(high, fmaxf(s[i + 2 * h], s[i + 2 * h + 1]));
			}
			high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
			high = fmaxf(top[h], fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2)) * scale);
			less[h] = power2(top[h] - high);
			top[h] = high;
			float part = 0;
#pragma unroll
			for (int i = 0; i < 32; i += 4) {
#pragma unroll
				for (int j = i + 2 * h; j < i + 2 * h + 2; j++) {
					s[j] = power2(fmaf(s[j], scale, -high));
					part += s[j];
				}
			}
			sum[h] = fmaf(sum[h], less[h], part);
		}
	}

	// add takes the square whose scores are there, and begins the next unless it is the LAST.
	template <int THIS, bool LAST> __device__ __forceinline__ void add() {
		uint32_t values = l.stage(stage.at) + matrix_bytes, empty = l.empty(stage.at);
		float less[2];
		stage.next();
		if (!LAST) {
			begin<1 - THIS>();
		}
		probabilities(s[THIS], less);
		products_finish<LAST ? 0 : 1>(); // the values of the square before
		settle(o);
		if (held) {
			release(held);
		}
		held = empty;
#pragma unroll
		for (int i = 0; i < 32; i++) {
			o[i] *= less[i / 2 % 2];
		}
#pragma unroll
		for (int i = 0; i < 32; i += 2) {
			w[i / 8][i / 2 % 4] = pack(s[THIS][i], s[THIS][i + 1]);
		}
		products_start();
		add_weighted(o, w, values);
		products_commit();
		if (LAST) {
			products_finish<0>();
			settle(o);
			release(held);
		} else {
			products_finish<1>();
			settle(s[1 - THIS]);
		}
	}

	// attend takes n squares; the first is on the diagonal. It leaves means of values.
	__device__ __forceinline__ void attend(int n) {
		clear(o);
		held = 0;
#pragma unroll
		for (int h = 0; h < 2; h++) {
			top[h] = __int_as_float(0xff800000), sum[h] = 0;
		}
		begin<0>();
		products_finish<0>();
		settle(s[0]);
		mask(s[0], false);
		each_square(*this, n);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
			sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
		}
		float per[2] = {1 / sum[0], 1 / sum[1]};
#pragma unroll
		for (int i = 0; i < 32; i++) {
			o[i] *= per[i / 2 % 2];
		}
	}
};

extern "C" __global__ void __launch_bounds__(384, 1)
wgmma_forward(bf16 *out, float *lse, const __grid_constant__ tensor_map qkv, int B, int T, int heads, int hs,
	float scale, int window) {
	extern __shared__ __align__(1024) char shared[];
	Layout<1, 1> l(shared);
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
				barrier_expect(full, 2 * matrix_bytes);
				copy_square(l.own(0), qkv, h.number, first, h.sequence, full);
				copy_square(l.own(0) + matrix_bytes, qkv, h.number, first + square, h.sequence, full);
			}
			barrier_arrive_copied(full);
			own.next();
			copy_keys(l, stage, qkv, h, heads, first + square, first_key(first, window));
		});
	} else {
		take_registers();
		int lane = threadIdx.x % 32;
		Outputs x(l, scale);
		each_tile(T, B * heads, [&](int head, int place, int second) {
			int half = (warp >= 8) ^ second, mine = half * square + warp % 4 * 16; // the warp's first row in the tile
			int first = (tiles - 1 - place) * rows_per_tile;
			barrier_wait(l.full(stages), own.parity);
			load_operand(x.q, l.own(0) + half * matrix_bytes);
			release(l.empty(stages));
			own.next();
			if (half == 0) { // the tile's last keys are after these queries
				skip(l, x.stage);
			}
			x.attend((first - first_key(first, window)) / square + half + 1);
#pragma unroll
			for (int m = 0; m < 2; m++) {
				int row = first + mine + m * 8 + lane / 4;
				if (lane % 4 == 0 && row < T) {
					lse[(long long)head * T + row] = (x.top[m] + log2f(x.sum[m])) * ln2;
				}
			}
			Head h(head, T, heads, hs);
			char *part = l.pointer(l.sums(warp - 4));
			store_rows(out + h.out + (long long)(first + mine) * h.width, h.width, T - first - mine, hs, part, x.o, 1);
		});
	}
}

#endif
