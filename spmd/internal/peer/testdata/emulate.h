// A test double of the device: device.cu and peers.cu, compiled for the host behind this header, run one block after the
// other, or where they wait for each other all at once, each of one thread. What kernels do between devices they do here
// between processes that share the memory. Rounding to float16 is slow and plain here, so that it checks nothing against
// itself.

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EMULATED
enum { MOST_AT_ONCE = 512 };
#define __device__
#define __global__
#define __noinline__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct Dim { unsigned x; };
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;
static void __syncthreads() {}

static float as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static uint32_t as_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static double as_double(uint64_t u) { double f; memcpy(&f, &u, 8); return f; }
static uint64_t as_bits(double f) { uint64_t u; memcpy(&u, &f, 8); return u; }
static void set_flag(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static void post(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static uint32_t flag(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static uint32_t peek(const uint32_t *p) { return flag(p); }
static void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
// relax comes between two looks at what another process writes, which may need this core.
static void relax() {
	static thread_local unsigned looks;
	if (++looks % 32) sched_yield();
	else usleep(50);
}

static void put_stamped(uint32_t *p, uint32_t a, uint32_t b, uint32_t stamp) {
	__atomic_store_n((uint64_t *)p, (uint64_t)stamp << 32 | a, __ATOMIC_RELAXED);
	__atomic_store_n((uint64_t *)p + 1, (uint64_t)stamp << 32 | b, __ATOMIC_RELAXED);
}
static bool get_stamped(const uint32_t *p, uint32_t *a, uint32_t *b, uint32_t stamp) {
	uint64_t x = __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED), y = __atomic_load_n((const uint64_t *)p + 1, __ATOMIC_RELAXED);
	*a = (uint32_t)x;
	*b = (uint32_t)y;
	return x >> 32 == stamp && y >> 32 == stamp;
}

struct f16;
static float wide(f16 x);
static unsigned short rounded_f16(float x);

template <typename T> static T argument(const uint64_t *word) { T v; memcpy(&v, word, sizeof v); return v; }

template <size_t... I> struct Places {};
template <size_t N, size_t... I> struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I> struct Count<0, I...> { typedef Places<I...> type; };

template <typename... A, size_t... I> static void launch(void (*k)(A...), const uint64_t *args, const unsigned *dims, Places<I...>) {
	gridDim.x = dims[0];
	blockDim.x = 1;
	threadIdx.x = 0;
	for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) k(argument<A>(args + I)...);
}
template <typename... A> static void launch(void (*k)(A...), const uint64_t *args, const unsigned *dims) {
	launch(k, args, dims, typename Count<sizeof...(A)>::type());
}
// at_once has a thread for each block, for a kernel whose blocks wait for those of higher numbers.
template <typename... A> struct Block {
	void (*k)(A...);
	const uint64_t *args;
	Dim blocks, index;
	template <size_t... I> void run(Places<I...>) {
		gridDim = blocks;
		blockIdx = index;
		blockDim.x = 1;
		threadIdx.x = 0;
		k(argument<A>(args + I)...);
	}
	static void *start(void *p) {
		((Block *)p)->run(typename Count<sizeof...(A)>::type());
		return NULL;
	}
};
template <typename... A> static void at_once(void (*k)(A...), const uint64_t *args, const unsigned *dims) {
	Block<A...> block[MOST_AT_ONCE];
	pthread_t thread[MOST_AT_ONCE];
	if (dims[0] > MOST_AT_ONCE) abort();
	for (unsigned b = 0; b < dims[0]; b++) {
		block[b] = {k, args, {dims[0]}, {b}};
		if (pthread_create(&thread[b], NULL, Block<A...>::start, &block[b]) != 0) abort();
	}
	for (unsigned b = 0; b < dims[0]; b++) pthread_join(thread[b], NULL);
}
#define EMULATE(k) extern "C" void emulate_##k(const uint64_t *args, const unsigned *dims) { launch(k, args, dims); }
#define EMULATE_AT_ONCE(k) extern "C" void emulate_##k(const uint64_t *args, const unsigned *dims) { at_once(k, args, dims); }
