// sum.go sets the sizes in capitals and is the only place that launches the kernels.
#include "spmd.cuh"

// sum[0] = the sum of x, in double; x is aligned to 16 bytes. All threads have SUM_DEEP loads in flight
// until the end, where those beyond it are left out: a loop over what remains would wait for memory once
// for each element. Every block writes its share to part, which has an element for each block; the one
// that finishes last adds them, always in the same order. arrived[0] counts the blocks that have
// finished; it is 0 before a launch and after it, so that a graph can replay it.
//
//	sum_f32(sum, part, arrived, x, n I64)
extern "C" __global__ void __launch_bounds__(SUM_THREADS, SUM_RESIDENT)
sum_f32(double *sum, double *part, unsigned int *arrived, const float *x, long long n) {
	start_next(); // what adds the ranks' sums
	long long quads = n / 4, step = grid_size();
	double mine = 0;
	for (long long q = grid_index(); q < quads; q += SUM_DEEP * step) {
		float4 v[SUM_DEEP];
#pragma unroll
		for (int j = 0; j < SUM_DEEP; j++) {
			v[j] = q + j * step < quads ? load4(x + 4 * (q + j * step)) : make_float4(0, 0, 0, 0);
		}
#pragma unroll
		for (int j = 0; j < SUM_DEEP; j++) {
			mine += ((double)v[j].x + (double)v[j].y) + ((double)v[j].z + (double)v[j].w);
		}
	}
	if (grid_index() < n % 4) {
		mine += x[4 * quads + grid_index()];
	}
	mine = block_sum(mine);
	__shared__ bool last;
	if (threadIdx.x == 0) {
		part[blockIdx.x] = mine;
		__threadfence(); // the share is there for all blocks before it is counted
		last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1; // the last one sets it back to 0
	}
	__syncthreads();
	if (!last) {
		return;
	}
	__threadfence(); // and is read after the count
	double total = 0;
	for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
		total += __ldcg(part + i);
	}
	total = block_sum(total);
	if (threadIdx.x == 0) {
		sum[0] = total;
	}
}
