// CUDA C++ for the processors of the host: what kernels are compiled behind where there is no GPU. The threads of a block are
// fibers of one thread, which change at barriers and at what the threads of a warp do together. Blocks run one after the
// other. What is written in PTX, and the instructions for matrices, do not exist here.
#ifndef SPMD_EMULATED
#define SPMD_EMULATED
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __device__
#define __host__
#ifdef EMULATE_NO_BODIES
#define __global__ inline
#else
#define __global__
#endif
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static thread_local
#define __grid_constant__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct dim3 { unsigned x, y, z; };
static thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
enum { warpSize = 32 };

#define VECTORS(T, N)                                                                                                  \
	struct alignas(2 * sizeof(T)) N##2 { T x, y; };                                                                    \
	struct N##3 { T x, y, z; };                                                                                        \
	struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) N##4 { T x, y, z, w; };                                         \
	static inline N##2 make_##N##2(T x, T y) { return {x, y}; }                                                        \
	static inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }                                                \
	static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(unsigned char, uchar)
VECTORS(short, short)
VECTORS(unsigned short, ushort)
VECTORS(int, int)
VECTORS(unsigned, uint)
VECTORS(long long, longlong)
VECTORS(unsigned long long, ulonglong)
VECTORS(float, float)
VECTORS(double, double)

