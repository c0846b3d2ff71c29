// y = W x for matrices stored by rows and by columns. product.go sets the sizes in capitals and is
// the only place that launches the kernels.
#include "spmd.cuh"

// vec is 16 bytes of T: what a thread loads at once.
template <typename T> struct vec;

template <> struct vec<float> {
	static const int n = 4;
	SPMD_FN void unpack(float *v, uint4 raw) {
		v[0] = __uint_as_float(raw.x), v[1] = __uint_as_float(raw.y);
		v[2] = __uint_as_float(raw.z), v[3] = __uint_as_float(raw.w);
	}
};

template <> struct vec<bf16> {
	static const int n = 8;
	SPMD_FN void unpack(float *v, uint4 raw) {
		const uint32_t pair[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			v[2 * i] = __uint_as_float(pair[i] << 16);
			v[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
		}
	}
};

// load_once reads 16 bytes that nobody reads again and no kernel writes meanwhile, so that they
// displace nothing in the caches. The instructions with hints came with CUDA 11.4.
SPMD_FN uint4 load_once(const uint4 *p) {
#if LOAD_HINT > 0 && !defined SPMD_EMULATED && (__CUDACC_VER_MAJOR__ > 11 || __CUDACC_VER_MAJOR__ == 11 && __CUDACC_VER_MINOR__ >= 4)
	uint4 v;
#if LOAD_HINT == 1
	asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
	    : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
#elif LOAD_HINT == 2
	asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
	    : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
#else
	uint64_t policy;
	asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
	    : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
#endif
	return v;
#else
	return __ldcs(p);
#endif
}

// is_last counts the blocks of a column of the grid that have written their part of the sums, and
// says, to all threads of the block, whether it is the last. arrived has an element for each column;
// it is 0 before a launch and after it, so that a graph can replay it.
SPMD_FN bool is_last(unsigned int *arrived) {
	__shared__ bool last;
	__threadfence(); // the part is there for all blocks before it is counted
	__syncthreads();
	if (threadIdx.x == 0) {
		last = atomicInc(arrived + blockIdx.x, gridDim.y - 1) == gridDim.y - 1; // the last one sets it back to 0
	}
	__syncthreads();
	__threadfence(); // and the others' are read after the count
	return last;
}

// multiply_add adds to sum[r] the products of rows r of W and x, vectors q, q + ROW_THREADS, ... of
// both, U of them. All loads are in flight before the first is used.
template <typename T, int U>
SPMD_FN void multiply_add(float (&sum)[ROW_ROWS], const uint4 *const (&w)[ROW_ROWS], const uint4 *x, long long q) {
	uint4 wv[U][ROW_ROWS], xv[U];
#pragma unroll
	for (int u = 0; u < U; u++) {
#pragma unroll
		for (int r = 0; r < ROW_ROWS; r++) {
			wv[u][r] = load_once(w[r] + q + u * ROW_THREADS);
		}
		xv[u] = __ldg(x + q + u * ROW_THREADS);
	}
#pragma unroll
	for (int u = 0; u < U; u++) {
		float b[vec<T>::n];
		vec<T>::unpack(b, xv[u]);
#pragma unroll
		for (int r = 0; r < ROW_ROWS; r++) {
			float a[vec<T>::n];
			vec<T>::unpack(a, wv[u][r]);
#pragma unroll
			for (int i = 0; i < vec<T>::n; i++) {
				sum[r] = fmaf(a[i], b[i], sum[r]);
			}
		}
	}
}

// y = W x for W stored by rows, stride elements apart, which begin at multiples of 16 bytes; what lies
// between a row's end and the next is not read but for the 16 bytes that the end is in. Block (i, k)
// takes segment k of ROW_ROWS rows; a segment is of that many vectors. Blocks that run at the same
// time share their segment of x, so it comes from the L1 cache. part has pitch elements for each
// segment. The last block of some rows adds their parts in the order of the segments: every run has
// the same bits.
template <typename T>
SPMD_FN void by_rows(float *y, const T *w, const T *x, float *part, unsigned int *arrived, long long rows, long long cols,
                     long long stride, long long pitch, long long segment) {
	const int warps = ROW_THREADS / 32;
	start_next(); // the all-reduce of y
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	long long row = (long long)blockIdx.x * ROW_ROWS;
	const T *first[ROW_ROWS];
	const uint4 *from[ROW_ROWS];
	float sum[ROW_ROWS];
#pragma unroll
	for (int r = 0; r < ROW_ROWS; r++) {
		first[r] = w + min(row + r, rows - 1) * stride; // beyond the last row: that one, for nothing
		from[r] = (const uint4 *)first[r];
		sum[r] = 0;
	}
	long long q = blockIdx.y * segment + threadIdx.x, end = min(cols / vec<T>::n, (blockIdx.y + 1) * segment);
#pragma unroll 1
	for (; q + (ROW_UNROLL - 1) * ROW_THREADS < end; q += ROW_UNROLL * ROW_THREADS) {
		multiply_add<T, ROW_UNROLL>(sum, from, (const uint4 *)x, q);
	}
#pragma unroll 1
	for (; q < end; q += ROW_THREADS) {
		multiply_add<T, 1>(sum, from, (const uint4 *)x, q);
	}
	if (blockIdx.y == gridDim.y - 1 && threadIdx.x < cols % vec<T>::n) {
		long long c = cols - 1 - threadIdx.x;
#pragma unroll
		for (int r = 0; r < ROW_ROWS; r++) {
			sum[r] = fmaf(to_float(first[r][c]), to_float(x[c]), sum[r]);
		}
	}
	__shared__ float of_warp[ROW_ROWS][warps];
#pragma unroll
	for (int r = 0; r < ROW_ROWS; r++) {
		sum[r] = warp_sum(sum[r]);
		if (lane == 0) {
			of_warp[r][warp] = sum[r];
		}
	}
	__syncthreads();
	for (int r = threadIdx.x; r < ROW_ROWS; r += ROW_THREADS) {
		float s = 0;
		for (int i = 0; i < warps; i++) {
			s += of_warp[r][i];
		}
		if (row + r < rows) {
			part[blockIdx.y * pitch + row + r] = s;
		}
	}
	if (!is_last(arrived)) {
		return;
	}
	for (int r = warp; r < ROW_ROWS && row + r < rows; r += warps) {
		float s = 0;
		for (int k = lane; k < gridDim.y; k += 32) {
			s += __ldcg(part + k * pitch + row + r);
		}
		s = warp_sum(s);
		if (lane == 0) {
			y[row + r] = s;
		}
	}
}

// multiply_add_columns adds to sum the products of U columns of W, at w and step apart, and their
// elements of x. All loads are in flight before the first is used.
template <typename T, int U>
SPMD_FN void multiply_add_columns(float (&sum)[vec<T>::n], const uint4 *w, long long step, const float *x) {
	const int groups = COL_THREADS / COL_WIDE;
	uint4 wv[U];
#pragma unroll
	for (int u = 0; u < U; u++) {
		wv[u] = load_once(w + u * step);
	}
#pragma unroll
	for (int u = 0; u < U; u++) {
		float a[vec<T>::n];
		vec<T>::unpack(a, wv[u]);
#pragma unroll
		for (int i = 0; i < vec<T>::n; i++) {
			sum[i] = fmaf(a[i], x[u * groups], sum[i]);
		}
	}
}

// y = W x for W stored by columns, stride elements apart, which begin at multiples of 16 bytes; the
// 16 bytes that a column's end is in are read and their rest is ignored. Block (i, k) takes segment k
// of COL_WIDE vectors of rows; a segment is of that many columns, dealt out to groups of COL_WIDE
// threads. part has pitch elements for each segment, a multiple of 4. The rest is as in by_rows.
template <typename T>
SPMD_FN void by_columns(float *y, const T *w, const T *x, float *part, unsigned int *arrived, long long rows, long long cols,
                        long long stride, long long pitch, long long segment) {
	const int n = vec<T>::n, tile = COL_WIDE * n, groups = COL_THREADS / COL_WIDE;
	start_next();
	int at = threadIdx.x % COL_WIDE, group = threadIdx.x / COL_WIDE;
	long long row = (long long)blockIdx.x * tile;
	bool mine = row + at * n < rows;
	long long c0 = blockIdx.y * segment, end = min(cols, c0 + segment), step = stride / n * groups;
	__shared__ float xs[COL_STAGE];
	float sum[n];
#pragma unroll
	for (int i = 0; i < n; i++) {
		sum[i] = 0;
	}
	for (; c0 < end; c0 += COL_STAGE) {
		int count = (int)min((long long)COL_STAGE, end - c0);
		__syncthreads(); // xs may still be read
		for (int c = threadIdx.x; c < count; c += COL_THREADS) {
			xs[c] = to_float(x[c0 + c]);
		}
		__syncthreads();
		if (!mine) {
			continue;
		}
		int c = group;
		const uint4 *from = (const uint4 *)(w + (c0 + c) * stride + row) + at;
#pragma unroll 1
		for (; c + (COL_UNROLL - 1) * groups < count; c += COL_UNROLL * groups, from += COL_UNROLL * step) {
			multiply_add_columns<T, COL_UNROLL>(sum, from, step, xs + c);
		}
#pragma unroll 1
		for (; c < count; c += groups, from += step) {
			multiply_add_columns<T, 1>(sum, from, step, xs + c);
		}
	}
	__shared__ float4 quads[groups][tile / 4]; // and as floats:
	float(*of_group)[tile] = (float(*)[tile])quads;
#pragma unroll
	for (int i = 0; i < n; i++) {
		of_group[group][at * n + i] = sum[i];
	}
	__syncthreads();
	for (int r = threadIdx.x; r < tile && row + r < rows; r += COL_THREADS) {
		float s = 0;
		for (int g = 0; g < groups; g++) {
			s += of_group[g][r];
		}
		part[blockIdx.y * pitch + row + r] = s;
	}
	if (!is_last(arrived)) {
		return;
	}
	for (int v = at; v < tile / 4; v += COL_WIDE) {
		float4 s = make_float4(0, 0, 0, 0);
#pragma unroll 8
		for (int k = group; k < gridDim.y; k += groups) {
			float4 p = row + 4 * v < rows ? __ldcg((const float4 *)(part + k * pitch + row) + v) : s;
			s = make_float4(s.x + p.x, s.y + p.y, s.z + p.z, s.w + p.w);
		}
		quads[group][v] = s;
	}
	__syncthreads();
	for (int r = threadIdx.x; r < tile && row + r < rows; r += COL_THREADS) {
		float s = 0;
		for (int g = 0; g < groups; g++) {
			s += of_group[g][r];
		}
		y[row + r] = s;
	}
}

//	matvec_rows_T, matvec_columns_T(y, w, x, part, arrived, rows I64, cols I64, stride I64, pitch I64, segment I64)
#define KERNELS(T, S)                                                                                                  \
	extern "C" __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS)                                              \
	matvec_rows_##S(float *y, const T *w, const T *x, float *part, unsigned int *arrived, long long rows,              \
	                long long cols, long long stride, long long pitch, long long segment) {                            \
		by_rows<T>(y, w, x, part, arrived, rows, cols, stride, pitch, segment);                                        \
	}                                                                                                                  \
	extern "C" __global__ void __launch_bounds__(COL_THREADS, COL_BLOCKS)                                              \
	matvec_columns_##S(float *y, const T *w, const T *x, float *part, unsigned int *arrived, long long rows,           \
	                   long long cols, long long stride, long long pitch, long long segment) {                         \
		by_columns<T>(y, w, x, part, arrived, rows, cols, stride, pitch, segment);                                     \
	}
KERNELS(float, f32)
KERNELS(bf16, bf16)
