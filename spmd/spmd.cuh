// What CUDA sources of kernels include: #include "spmd.cuh". It needs no other header and compiles
// as C++14 with NVRTC 11.2 and newer. Types as on 64-bit Linux.
//
// Functions named after a warp or a block are called by all its threads together, in blocks of one
// dimension whose number of threads is a multiple of 32 and at most 1024. Their results are the
// same on all of these threads, and the same bits in every run.
#ifndef SPMD_CUH
#define SPMD_CUH

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;

#define SPMD_FN static __device__ __forceinline__

// The floats of 16 and 8 bits, as Go's spmd.BF16, spmd.F16, spmd.F8E4M3 and spmd.F8E5M2: for storage; compute in float.
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
struct f8e4m3 { uint8_t bits; };
struct f8e5m2 { uint8_t bits; };

// What Buffer.TensorMap passes: the operand of cp.async.bulk.tensor. A kernel's parameter is const __grid_constant__.
struct alignas(64) tensor_map { char opaque[128]; };

// to_float is the value of x, which float holds exactly. NaNs keep their payload.
SPMD_FN float to_float(float x) { return x; }

SPMD_FN float to_float(bf16 x) { return __uint_as_float((uint32_t)x.bits << 16); }

SPMD_FN float to_float(f16 x) {
	if ((x.bits & 0x7c00) == 0x7c00) { // infinity, NaN
		return __uint_as_float((uint32_t)(x.bits & 0x8000) << 16 | 0x7f800000u | (uint32_t)(x.bits & 0x3ff) << 13);
	}
	float r;
#ifdef SPMD_EMULATED
	r = __uint_as_float((uint32_t)(x.bits & 0x7fff) << 13) * 0x1p112f;
	return x.bits >> 15 ? -r : r;
#else
	asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
	return r;
#endif
}

SPMD_FN float to_float(f8e5m2 x) { return to_float(f16{(uint16_t)(x.bits << 8)}); }

SPMD_FN float to_float(f8e4m3 x) {
	uint32_t size = x.bits & 0x7f, sign = (uint32_t)(x.bits & 0x80) << 24;
	float v = size < 8 ? size * (1.0f / 512) : __uint_as_float(size == 0x7f ? 0x7fffffff : (size << 20) + (120u << 23));
	return __uint_as_float(__float_as_uint(v) | sign);
}

// from_float<T> rounds x to the nearest T, ties to even, with the bits that Go's ToBF16 and ToF16
// give. A NaN stays a NaN; as bf16 it is 0x7fff from compute capability 8.0 on, where the hardware
// converts, and before it keeps its sign and what fits of its payload, as in Go.
template <typename T> SPMD_FN T from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }

template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
	bf16 r;
#if __CUDA_ARCH__ >= 800
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
#else
	uint32_t b = __float_as_uint(x);
	r.bits = (b & 0x7fffffffu) > 0x7f800000u ? b >> 16 | 0x40 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
#endif
	return r;
}

template <> __device__ __forceinline__ f16 from_float<f16>(float x) {
	uint32_t b = __float_as_uint(x);
	f16 r;
	if ((b & 0x7fffffffu) > 0x7f800000u) {
		uint32_t payload = b >> 13 & 0x3ff; // without its low bits a NaN must not become infinity
		r.bits = b >> 16 & 0x8000 | 0x7c00 | (payload ? payload : 0x200);
	} else {
#ifdef SPMD_EMULATED
		uint32_t size = b & 0x7fffffffu, whole = size - 0x38000000u;
		// A subnormal is the bits of a sum whose last place has the unit of subnormals.
		uint32_t v = size >= 0x47800000u ? 0x7c00 : size < 0x38800000u ? __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u
		           : (whole + 0xfff + (whole >> 13 & 1)) >> 13;
		r.bits = (uint16_t)(b >> 16 & 0x8000 | v);
#else
		asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
#endif
	}
	return r;
}

#if __CUDA_ARCH__ >= 900 || __CUDA_ARCH__ == 890 && (__CUDACC_VER_MAJOR__ > 12 || __CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 1)
#define CONVERTS_TO_EIGHT
#endif

// round_to_eight rounds x to a float of 8 bits with FRACTION bits of fraction, and that BIAS of the exponent, where the hardware
// does not. MOST is the code of the largest, which what lies beyond becomes.
template <uint32_t FRACTION, uint32_t BIAS, uint32_t MOST> SPMD_FN uint32_t round_to_eight(float x) {
	const uint32_t drop = 23 - FRACTION, first = (127 - BIAS) << 23, shift = first + ((24 - FRACTION) << 23);
	uint32_t size = __float_as_uint(x) & 0x7fffffffu, sign = __float_as_uint(x) >> 24 & 0x80;
	if (size > 0x7f800000u) return 0x7f; // NaN
	if (size >= (MOST << drop) + first) return sign | MOST;
	// The sum of what is subnormal or zero with a power of two whose last place has its unit is rounded to that.
	if (size < first + (1u << 23)) return sign | __float_as_uint(__uint_as_float(size) + __uint_as_float(shift)) - shift;
	return sign | (size - first + (1u << drop - 1) - 1 + (size >> drop & 1)) >> drop;
}

