#include "spmd.cuh"

struct pair {
	uint64_t lo, hi;
};

// transpose sets to[j to_stride + i] = from[i from_stride + j] for i below rows, j below cols.
// Blocks of 32 x 8 threads, one along x for every 32 columns, any number along y. A tile goes
// through shared memory, so that rows are read and written.
//
//	transpose<T>(to, from, to_stride I64, from_stride I64, rows I64, cols I64)
template <typename T>
__global__ void __launch_bounds__(256) transpose(T *__restrict__ to, const T *__restrict__ from, long long to_stride,
	long long from_stride, long long rows, long long cols) {
	__shared__ T tile[32][33];
	long long left = (long long)blockIdx.x * 32;
	for (long long top = (long long)blockIdx.y * 32; top < rows; top += (long long)gridDim.y * 32) {
#pragma unroll
		for (int r = threadIdx.y; r < 32; r += 8) {
			if (top + r < rows && left + threadIdx.x < cols)
				tile[r][threadIdx.x] = from[(top + r) * from_stride + left + threadIdx.x];
		}
		__syncthreads();
#pragma unroll
		for (int r = threadIdx.y; r < 32; r += 8) {
			if (left + r < cols && top + threadIdx.x < rows)
				to[(left + r) * to_stride + top + threadIdx.x] = tile[threadIdx.x][r];
		}
		__syncthreads();
	}
}