namespace emulated {

enum { MOST_THREADS = 1024, STACK = 256 << 10, WORD = 16 };

// fiber is a thread of a block.
struct fiber {
#if defined(__x86_64__)
	void *sp;
#else
	ucontext_t context;
#endif
	dim3 index;
	bool done;
	const unsigned *waits; // for this to be another than
	unsigned passed;
};

// meeting is where threads wait for each other: those of a block, or of a warp.
struct meeting {
	unsigned arrived, turn;
};

struct block {
	fiber fibers[MOST_THREADS], scheduler;
	char *stacks;
	unsigned threads, current, done;
	meeting all, groups[16], warps[MOST_THREADS / 32];
	unsigned votes; // of __syncthreads_count
	unsigned char values[MOST_THREADS][WORD];
	void (*body)(void *);
	void *argument;
	void *shared; // dynamic
	size_t room;
	const char *stopped; // why, or NULL
};
static thread_local block *now;

#if defined(__x86_64__)
// change saves the registers that calls keep, and goes on at the other stack.
__attribute__((naked, noinline)) static void change(void **, void *) {
	__asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
	        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
	        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
static void to(fiber *from, fiber *other) { change(&from->sp, other->sp); }
#else
static void to(fiber *from, fiber *other) { swapcontext(&from->context, &other->context); }
#endif

static void begin() {
	block *b = now;
	b->body(b->argument);
	fiber *f = &b->fibers[b->current];
	f->done = true;
	b->done++;
	to(f, &b->scheduler);
	abort();
}

static void prepare(block *b, unsigned i) {
	fiber *f = &b->fibers[i];
	char *top = b->stacks + (size_t)STACK * (i + 1);
#if defined(__x86_64__)
	void **sp = (void **)(top - 56); // as after a call
	sp[0] = NULL; // where begin would return to
	*--sp = (void *)begin;
	for (int r = 0; r < 6; r++) *--sp = NULL;
	f->sp = sp;
#else
	getcontext(&f->context);
	f->context.uc_stack.ss_sp = top - STACK;
	f->context.uc_stack.ss_size = STACK;
	f->context.uc_link = NULL;
	makecontext(&f->context, begin, 0);
#endif
	f->index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
	f->done = false;
	f->waits = NULL;
}

// meet returns when so many threads are here.
static void meet(meeting *m, unsigned threads) {
	block *b = now;
	if (++m->arrived == threads) {
		m->arrived = 0;
		m->turn++;
		return;
	}
	fiber *f = &b->fibers[b->current];
	f->waits = &m->turn;
	f->passed = m->turn;
	to(f, &b->scheduler);
}

static unsigned lane() { return now->current % 32; }
static unsigned warp_threads() {
	unsigned first = now->current / 32 * 32;
	return now->threads - first < 32 ? now->threads - first : 32;
}
static void meet_warp() { meet(&now->warps[now->current / 32], warp_threads()); }

// meet_group is bar.sync of PTX.
static inline void meet_group(int id, int threads) { meet(&now->groups[id], threads); }

// exchange gives a value to the threads of the warp, and returns that of another lane.
template <typename T> T exchange(T v, unsigned from) {
	static_assert(sizeof(T) <= WORD, "of at most 16 bytes");
	block *b = now;
	memcpy(b->values[b->current], &v, sizeof v);
	meet_warp();
	T r = v;
	if (from < warp_threads()) memcpy(&r, b->values[b->current / 32 * 32 + from], sizeof r);
	meet_warp();
	return r;
}

// stop ends the kernel at once, which has said why.
static inline void stop(const char *why = "trap") {
	block *b = now;
	b->stopped = why;
	to(&b->fibers[b->current], &b->scheduler);
}

// run runs the threads of a block. It returns why they cannot go on, or NULL.
static const char *run(block *b) {
	b->done = 0;
	b->stopped = NULL;
	b->all = {0, 0};
	memset(b->groups, 0, sizeof b->groups);
	memset(b->warps, 0, sizeof b->warps);
	for (unsigned i = 0; i < b->threads; i++) prepare(b, i);
	while (b->done < b->threads) {
		bool moved = false;
		for (unsigned i = 0; i < b->threads; i++) {
			fiber *f = &b->fibers[i];
			if (f->done || f->waits && *f->waits == f->passed) continue;
			f->waits = NULL;
			b->current = i;
			threadIdx = f->index;
			moved = true;
			to(&b->scheduler, f);
			if (b->stopped) return b->stopped;
		}
		if (!moved) return b->done > 0 ? "a barrier that not all threads of the block reach: some have ended" : "a barrier that not all threads of the block reach";
	}
	return NULL;
}

// fault is where a thread goes on whose access to memory has failed.
static void fault() {
	stop();
	abort();
}

// dynamic_shared stands for an array whose size the launch says.
template <typename T> struct dynamic_shared {
	dynamic_shared() {}
	T &operator[](size_t i) const { return ((T *)now->shared)[i]; }
	T *operator+(size_t i) const { return (T *)now->shared + i; }
	template <typename U> operator U *() const { return (U *)now->shared; }
};

// call is a launch, as Go has it.
struct call {
	const uint64_t *words;
	const uint32_t *at; // where each argument begins among them
	uint32_t blocks[3], threads[3], first, last; // the blocks from first to last-1, by number
	uint64_t shared;
	char *error; // of 256 bytes
};

template <typename T> T argument(const call *c, int i) {
	T v;
	memcpy(&v, c->words + c->at[i], sizeof v);
	return v;
}
template <size_t... I> struct places {};
template <size_t N, size_t... I> struct counted : counted<N - 1, N - 1, I...> {};
template <size_t... I> struct counted<0, I...> { typedef places<I...> type; };

template <typename... A> struct launch {
	void (*kernel)(A...);
	const call *c;
	template <size_t... I> void with(places<I...>) { kernel(argument<A>(c, I)...); }
	static void thread(void *p) { ((launch *)p)->with(typename counted<sizeof...(A)>::type()); }
};

template <typename... A> int start(void (*kernel)(A...), const call *c) {
	launch<A...> l{kernel, c};
	if (now == NULL) {
		now = (block *)calloc(1, sizeof(block));
		void *p = mmap(NULL, (size_t)STACK * MOST_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (now == NULL || p == MAP_FAILED) {
			snprintf(c->error, 256, "no memory for the stacks of a block");
			return 1;
		}
		now->stacks = (char *)p;
	}
	block *b = now;
	b->body = launch<A...>::thread;
	b->argument = &l;
	b->threads = c->threads[0] * c->threads[1] * c->threads[2];
	if (c->shared > b->room) {
		free(b->shared);
		b->shared = aligned_alloc(128, (c->shared + 127) / 128 * 128);
		b->room = c->shared;
	}
	blockDim = {c->threads[0], c->threads[1], c->threads[2]};
	gridDim = {c->blocks[0], c->blocks[1], c->blocks[2]};
	for (uint64_t i = c->first; i < c->last; i++) {
		blockIdx = {(unsigned)(i % gridDim.x), (unsigned)(i / gridDim.x % gridDim.y), (unsigned)(i / gridDim.x / gridDim.y)};
		const char *why = run(b);
		if (why != NULL) {
			snprintf(c->error, 256, "block (%u, %u, %u)%s%s", blockIdx.x, blockIdx.y, blockIdx.z, b->stopped ? "" : ": ", b->stopped ? "" : why);
			if (b->stopped) {
				size_t n = strlen(c->error);
				snprintf(c->error + n, 256 - n, ", thread (%u, %u, %u): %s", threadIdx.x, threadIdx.y, threadIdx.z, why);
			}
			return 1;
		}
	}
	return 0;
}

// described writes a type for Go's Describe: what it is, and its size; signature those of a kernel's parameters.
template <typename T> struct described {
	static void to(char *&p) {
		p += sprintf(p, "%c%zu", std::is_integral<T>::value ? 'i' : std::is_floating_point<T>::value ? 'f' : 's', sizeof(T));
	}
};
template <> struct described<void> {
	static void to(char *&p) { *p++ = 'v'; }
};
template <typename T> struct described<T *> {
	static void to(char *&p) {
		*p++ = 'p';
		described<typename std::remove_cv<T>::type>::to(p);
	}
};
template <typename... A> void describe(char *p) {
	int each[] = {0, (described<typename std::remove_cv<A>::type>::to(p), *p++ = ' ', 0)...};
	(void)each;
	*p = 0;
}
template <typename F> struct signature;
template <typename... A> struct signature<void (&)(A...)> {
	static void to(char *p) { describe<A...>(p); }
};

template <typename T, typename F> T bits_of(F f) {
	static_assert(sizeof(T) == sizeof(F), "the same bits");
	T t;
	memcpy(&t, &f, sizeof t);
	return t;
}

} // namespace emulated

#define DESCRIBE(symbol, kernel)                                                                                       \
	extern "C" int symbol(void *out) {                                                                                 \
		emulated::signature<decltype(kernel)>::to((char *)out);                                                        \
		return 0;                                                                                                      \
	}

#ifndef EMULATE_NO_BODIES
extern "C" void emulate_fault() { emulated::fault(); }
#endif

#define EMULATE(symbol, kernel)                                                                                        \
	extern "C" int symbol(void *c) { return emulated::start(kernel, (const emulated::call *)c); }

static inline void __syncthreads() { emulated::meet(&emulated::now->all, emulated::now->threads); }
static inline int __syncthreads_count(int p) {
	__syncthreads();
	emulated::now->votes = 0;
	__syncthreads();
	emulated::now->votes += p != 0;
	__syncthreads();
	return (int)emulated::now->votes; // which the next call changes behind a barrier
}
static inline int __syncthreads_or(int p) { return __syncthreads_count(p) != 0; }
static inline int __syncthreads_and(int p) { return __syncthreads_count(!p) == 0; }
static inline void __syncwarp(unsigned = 0xffffffffu) { emulated::meet_warp(); }
template <typename T> static T __shfl_xor_sync(unsigned, T v, int d) { return emulated::exchange(v, emulated::lane() ^ d); }
template <typename T> static T __shfl_sync(unsigned, T v, int l) { return emulated::exchange(v, l & 31); }
template <typename T> static T __shfl_down_sync(unsigned, T v, unsigned d) { return emulated::exchange(v, emulated::lane() + d); }
template <typename T> static T __shfl_up_sync(unsigned, T v, unsigned d) {
	return emulated::exchange(v, emulated::lane() < d ? emulated::lane() : emulated::lane() - d);
}
static inline unsigned __ballot_sync(unsigned, int p) {
	emulated::block *b = emulated::now;
	unsigned first = b->current / 32 * 32, all = 0;
	b->values[b->current][0] = p != 0;
	emulated::meet_warp();
	for (unsigned l = 0; l < emulated::warp_threads(); l++) all |= (unsigned)b->values[first + l][0] << l;
	emulated::meet_warp();
	return all;
}
static inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
static inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, !p) == 0; }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __threadfence(); }
static inline void __threadfence_block() { __threadfence(); }

