#include "spmd.cuh"

// A sum without rounding: a number of LIMBS words of 32 bits, the lowest worth 2^-149, which a
// float32 is a multiple of; and behind them how many NaN, infinities and negative infinities there
// were. Words are added in 64 bits, so that what goes beyond 32 need not be carried at once.
#define LIMBS 10
#define WORDS 13
#define EXACT_THREADS 256

// add adds v to the words of this thread, which are stride apart. They are good for 2^31 numbers.
SPMD_FN void add(int64_t *word, int stride, float v) {
	uint32_t bits = __float_as_uint(v);
	uint32_t exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
	if (exponent == 0xff) {
		word[(LIMBS + (fraction ? 0 : 1 + (bits >> 31))) * stride] += 1;
		return;
	}
	uint32_t at = exponent ? exponent - 1 : 0;
	int64_t m = exponent ? fraction | 0x800000 : fraction;
	m <<= at % 32;
	m = bits >> 31 ? -m : m;
	int64_t *low = word + at / 32 * stride;
	low[0] += m & 0xffffffff;
	low[stride] += m >> 32;
}

// carry leaves 32 bits in every word but the highest, which has the sign.
SPMD_FN void carry(int64_t *word, int stride) {
	for (int i = 0; i + 1 < LIMBS; i++) {
		word[(i + 1) * stride] += word[i * stride] >> 32;
		word[i * stride] &= 0xffffffff;
	}
}

// sum[0..WORDS) = the sum of x as such a number. Blocks and the last of them work as in sum_f32;
// part has WORDS elements for each block. Launched in blocks of EXACT_THREADS.
//
//	exact_f32(sum, part, arrived, x, n I64)
extern "C" __global__ void exact_f32(int64_t *sum, int64_t *part, unsigned int *arrived, const float *x, long long n) {
	start_next();
	__shared__ int64_t words[WORDS * EXACT_THREADS];
	int64_t *own = words + threadIdx.x;
	for (int i = 0; i < WORDS; i++) {
		own[i * EXACT_THREADS] = 0;
	}
	const int deep = 8;
	long long i = grid_index(), step = grid_size();
	float v[deep];
	for (; i + (deep - 1) * step < n; i += deep * step) {
#pragma unroll
		for (int j = 0; j < deep; j++) {
			v[j] = x[i + j * step];
		}
#pragma unroll
		for (int j = 0; j < deep; j++) {
			add(own, EXACT_THREADS, v[j]);
		}
	}
	for (; i < n; i += step) {
		add(own, EXACT_THREADS, x[i]);
	}
	carry(own, EXACT_THREADS);
	for (int i = 0; i < WORDS; i++) {
		int64_t all = block_sum(own[i * EXACT_THREADS]);
		if (threadIdx.x == 0) {
			part[blockIdx.x * WORDS + i] = all;
		}
	}
	__shared__ bool last;
	if (threadIdx.x == 0) {
		__threadfence(); // the share is there for all blocks before it is counted
		last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
	}
	__syncthreads();
	if (!last) {
		return;
	}
	__threadfence(); // and is read after the count
	for (int i = 0; i < WORDS; i++) {
		int64_t total = 0;
		for (int b = threadIdx.x; b < gridDim.x; b += EXACT_THREADS) {
			total += __ldcg(part + b * WORDS + i);
		}
		total = block_sum(total);
		if (threadIdx.x == 0) {
			words[i] = total;
		}
	}
	if (threadIdx.x == 0) {
		carry(words, 1);
		for (int i = 0; i < WORDS; i++) {
			sum[i] = words[i]; // once: it may be memory of the host
		}
	}
}
