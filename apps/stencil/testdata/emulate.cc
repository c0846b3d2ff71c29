// A test double of the device for stencil.cu, compiled for the host: its threads need nothing of each other, and run one
// after the other. It is built with sanitizers, which find accesses outside of memory and such as are not aligned.
// Standard input is launches, each a header and its arrays:
//
//	8 long long: kernel (2: step2, 3: step3, 1: frame), bytes of an element, elements of a field, of the faces, planes of a
//	             run, only_pack, p where beside is 2^-p, 0
//	6 long long: blocks and threads of a block, in x, y and z
//	struct box; out; in; sent; received
//
// Standard output is out and sent of each.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <math.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __restrict__ __restrict
#define __launch_bounds__(...)

struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint32_t __float_as_uint(float f) { union { float f; uint32_t u; } v; v.f = f; return v.u; }
static float __uint_as_float(uint32_t u) { union { float f; uint32_t u; } v; v.u = u; return v.f; }
template <typename T> static T min(T a, T b) { return b < a ? b : a; }
static void __syncthreads() {}
template <typename T> static T __shfl_xor_sync(unsigned, T v, int) { abort(); return v; }

#include "../box.h"
#include "../stencil.cu"

static void all(void *p, size_t n) {
	if (fread(p, 1, n, stdin) != n) abort();
}

template <typename T> struct kernel {
	void (*step2)(T *, const T *, T, T, box, long long), (*step3)(T *, const T *, T, T, box, long long);
	void (*frame)(T *, const T *, T *, const T *, T, T, box, int);
};

template <typename T> static void launch(kernel<T> k, const long long *head, const box &b) {
	long long n = head[2], faces = head[3];
	T *array[4];
	for (int i = 0; i < 4; i++) {
		size_t bytes = (i < 2 ? n : faces) * sizeof(T);
		array[i] = (T *)aligned_alloc(16, (bytes + 15) / 16 * 16);
		all(array[i], bytes);
	}
	T beside = ldexp(1, -head[6]), centre = 1 - 2 * b.dims * beside;
	for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
	for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
	for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
	for (threadIdx.z = 0; threadIdx.z < blockDim.z; threadIdx.z++)
	for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
	for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) {
		if (head[0] == 1) k.frame(array[0], array[1], array[2], array[3], centre, beside, b, head[5]);
		else (head[0] == 2 ? k.step2 : k.step3)(array[0], array[1], centre, beside, b, head[4]);
	}
	fwrite(array[0], sizeof(T), n, stdout);
	fwrite(array[2], sizeof(T), faces, stdout);
	for (int i = 0; i < 4; i++) free(array[i]);
}

int main() {
	long long head[8], grid[6];
	while (fread(head, sizeof head, 1, stdin) == 1) {
		box b;
		all(grid, sizeof grid);
		all(&b, sizeof b);
		gridDim = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]};
		blockDim = {(unsigned)grid[3], (unsigned)grid[4], (unsigned)grid[5]};
		if (head[1] == 4) launch<float>({step2_f32, step3_f32, frame_f32}, head, b);
		else launch<double>({step2_f64, step3_f64, frame_f64}, head, b);
	}
}
