#include "spmd.cuh"

// sum[0] = the sum of x, in double. Every block writes its share to part, which has an element for
// each block; the one that finishes last adds them, always in the same order. arrived[0] counts the
// blocks that have finished; it is 0 before a launch and after it, so that a graph can replay it.
extern "C" __global__ void sum_f32(double *sum, double *part, unsigned int *arrived, const float *x, long long n) {
	double mine = block_sum(thread_sum(x, n, [](float v) { return (double)v; }));
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
