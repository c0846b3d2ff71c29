#include "spmd.cuh"

extern "C" __global__ void managed_square(long long *x, long long n) {
	for (long long i = grid_index(); i < n; i += grid_size()) x[i] *= x[i];
}