// e4m3_pair is from_float<f8e4m3> of a and, in the upper half, of b: one conversion for both where the hardware
// has one. What lies beyond 448 in size, infinities too, becomes 448.
SPMD_FN uint16_t e4m3_pair(float a, float b) {
#ifdef CONVERTS_TO_EIGHT
	uint16_t r;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(b), "f"(a));
	return r;
#else
	return round_to_eight<3, 7, 0x7e>(a) | round_to_eight<3, 7, 0x7e>(b) << 8;
#endif
}

// e5m2_pair is e4m3_pair for f8e5m2. What lies beyond 57344 in size becomes 57344.
SPMD_FN uint16_t e5m2_pair(float a, float b) {
#ifdef CONVERTS_TO_EIGHT
	uint16_t r;
	asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(b), "f"(a));
	return r;
#else
	return round_to_eight<2, 15, 0x7b>(a) | round_to_eight<2, 15, 0x7b>(b) << 8;
#endif
}

// A NaN becomes 0x7f.
template <> __device__ __forceinline__ f8e4m3 from_float<f8e4m3>(float x) {
	f8e4m3 r;
	r.bits = e4m3_pair(x, 0) & 0xff;
	return r;
}

template <> __device__ __forceinline__ f8e5m2 from_float<f8e5m2>(float x) {
	f8e5m2 r;
	r.bits = e5m2_pair(x, 0) & 0xff;
	return r;
}

// from_floats<T> is from_float<T> of a and, in the upper half, of b: one conversion for both.
template <typename T> SPMD_FN uint32_t from_floats(float a, float b) {
	static_assert(sizeof(T) == 2, "bf16 or f16");
	return from_float<T>(a).bits | (uint32_t)from_float<T>(b).bits << 16;
}

#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ uint32_t from_floats<bf16>(float a, float b) {
	uint32_t r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
	return r;
}
#endif

// load4 and store4 move 4 elements in one access, of 16 bytes for float and 8 for the 16-bit types;
// load8 and store8 move 8, of the 16-bit types in one access of 16 bytes. p is aligned to the access.
SPMD_FN float4 load4(const float *p) { return *(const float4 *)p; }

template <typename T> SPMD_FN float4 load4(const T *p) {
	static_assert(sizeof(T) == 2, "float, bf16 or f16");
	union { uint2 raw; T v[4]; } u;
	u.raw = *(const uint2 *)p;
	return make_float4(to_float(u.v[0]), to_float(u.v[1]), to_float(u.v[2]), to_float(u.v[3]));
}

SPMD_FN void store4(float *p, float4 v) { *(float4 *)p = v; }

template <typename T> SPMD_FN void store4(T *p, float4 v) {
	*(uint2 *)p = make_uint2(from_floats<T>(v.x, v.y), from_floats<T>(v.z, v.w));
}

SPMD_FN void load8(float (&v)[8], const float *p) {
	float4 a = load4(p), b = load4(p + 4);
	v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
	v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

template <typename T> SPMD_FN void load8(float (&v)[8], const T *p) {
	static_assert(sizeof(T) == 2, "float, bf16 or f16");
	union { uint4 raw; T v[8]; } u;
	u.raw = *(const uint4 *)p;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		v[i] = to_float(u.v[i]);
	}
}

SPMD_FN void store8(float *p, const float (&v)[8]) {
	store4(p, make_float4(v[0], v[1], v[2], v[3]));
	store4(p + 4, make_float4(v[4], v[5], v[6], v[7]));
}

template <typename T> SPMD_FN void store8(T *p, const float (&v)[8]) {
	*(uint4 *)p = make_uint4(from_floats<T>(v[0], v[1]), from_floats<T>(v[2], v[3]), from_floats<T>(v[4], v[5]), from_floats<T>(v[6], v[7]));
}

// Of 8 bits, 8 elements are 8 bytes.
SPMD_FN void store8(f8e4m3 *p, const float (&v)[8]) {
	*(uint2 *)p = make_uint2(e4m3_pair(v[0], v[1]) | (uint32_t)e4m3_pair(v[2], v[3]) << 16, e4m3_pair(v[4], v[5]) | (uint32_t)e4m3_pair(v[6], v[7]) << 16);
}

