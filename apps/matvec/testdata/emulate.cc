// A test double of the device for matvec.cu, compiled for the host: blocks run one after the other, the threads of a block
// as coroutines that take turns at each barrier and each shuffle. Lines of standard input are products to compute:
//
//	dtype (4: float32, 2: bfloat16) columns (0, 1) rows cols stride pitch segment segments tiles threads
//
// W and x hold eighths, whose sums are exact, and NaN where nothing may be used. It prints the products that are wrong, and
// how many lines it has read.

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct Dim { unsigned x, y; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint32_t __float_as_uint(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
template <typename T> static T min(T a, T b) { return b < a ? b : a; }
template <typename T> static T max(T a, T b) { return a < b ? b : a; }
static long long min(long a, long long b) { return min((long long)a, b); }

static const char *lo, *hi; // of the matrix
static int outside;         // loads of it elsewhere

template <typename T> static T __ldcs(const T *p) {
	if ((const char *)p < lo || (const char *)(p + 1) > hi) outside++;
	if ((uintptr_t)p % sizeof(T)) outside++;
	return *p;
}
template <typename T> static T __ldg(const T *p) { return *p; }
template <typename T> static T __ldcg(const T *p) { return *p; }
static void __threadfence() {}
static unsigned atomicInc(unsigned *p, unsigned top) { unsigned v = *p; *p = v >= top ? 0 : v + 1; return v; }

// The threads of a block. One that waits lets the next run; a round is over when all have waited. Only the first entry
// needs a context: between those there are jumps, which make no system call.
static ucontext_t start, one;
static jmp_buf all, at[1024];
static std::vector<char> stacks(1024 * 32768);
static bool ended[1024];
static void yield() {
	unsigned t = threadIdx.x;
	if (!_setjmp(at[t])) _longjmp(all, 1);
	threadIdx.x = t;
}
static void __syncthreads() { yield(); }

// All threads of a warp shuffle together: their values are there after one turn, and may go after another.
template <typename T> static T __shfl_xor_sync(unsigned, T v, int d) {
	static T values[1024];
	values[threadIdx.x] = v;
	yield();
	T r = values[threadIdx.x ^ d];
	yield();
	return r;
}

#include "../matvec.cu"

static void (*body)();
static void thread() {
	body();
	ended[threadIdx.x] = true;
	_longjmp(all, 1);
}

static void block() {
	static volatile bool first;
	static volatile unsigned t, left;
	for (t = 0; t < blockDim.x; t++) ended[t] = false;
	for (first = true, left = blockDim.x; left > 0; first = false) {
		left = 0;
		for (t = 0; t < blockDim.x; t++) {
			if (ended[t]) continue;
			threadIdx.x = t;
			if (!_setjmp(all)) {
				if (!first) _longjmp(at[t], 1);
				getcontext(&one);
				one.uc_stack.ss_sp = &stacks[t * 32768];
				one.uc_stack.ss_size = 32768;
				makecontext(&one, thread, 0);
				swapcontext(&start, &one);
			}
			left = left + !ended[t];
		}
	}
}

static struct Product {
	int dtype, columns;
	long long rows, cols, stride, pitch, segment;
	unsigned segments, tiles, threads;
} p;
static float *y, *part;
static void *w, *x;
static unsigned *arrived;

static void multiply() {
	if (p.dtype == 4) {
		(p.columns ? matvec_columns_f32 : matvec_rows_f32)(y, (float *)w, (float *)x, part, arrived, p.rows, p.cols, p.stride, p.pitch, p.segment);
	} else {
		(p.columns ? matvec_columns_bf16 : matvec_rows_bf16)(y, (bf16 *)w, (bf16 *)x, part, arrived, p.rows, p.cols, p.stride, p.pitch, p.segment);
	}
}

static void put(void *at, long long i, float v) {
	if (p.dtype == 4) ((float *)at)[i] = v;
	else ((bf16 *)at)[i] = from_float<bf16>(v);
}
static float number() { return (rand() % 15 - 7) / 8.0f; }

int main() {
	int lines = 0;
	for (; scanf("%d%d%lld%lld%lld%lld%lld%u%u%u", &p.dtype, &p.columns, &p.rows, &p.cols, &p.stride, &p.pitch, &p.segment, &p.segments, &p.tiles, &p.threads) == 10; lines++) {
		long long each = p.columns ? p.cols : p.rows, size = each * p.stride;
		w = aligned_alloc(256, (size * p.dtype + 255) / 256 * 256);
		x = aligned_alloc(256, (p.cols * p.dtype + 255) / 256 * 256);
		lo = (char *)w, hi = lo + size * p.dtype, outside = 0;
		for (long long i = 0; i < size; i++) put(w, i, NAN);
		std::vector<double> want(p.rows);
		for (long long c = 0; c < p.cols; c++) {
			float xc = number();
			put(x, c, xc);
			for (long long r = 0; r < p.rows; r++) {
				float v = number();
				put(w, p.columns ? c * p.stride + r : r * p.stride + c, v);
				want[r] += (double)v * xc;
			}
		}
		std::vector<float> ys(p.rows + 1, NAN), parts(p.segments * p.pitch, NAN);
		std::vector<unsigned> counts(p.tiles);
		y = ys.data(), arrived = counts.data(), part = (float *)aligned_alloc(16, (parts.size() * 4 + 15) / 16 * 16);
		memcpy(part, parts.data(), parts.size() * 4);
		blockDim = {p.threads, 1}, gridDim = {p.tiles, p.segments}, body = multiply;
		for (int again = 0; again < 2; again++) { // the counts must be as before
			for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
				for (blockIdx.y = gridDim.y; blockIdx.y-- > 0;) block();
			}
		}
		int wrong = 0;
		for (long long r = 0; r < p.rows; r++) wrong += ys[r] != want[r];
		if (wrong || outside || !isnan(ys[p.rows])) {
			printf("%lld x %lld of %d bytes, by columns %d: %d elements are wrong, %d loads are outside W or not aligned, y is followed by %g\n",
			       p.rows, p.cols, p.dtype, p.columns, wrong, outside, ys[p.rows]);
		}
		free(w), free(x), free(part);
	}
	printf("%d products\n", lines);
}
