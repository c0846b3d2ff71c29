// The framework's own kernels. All are launched in grids and blocks of one dimension, blocks a
// multiple of 32 threads, any number of blocks; a length of 0 is legal. What a kernel computes does
// not depend on the grid.
#include "spmd.cuh"

// dst[i] = the upper 24 bits of mix(mix(seed) + offset + i), over 2^24: UniformBits in builtin.go.
//
//	uniform_f32(dst, n I64, seed U64, offset U64)
extern "C" __global__ void uniform_f32(float *dst, long long n, unsigned long long seed, unsigned long long offset) {
	uint64_t start = mix(seed) + offset;
	for (long long i = grid_index(); i < n; i += grid_size()) {
		dst[i] = (float)(mix(start + i) >> 40) / (1 << 24); // both steps are exact
	}
}

// dst[i] = even for even i, else odd: for the types of 8 bytes, where both are the same, and of 16.
//
//	fill_u64(dst, n I64, even U64, odd U64)
extern "C" __global__ void fill_u64(unsigned long long *dst, long long n, unsigned long long even, unsigned long long odd) {
	for (long long i = grid_index(); i < n; i += grid_size()) {
		dst[i] = i & 1 ? odd : even;
	}
}
