// The kernels of package ddp. All are launched in grids and blocks of one dimension, blocks a
// multiple of 32 threads, any number of blocks but where stated; a length of 0 is legal. What a
// kernel computes does not depend on the grid, but for the rounding of sum_squares_f32.
#include "spmd.cuh"

// part[b] = the share of block b in the sum of the squares of x, in double; the squares are exact.
// part has one element for each block.
//
//	sum_squares_f32(part, x, n I64)
extern "C" __global__ void sum_squares_f32(double *part, const float *x, long long n) {
	double sum = block_sum(thread_sum(x, n, [](float v) { return (double)v * v; }));
	if (threadIdx.x == 0) {
		part[blockIdx.x] = sum;
	}
}

// norm[0] = the root of the sum of part, which sum_squares_f32 wrote; and x scaled by limit / norm,
// unless limit <= 0 or the norm is within it. Every block finds the same norm.
//
//	clip_scale_f32(x, n I64, limit F64, part, parts I32, norm)
extern "C" __global__ void clip_scale_f32(float *x, long long n, double limit, const double *part, int parts, float *norm) {
	double sum = 0;
	for (int i = threadIdx.x; i < parts; i += blockDim.x) {
		sum += part[i];
	}
	double total = sqrt(block_sum(sum));
	if (grid_index() == 0) {
		norm[0] = (float)total;
	}
	if (limit <= 0 || total <= limit) {
		return;
	}
	float scale = (float)(limit / total);
	long long head = min(n, to_aligned(x)), quads = (n - head) / 4, rest = head + 4 * quads;
	float *body = x + head;
	for (long long q = grid_index(); q < quads; q += grid_size()) {
		float4 v = load4(body + 4 * q);
		store4(body + 4 * q, make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale));
	}
	if (grid_index() < head) {
		x[grid_index()] *= scale;
	}
	if (grid_index() < n - rest) {
		x[rest + grid_index()] *= scale;
	}
}

// sum[0] = the sum of the first n elements of part, in double. One block.
//
//	sum_parts_f64(sum, part, n I32)
extern "C" __global__ void sum_parts_f64(double *sum, const double *part, int n) {
	double total = 0;
	for (int i = threadIdx.x; i < n; i += blockDim.x) {
		total += part[i];
	}
	total = block_sum(total);
	if (threadIdx.x == 0) {
		sum[0] = total;
	}
}

// dst += src, n elements each.
//
//	add_f32(dst, src, n I64)
extern "C" __global__ void add_f32(float *dst, const float *src, long long n) {
	long long quads = to_aligned(dst) == 0 && to_aligned(src) == 0 ? n / 4 : 0;
	for (long long q = grid_index(); q < quads; q += grid_size()) {
		float4 a = load4(dst + 4 * q), b = load4(src + 4 * q);
		store4(dst + 4 * q, make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w));
	}
	for (long long i = 4 * quads + grid_index(); i < n; i += grid_size()) {
		dst[i] += src[i];
	}
}

// part[k] = the share of block k in a hash of b that depends on every byte and its place. The terms
// are added modulo 2^64, in which order does not matter. part has one element for each block;
// hash_final_u64 completes the hash.
//
//	hash_part_u64(part, b, bytes I64)
extern "C" __global__ void hash_part_u64(unsigned long long *part, const unsigned char *b, long long bytes) {
	long long words = bytes / 8, rest = 8 * words;
	uint64_t sum = 0;
	if ((uint64_t)b % 8 == 0) {
		const uint64_t *w = (const uint64_t *)b;
#pragma unroll 4
		for (long long i = grid_index(); i < words; i += grid_size()) {
			sum += mix(w[i] + mix(i));
		}
	} else {
		for (long long i = grid_index(); i < words; i += grid_size()) {
			uint64_t word = 0;
			for (int j = 0; j < 8; j++) {
				word |= (uint64_t)b[8 * i + j] << 8 * j;
			}
			sum += mix(word + mix(i));
		}
	}
	for (long long i = rest + grid_index(); i < bytes; i += grid_size()) {
		sum += mix(b[i] + mix(i));
	}
	sum = block_sum(sum);
	if (threadIdx.x == 0) {
		part[blockIdx.x] = sum;
	}
}

// times[point] = the time in nanoseconds; where point is odd what has passed since the point before is added to it.
//
//	stage_clock_i64(times, point I32)
extern "C" __global__ void stage_clock_i64(long long *times, int point) {
	if (grid_index() == 0) {
		long long now;
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
		times[point] = point % 2 == 1 ? times[point] + now - times[point - 1] : now;
	}
}

// sum[0] = the hash of the bytes of which hash_part_u64 wrote parts shares. One block.
//
//	hash_final_u64(sum, part, parts I32, bytes I64)
extern "C" __global__ void hash_final_u64(unsigned long long *sum, const unsigned long long *part, int parts, long long bytes) {
	uint64_t total = 0;
	for (int i = threadIdx.x; i < parts; i += blockDim.x) {
		total += part[i];
	}
	total = block_sum(total);
	if (threadIdx.x == 0) {
		sum[0] = mix(bytes) + total;
	}
}
