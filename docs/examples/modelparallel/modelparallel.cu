#include "spmd.cuh"

extern "C" __global__ void modelparallel_layer(float *y, const float *a, const float *x, int rows, int n) {
	for (int i = grid_index(); i < rows; i += grid_size()) {
		float sum = 0;
		for (int j = 0; j < n; j++) sum += a[i * n + j] * x[j];
		y[i] = fmaxf(0, sum);
	}
}
