// Tiles of rows in shared memory, and their products on tensor cores. mma.go puts this file between
// tensor.cuh and mma.cu.
//
// A warp works on MT·16 rows of D columns. Fragments of scores become operands of the next product
// without leaving the registers. Rows that do not exist are zeros in shared memory, and so are
// columns beyond the size of a head, hs.

#if __CUDA_ARCH__ >= 800

// load_tile starts the copy of ROWS rows of hs elements, stride < 2^24 apart in global memory. Only
// rows of them exist.
template <int D, int ROWS, int THREADS>
SPMD_FN void load_tile(uint32_t tile, const bf16 *from, int stride, int rows, int hs) {
	const int chunks = D / 8, step = THREADS / chunks;
	static_assert(THREADS % chunks == 0 && ROWS % step == 0, "every thread copies as many chunks");
	int c = threadIdx.x % chunks, r = threadIdx.x / chunks;
	const bf16 *at = from + r * stride + c * 8;
	bool beyond = c * 8 >= hs;
#pragma unroll
	for (int i = 0; i < ROWS / step; i++) {
		copy_async<16>(tile + chunk_at<D>(r + i * step, c), at + i * step * stride, beyond || r + i * step >= rows);
	}
}

// Operand is the operand a of a warp: MT·16 rows of D columns. It is kept in registers, or read
// anew from shared memory for each product.
template <int D, int MT, bool KEEP> struct Operand;

template <int D, int MT> struct Operand<D, MT, true> {
	uint32_t r[MT][D / 16][4];

	__device__ __forceinline__ explicit Operand(uint32_t rows) {
		uint32_t at = rows + lane_along<D>();
#pragma unroll
		for (int m = 0; m < MT; m++) {
#pragma unroll
			for (int k = 0; k < D / 16; k++) {
				load_matrices(r[m][k], (at ^ k << 5) + m * 32 * D);
			}
		}
	}

	__device__ __forceinline__ void get(uint32_t (&a)[4], int m, int k) const {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			a[i] = r[m][k][i];
		}
	}
};

template <int D, int MT> struct Operand<D, MT, false> {
	uint32_t at;

	__device__ __forceinline__ explicit Operand(uint32_t rows) : at(rows + lane_along<D>()) {}

	__device__ __forceinline__ void get(uint32_t (&a)[4], int m, int k) const {
		load_matrices(a, (at ^ k << 5) + m * 32 * D);
	}
};

template <int M, int N> SPMD_FN void clear(float (&c)[M][N][4]) {
#pragma unroll
	for (int m = 0; m < M; m++) {
#pragma unroll
		for (int n = 0; n < N; n++) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				c[m][n][i] = 0;
			}
		}
	}
}

// products is c = a bT; b is the address of N rows of D columns, with lane_across.
template <int D, int MT, int N, bool KEEP>
SPMD_FN void products(float (&c)[MT][N / 8][4], const Operand<D, MT, KEEP> &a, uint32_t b) {
	clear(c);
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		uint32_t ra[MT][4];
#pragma unroll
		for (int m = 0; m < MT; m++) {
			a.get(ra[m], m, k);
		}
#pragma unroll
		for (int n = 0; n < N / 16; n++) {
			uint32_t rb[4];
			load_matrices(rb, (b ^ k << 5) + n * 32 * D);
#pragma unroll
			for (int m = 0; m < MT; m++) {
				multiply_add(c[m][2 * n], ra[m], rb[0], rb[1]);
				multiply_add(c[m][2 * n + 1], ra[m], rb[2], rb[3]);
			}
		}
	}
}

// add_weighted is c += w b, w rounded to bfloat16; b is the address of N rows of D columns, with
// lane_along.
template <int D, int MT, int N>
SPMD_FN void add_weighted(float (&c)[MT][D / 8][4], const float (&w)[MT][N / 8][4], uint32_t b) {
#pragma unroll
	for (int k = 0; k < N / 16; k++) {
		uint32_t ra[MT][4];
#pragma unroll
		for (int m = 0; m < MT; m++) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				ra[m][i] = pack(w[m][2 * k + i / 2][i % 2 * 2], w[m][2 * k + i / 2][i % 2 * 2 + 1]);
			}
		}
#pragma unroll
		for (int n = 0; n < D / 16; n++) {
			uint32_t rb[4];
			load_matrices_transposed(rb, (b ^ n << 5) + k * 32 * D);
#pragma unroll
			for (int m = 0; m < MT; m++) {
				multiply_add(c[m][2 * n], ra[m], rb[0], rb[1]);
				multiply_add(c[m][2 * n + 1], ra[m], rb[2], rb[3]);
			}
		}
	}
}

// mask sets to -infinity the scores of keys that a query does not see. Rows are queries and columns
// keys, or transposed the other way round.
template <int MT, int CHUNKS>
SPMD_FN void mask(float (&s)[MT][CHUNKS][4], int row0, int column0, bool transposed) {
	int ahead = column0 - row0 + threadIdx.x % 4 * 2 - threadIdx.x % 32 / 4;
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int n = 0; n < CHUNKS; n++) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int beyond = ahead + n * 8 + i % 2 - m * 16 - i / 2 * 8; // column - row
				if (transposed ? beyond < 0 : beyond > 0) {
					s[m][n][i] = __int_as_float(0xff800000);
				}
			}
		}
	}
}

// store_rows writes a warp's MT·16 rows of sums; only rows of them exist. They go through the
// warp's own rows of a tile that nothing reads any more. scale has the factor of each row.
template <int D, int MT>
SPMD_FN void store_rows(bf16 *to, long long stride, int rows, int hs, char *tile, const float (&c)[MT][D / 8][4],
	const float (&scale)[MT][2]) {
	int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	__syncwarp(); // the others may still read the tile
#pragma unroll
	for (int m = 0; m < MT; m++) {
#pragma unroll
		for (int n = 0; n < D / 8; n++) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				uint32_t at = chunk_at<D>(m * 16 + h * 8 + g, n) + 4 * t;
				*(uint32_t *)(tile + at) = pack(c[m][n][2 * h] * scale[m][h], c[m][n][2 * h + 1] * scale[m][h]);
			}
		}
	}
	__syncwarp();
	const int chunks = D / 8, step = 32 / chunks;
	int chunk = lane % chunks;
#pragma unroll
	for (int i = 0; i < MT * 16 / step; i++) {
		int r = i * step + lane / chunks;
		if (r < rows && chunk * 8 < hs) {
			*(uint4 *)(to + r * stride + chunk * 8) = *(const uint4 *)(tile + chunk_at<D>(r, chunk));
		}
	}
}

// Place is the work of a block: one tile of one head. Blocks of one head follow each other, since
// they share its rows in the cache; those with most to do come first.
struct Place {
	int head, tile;          // head counts over the batch
	long long stride, width; // elements from row to row of qkv, and of out
	long long in, out;       // the head's first element in qkv, and in out

	__device__ __forceinline__ Place(int tiles, bool last_first, int T, int heads, int hs) {
		head = blockIdx.x / tiles, tile = blockIdx.x % tiles;
		if (last_first) {
			tile = tiles - 1 - tile;
		}
		width = (long long)heads * hs, stride = 3 * width;
		long long first = (long long)(head / heads) * T;
		int column = head % heads * hs;
		in = first * stride + column, out = first * width + column;
	}
};

#endif
