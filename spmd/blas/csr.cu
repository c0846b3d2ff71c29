#include "spmd.cuh"

// y[r] is the sum of value[k] x[column[k]] over the elements k of row r, from start[r] to
// start[r+1]-1. Columns from own on are in halo. LANES neighbouring threads share a row: each takes
// every LANES-th element.
//
//	csr_product<T, LANES>(y, start, column, value, x, halo, own I32, rows I32), LANES threads for each row
template <typename T, int LANES>
__global__ void __launch_bounds__(256) csr_product(T *__restrict__ y, const int *__restrict__ start,
	const int *__restrict__ column,
		const T *__restrict__ value, const T *__restrict__ x, const T *__restrict__ halo, int own, int rows) {
	int row = (int)(grid_index() / LANES);
	T sum = 0;
	if (row < rows) {
		int end = start[row + 1];
		for (int k = start[row] + (int)(threadIdx.x % LANES); k < end; k += LANES) {
			int c = column[k];
			sum += value[k] * (c < own ? x[c] : halo[c - own]);
		}
	}
#pragma unroll
	for (int d = LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
	if (row < rows && threadIdx.x % LANES == 0) y[row] = sum;
}
