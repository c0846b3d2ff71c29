#include "spmd.cuh"

extern "C" __global__ void matvec_part(float *y, const float *a, const float *x, int rows, int cols) {
	for (int i = grid_index(); i < rows; i += grid_size()) {
		float sum = 0;
		for (int j = 0; j < cols; j++) sum += a[j * rows + i] * x[j];
		y[i] = sum;
	}
}
