#include "spmd.cuh"

extern "C" __global__ void graph_axpb(double *x, double a, double b, int n) {
	for (int i = grid_index(); i < n; i += grid_size()) x[i] = a * x[i] + b;
}
