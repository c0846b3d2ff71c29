#include "spmd.cuh"

extern "C" __global__ void sequence_below(long long *count, const int *all, const int *mine, int n, int m) {
	for (int i = grid_index(); i < m; i += grid_size()) {
		count[i] = 0;
		for (int j = 0; j < n; j++) count[i] += all[j] < mine[i];
	}
}