template <typename T, typename F> static T change_atomically(T *p, F f) {
	T old, next;
	__atomic_load(p, &old, __ATOMIC_SEQ_CST);
	do next = f(old);
	while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	return old;
}
template <typename T> struct same { typedef T type; };
template <typename T> static T atomicAdd(T *p, typename same<T>::type v) { return change_atomically(p, [v](T o) { return (T)(o + v); }); }
template <typename T> static T atomicSub(T *p, typename same<T>::type v) { return change_atomically(p, [v](T o) { return (T)(o - v); }); }
template <typename T> static T atomicMax(T *p, typename same<T>::type v) { return change_atomically(p, [v](T o) { return o < v ? v : o; }); }
template <typename T> static T atomicMin(T *p, typename same<T>::type v) { return change_atomically(p, [v](T o) { return v < o ? v : o; }); }
template <typename T> static T atomicOr(T *p, typename same<T>::type v) { return change_atomically(p, [v](T o) { return o | v; }); }
template <typename T> static T atomicAnd(T *p, typename same<T>::type v) { return change_atomically(p, [v](T o) { return o & v; }); }
template <typename T> static T atomicExch(T *p, typename same<T>::type v) { return change_atomically(p, [v](T) { return v; }); }
template <typename T> static T atomicInc(T *p, typename same<T>::type v) { return change_atomically(p, [v](T o) { return o >= v ? (T)0 : (T)(o + 1); }); }
template <typename T> static T atomicCAS(T *p, typename same<T>::type was, typename same<T>::type v) {
	return change_atomically(p, [was, v](T o) { return o == was ? v : o; });
}

template <typename T> static T __ldg(const T *p) { return *p; }
template <typename T> static T __ldcg(const T *p) { return *p; }
template <typename T> static T __ldcs(const T *p) { return *p; }
template <typename T> static void __stcs(T *p, T v) { *p = v; }
template <typename T> static void __stcg(T *p, T v) { *p = v; }
static inline unsigned __float_as_uint(float f) { return emulated::bits_of<unsigned>(f); }
static inline int __float_as_int(float f) { return emulated::bits_of<int>(f); }
static inline float __uint_as_float(unsigned u) { return emulated::bits_of<float>(u); }
static inline float __int_as_float(int i) { return emulated::bits_of<float>(i); }
static inline long long __double_as_longlong(double f) { return emulated::bits_of<long long>(f); }
static inline double __longlong_as_double(long long i) { return emulated::bits_of<double>(i); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned long long __brevll(unsigned long long x) {
	unsigned long long r = 0;
	for (int i = 0; i < 64; i++) r |= (x >> i & 1) << (63 - i);
	return r;
}
static inline unsigned __brev(unsigned x) { return (unsigned)(__brevll(x) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
#define __expf expf
#define __logf logf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
template <typename A, typename B> static auto min(A a, B b) -> decltype(a + b) { return b < a ? b : a; }
template <typename A, typename B> static auto max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

#endif
