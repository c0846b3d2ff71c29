// stencil.cu for the host: its threads need nothing of each other, and run one after the other.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __restrict__ __restrict
#define __launch_bounds__(...)

struct Dim { unsigned x, y, z; };
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

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

// every calls f in each thread of a launch, whose dims are blocks and threads of a block.
template <typename D, typename F> static void every(const D *dims, F f) {
	gridDim = {(unsigned)dims[0], (unsigned)dims[1], (unsigned)dims[2]};
	blockDim = {(unsigned)dims[3], (unsigned)dims[4], (unsigned)dims[5]};
	for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
	for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
	for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
	for (threadIdx.z = 0; threadIdx.z < blockDim.z; threadIdx.z++)
	for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
	for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) f();
}
