// Tiles of 128 rows of a head on the way to warpgroups and back, for compute capability 9.0 and
// heads of up to 64 elements. wgmma.go puts them behind warpgroup.cuh and before the kernels.
//
// A block stays on its multiprocessor and takes one tile after the other: 128 queries, or keys, of
// one head. Its first warp has the copy engine copy. Its last two warpgroups compute, 64 rows of
// the tile each. The tile's own rows lie in shared memory until the computing warps have them in
// registers, or are done with the tile.
//
// The other operands come in stages of 64 rows of two matrices, in a ring. The ring runs on from
// tile to tile: copies of the next tile are under way while the last sums are stored.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

const int square = 64; // rows of a stage and of a warpgroup
const int matrix_bytes = square * D * 2;
const int rows_per_tile = 2 * square;
const int stages = 7; // of the ring

// copy_square starts the copy of 64 rows of a matrix from row on, with zeros for rows outside. The
// barrier counts the bytes. The map is of (sequences, rows, matrices, elements); heads' queries,
// keys and values are a matrix each.
SPMD_FN void copy_square(uint32_t to, const tensor_map &from, int matrix, int row, int sequence, uint32_t barrier) {
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
		"[%0], [%1, {%2, %3, %4, %5}], [%6];"
		::"r"(to), "l"(&from), "r"(0), "r"(matrix), "r"(row), "r"(sequence), "r"(barrier) : "memory");
}

// store_rows writes a warp's 16 rows of sums, by way of its part of shared memory. Only rows of
// them exist.
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

// halve leaves sums of two lanes that are 2 N apart: in the first those of N columns, in the second
// those of the next N.
template <int N> SPMD_FN void halve(float (&v)[16]) {
	bool second = threadIdx.x & 2 * N;
#pragma unroll
	for (int i = 0; i < N; i++) {
		float keep = second ? v[i + N] : v[i], give = second ? v[i] : v[i + N];
		v[i] = keep + __shfl_xor_sync(0xffffffffu, give, 2 * N);
	}
}

// sum_columns leaves in to(MATRICES, apart) the sums of a warpgroup's 64 rows of each of the
// matrices c, times their scales. The first hs columns count. All of the warpgroup call it, with
// room of its own for 4 * MATRICES rows of sums, other room than in the call before.
template <int MATRICES>
SPMD_FN void sum_columns(float *to, int apart, int hs, float *room, const float (*const (&c)[MATRICES])[32],
	const float (&scale)[MATRICES]) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
	for (int x = 0; x < MATRICES; x++) {
		float v[16];
#pragma unroll
		for (int i = 0; i < 16; i++) {
			int j = i / 2 * 4 + i % 2;
			v[i] = (*c[x])[j] + (*c[x])[j + 2];
		}
		halve<8>(v);
		halve<4>(v);
		halve<2>(v);
		*(float2 *)(room + (4 * x + warp) * D + 2 * lane) = make_float2(v[0], v[1]);
	}
	asm volatile("bar.sync %0, 128;" ::"r"((int)threadIdx.x / 128) : "memory"); // 0 is __syncthreads'
	int x = threadIdx.x % 128 / D, column = threadIdx.x % D;
	if (x < MATRICES && column < hs) {
		const float *of = room + 4 * x * D + column;
		to[x * apart + column] = (of[0] + of[D] + of[2 * D] + of[3 * D]) * (x ? scale[MATRICES - 1] : scale[0]);
	}
}