SPMD_FN void store8(f8e5m2 *p, const float (&v)[8]) {
	*(uint2 *)p = make_uint2(e5m2_pair(v[0], v[1]) | (uint32_t)e5m2_pair(v[2], v[3]) << 16, e5m2_pair(v[4], v[5]) | (uint32_t)e5m2_pair(v[6], v[7]) << 16);
}

// to_aligned is how many elements lie between p and the first that an access of 16 bytes may start at.
template <typename T> SPMD_FN long long to_aligned(const T *p) { return (-(uint64_t)p & 15) / sizeof(T); }

// grid_index numbers the threads of a grid of one dimension, grid_size counts them: the start and
// the step of a loop in which they share out any number of elements.
SPMD_FN long long grid_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
SPMD_FN long long grid_size() { return (long long)gridDim.x * blockDim.x; }

// start_next, called first in a kernel, hides the start of a small all-reduce that follows it in the
// stream: that is launched once all blocks have come here or ended, as far as there is room for it, and
// waits on the device until this kernel is over. Before compute capability 9.0 it does nothing.
SPMD_FN void start_next() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// wait_previous returns when the kernels ahead in the stream are over and what they wrote is seen: a kernel
// that is launched programmatically (Grid in Go) calls it in every thread before it touches what they touch.
// In other launches, and before compute capability 9.0, it returns at once.
SPMD_FN void wait_previous() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// warp_sum and warp_max are over the threads of a warp. In each step both partners compute the same
// pair, so all threads have the same bits.
template <typename T> SPMD_FN T warp_sum(T v) {
#pragma unroll
	for (int d = 16; d > 0; d /= 2) {
		v += __shfl_xor_sync(0xffffffffu, v, d);
	}
	return v;
}

template <typename T> SPMD_FN T warp_max(T v) {
#pragma unroll
	for (int d = 16; d > 0; d /= 2) {
		v = max(v, __shfl_xor_sync(0xffffffffu, v, d));
	}
	return v;
}

// share_warps gives every warp the values of all warps of the block, one for each thread, and none
// to the threads beyond them.
template <typename T> SPMD_FN T share_warps(T v, T none) {
	__shared__ T part[32];
	int lane = threadIdx.x % 32;
	__syncthreads(); // part may still be read, by an earlier call
	if (lane == 0) {
		part[threadIdx.x / 32] = v;
	}
	__syncthreads();
	return lane < blockDim.x / 32 ? part[lane] : none;
}

// block_sum and block_max are over the threads of the block.
template <typename T> SPMD_FN T block_sum(T v) { return warp_sum(share_warps(warp_sum(v), (T)0)); }

template <typename T> SPMD_FN T block_max(T v) {
	v = warp_max(v);
	return warp_max(share_warps(v, v));
}

// quads_sum is thread_sum for whole quads of elements, which load reads: many loads are in flight
// before the first is used.
template <typename L, typename F> SPMD_FN double quads_sum(long long quads, L load, F f) {
	const int deep = 8;
	long long q = grid_index(), step = grid_size();
	double sum = 0;
	float4 v[deep];
	for (; q + (deep - 1) * step < quads; q += deep * step) {
#pragma unroll
		for (int j = 0; j < deep; j++) {
			v[j] = load(q + j * step);
		}
#pragma unroll
		for (int j = 0; j < deep; j++) {
			sum += (f(v[j].x) + f(v[j].y)) + (f(v[j].z) + f(v[j].w));
		}
	}
	for (; q < quads; q += step) {
		v[0] = load(q);
		sum += (f(v[0].x) + f(v[0].y)) + (f(v[0].z) + f(v[0].w));
	}
	return sum;
}

// thread_sum is this thread's share of the sum of f(x[i]) over the n elements of x, in a grid of one
// dimension. What a thread adds, and in which order, depends on n and the grid alone, not on where
// x lies; x aligned to 16 bytes is read at memory speed.
template <typename F> SPMD_FN double thread_sum(const float *x, long long n, F f) {
	long long quads = n / 4;
	double sum;
	if (to_aligned(x) == 0) {
		sum = quads_sum(quads, [x](long long q) { return load4(x + 4 * q); }, f);
	} else {
		sum = quads_sum(quads, [x](long long q) {
			const float *at = x + 4 * q;
			return make_float4(at[0], at[1], at[2], at[3]);
		}, f);
	}
	if (grid_index() < n % 4) {
		sum += f(x[4 * quads + grid_index()]);
	}
	return sum;
}

// group_barrier is __syncthreads for so many threads of the block, whole warps, that have the same id of 1 to 15.
SPMD_FN void group_barrier(int id, int threads) {
#ifdef SPMD_EMULATED
	emulated::meet_group(id, threads);
#else
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// mix spreads every bit of x over all 64, as Go's does.
// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014), mix64
// with David Stafford's constants (variant 13).
SPMD_FN uint64_t mix(uint64_t x) {
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

#endif