// Layout is the layout of shared memory: OWN matrices of the rows of each of TILES tiles in turn,
// the stages, room for sums on their way out, 8 bytes for each row of the stages, the barriers, and
// room for sums of columns. wgmma.go has the size.
template <int OWN, int TILES> struct Layout {
	char *shared;
	uint32_t base;

	__device__ __forceinline__ Layout(char *shared) : shared(shared), base(shared_address(shared)) {
		if (threadIdx.x == 0) {
			for (int i = 0; i < stages + TILES; i++) {
				barrier_init(full(i), 32 + 1);
				barrier_init(empty(i), 8);
			}
			asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // the copy engine sees them
		}
		__syncthreads();
	}

	__device__ __forceinline__ uint32_t own(int i, int tile = 0) const {
		return base + (tile * OWN + i) * 2 * matrix_bytes;
	}
	__device__ __forceinline__ uint32_t stage(int i) const { return own(0, TILES) + i * 2 * matrix_bytes; }
	__device__ __forceinline__ uint32_t sums(int warp) const { return stage(stages) + warp * 32 * D; }
	__device__ __forceinline__ uint32_t rows(int stage) const { return sums(8) + stage * square * 8; }

	// The lanes of the copying warp arrive at full, the first once more for the copy engine. The
	// computing warps arrive at empty. The last pairs are for the tiles' own rows.
	__device__ __forceinline__ uint32_t full(int i) const { return rows(stages) + i * 8; }
	__device__ __forceinline__ uint32_t empty(int i) const { return full(stages + TILES) + i * 8; }

	// columns is a warpgroup's room for sums of columns, every other time the same.
	__device__ __forceinline__ float *columns(int turn) const {
		return (float *)pointer(empty(stages + TILES)) + (2 * turn + threadIdx.x / 256) * 8 * D;
	}

	__device__ __forceinline__ char *pointer(uint32_t address) const { return shared + (address - base); }
};

// each_tile calls f for the block's tiles. It gives the number of the head over the batch, the
// tile's place among the head's by their work, most first, and which of a pair it is. The pair is
// the most and the least work in turn, so that blocks have equal work.
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

// Head is the place of a head's first rows in qkv and in out, and the elements from one row to the
// next.
struct Head {
	long long in, out;
	int stride, width, sequence, number, column;

	__device__ __forceinline__ Head(int head, int T, int heads, int hs) {
		width = heads * hs, stride = 3 * width, sequence = head / heads, number = head % heads, column = number * hs;
		long long row = (long long)sequence * T;
		in = row * stride + column, out = row * width + column;
	}

	// columns is the place of the sums of the columns of 64 rows of qkv. A sequence has as many as
	// fit, and the last.
	__device__ __forceinline__ long long columns(int place, int T) const {
		return ((long long)sequence * ((T + square - 1) / square) + place) * stride + column;
	}
};

// copy_keys fills stages with the squares of 64 keys of a head, and their values, from row on and
// back to last.
template <int OWN, int TILES>
SPMD_FN void copy_keys(const Layout<OWN, TILES> &l, Ring<stages> &stage, const tensor_map &qkv, const Head &h,
	int heads, int row, int last) {
	for (; row >= last; row -= square) {
		barrier_wait(l.empty(stage.at), stage.parity ^ 1);
		uint32_t full = l.full(stage.at);
		if (threadIdx.x == 0) {
			barrier_expect(full, 2 * matrix_bytes);
			copy_square(l.stage(stage.at), qkv, heads + h.number, row, h.sequence, full);
			copy_square(l.stage(stage.at) + matrix_bytes, qkv, 2 * heads + h.number, row, h.sequence, full);
		}
		barrier_arrive_copied(full);
		stage.next();
	}
}

// skip passes over a stage that only the tile's other warpgroup needs.
template <int OWN, int TILES> SPMD_FN void skip(const Layout<OWN, TILES> &l, Ring<stages> &stage) {
	barrier_wait(l.full(stage.at), stage.parity);
	release(l.empty(stage.at));
	stage.next();
}

// each_square has x add n squares. Their scores are in its halves in turn, beginning with the
// first.
template <typename X> SPMD_FN void each_square(X &x, int n) {
#pragma unroll 1
	for (; n > 2; n -= 2) {
		x.template add<0, false>();
		x.template add<1, false>();
	}
	if (n == 2) {
		x.template add<0, false>();
		x.template add<1, true>();
	} else {
		x.template add<0, true>();
	}
}

// The first warpgroup hands most of its registers to the others.
SPMD_FN void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }
SPMD_FN void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }

#endif
