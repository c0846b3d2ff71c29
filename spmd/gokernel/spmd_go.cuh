// The CUDA sources of spmdgen include this: Go's arithmetic, slices and loops, in C++14. An
// operation has Go's result if C++ leaves it open: integers wrap around, shifts may be longer than
// a number has bits, a NaN wins in min and max.
#ifndef SPMD_GO_CUH
#define SPMD_GO_CUH
#include "spmd.cuh"

#define SPMD_INLINE __device__ __forceinline__

// With SPMD_BOUNDS every index is compared with the length of its slice. The place travels along:
// SPMD_WHERE among a function's parameters, SPMD_HERE among the arguments of its call.
#ifdef SPMD_BOUNDS
#define SPMD_WHERE const spmd::where &spmd_r
#define SPMD_WHERE_AND SPMD_WHERE,
#define SPMD_HERE spmd_r
#define SPMD_HERE_AND SPMD_HERE,
#define SPMD_KERNEL(name) const spmd::where spmd_r{spmd_report, name};
#define AT(x, i, place) (x).in(spmd_r, i, place)
#define AT_NARROW(x, narrow, i, place) (x).in(spmd_r, i, place)
#define SUB(x, low, high, place) (x).sub_in(spmd_r, low, high, place)
#else
#define SPMD_WHERE
#define SPMD_WHERE_AND
#define SPMD_HERE
#define SPMD_HERE_AND
#define SPMD_KERNEL(name)
#define AT(x, i, place) (x).at(i)
#define AT_NARROW(x, narrow, i, place) (x).at_narrow(narrow)
#define SUB(x, low, high, place) (x).sub(low, high)
#endif

namespace spmd {

// report is the host's account, in its own memory, of the first index that was out of range.
struct report {
	unsigned int claimed;
	char kernel[64], at[96];
	int64_t index, length;
};

struct where {
	report *to;
	const char *kernel;
};

#ifdef SPMD_BOUNDS
SPMD_FN void copy_text(char *to, const char *from, int room) {
	int i = 0;
	for (; i < room - 1 && from[i]; i++) to[i] = from[i];
	to[i] = 0;
}

// check ends the kernel if i is none of n elements.
SPMD_FN void check(const where &r, int64_t i, int64_t n, const char *at) {
	if (i >= 0 && i < n) return;
	if (r.to && atomicCAS(&r.to->claimed, 0u, 1u) == 0) {
		copy_text(r.to->kernel, r.kernel, sizeof r.to->kernel);
		copy_text(r.to->at, at, sizeof r.to->at);
		r.to->index = i;
		r.to->length = n;
		__threadfence_system();
		*(volatile unsigned int *)&r.to->claimed = 2;
		__threadfence_system();
	}
	while (r.to && *(volatile unsigned int *)&r.to->claimed != 2) {
	}
#ifdef SPMD_EMULATED
	emulated::stop();
#else
	asm volatile("trap;");
#endif
}
#endif

// slice is a slice of Go's. Products that are indices are computed in I. If all buffers are shorter
// than 2^31, I is unsigned with 32 bits: an index in range is the same modulo 2^32.
template <typename T, typename I> struct slice {
	T *p;
	int64_t n;
	SPMD_INLINE T &at(int64_t i) const { return p[i]; }
	SPMD_INLINE T &at_narrow(I i) const { return p[i]; }
	SPMD_INLINE slice sub(int64_t low, int64_t high) const { return {p + low, high - low}; }
#ifdef SPMD_BOUNDS
	SPMD_INLINE T &in(const where &r, int64_t i, const char *at) const {
		check(r, i, n, at);
		return p[i];
	}
	SPMD_INLINE slice sub_in(const where &r, int64_t low, int64_t high, const char *at) const {
		check(r, high, n + 1, at);
		check(r, low, high + 1, at);
		return {p + low, high - low};
	}
#endif
};

// ptr is how an entry takes memory. Without overlaps, where I has 32 bits, no other pointer leads to it.
template <typename I, typename T> struct pointer { typedef T *type; };
template <typename T> struct pointer<uint32_t, T> { typedef T *__restrict__ type; };
template <typename I, typename T> using ptr = typename pointer<I, T>::type;

// narrow is a number from which addresses are computed.
template <typename I> SPMD_FN int64_t narrow(int64_t n) { return sizeof(I) == 4 ? (int32_t)n : n; }

// one is a slice of which a thread has the element of its index.
template <typename T> struct one {
	T *p;
	int64_t n;
	SPMD_INLINE T &at(int64_t) const { return *p; }
#ifdef SPMD_BOUNDS
	SPMD_INLINE T &in(const where &r, int64_t i, const char *at) const {
		check(r, i, n, at);
		return *p;
	}
#endif
};

// pack is N such elements, which are moved at once. A slice of no elements stands for one that the
// kernel does not use.
template <typename T, int N> struct pack {
	struct alignas(N * sizeof(T)) whole { T v[N]; } w;
	template <typename I> SPMD_INLINE void load(const slice<T, I> &x, int64_t i) {
		if (x.n) w = *(const whole *)(x.p + i);
	}
	template <typename I> SPMD_INLINE void store(const slice<T, I> &x, int64_t i) const {
		if (x.n) *(whole *)(x.p + i) = w;
	}
	template <typename I> SPMD_INLINE spmd::one<T> one(const slice<T, I> &x, int e) { return {&w.v[e], x.n}; }
};

// fits says whether packs of N have the first n elements of x.
template <int N, typename T, typename I> SPMD_FN bool fits(const slice<T, I> &x, int64_t n) {
	return x.n == 0 || x.n >= n && (uint64_t)x.p % (N * sizeof(T)) == 0;
}

// used is a slice of which a loop has the elements of its own index; held has V of them.
template <typename T, typename I, bool READ, bool WRITTEN> struct used {
	slice<T, I> x;
	template <int V> struct held {
		const used &of;
		int64_t at;
		pack<T, V> p;
		SPMD_INLINE held(const used &u, int64_t first) : of(u), at(first) {
			if (READ) p.load(of.x, at);
		}
		SPMD_INLINE spmd::one<T> one(int e) { return p.one(of.x, e); }
		SPMD_INLINE void store() const {
			if (WRITTEN) p.store(of.x, at);
		}
	};
};

template <bool READ, bool WRITTEN, typename T, typename I> SPMD_FN used<T, I, READ, WRITTEN> use(const slice<T, I> &x) {
	return {x};
}

// largest has the size of the largest element of used slices, but at least AT_LEAST.
template <int AT_LEAST, typename... U> struct largest { enum { size = AT_LEAST }; };
template <int AT_LEAST, typename T, typename I, bool READ, bool WRITTEN, typename... U>
struct largest<AT_LEAST, used<T, I, READ, WRITTEN>, U...> : largest<(AT_LEAST < sizeof(T) ? sizeof(T) : AT_LEAST), U...> {};

template <int V> SPMD_FN bool all_fit(int64_t) { return true; }
template <int V, typename U, typename... R> SPMD_FN bool all_fit(int64_t n, const U &u, const R &...rest) {
	return fits<V>(u.x, n) && all_fit<V>(n, rest...);
}

// held_all is held of several slices. call gives f an index, with the element e of each; keep
// stores them.
template <int V, typename... U> struct held_all {
	SPMD_INLINE held_all(int64_t) {}
	SPMD_INLINE void keep() const {}
	template <typename F, typename... A> SPMD_INLINE auto call(F &f, int, A... args) { return f(args...); }
};
template <int V, typename U, typename... R> struct held_all<V, U, R...> {
	typename U::template held<V> first;
	held_all<V, R...> rest;
	SPMD_INLINE held_all(int64_t at, const U &u, const R &...r) : first(u, at), rest(at, r...) {}
	SPMD_INLINE void keep() const {
		first.store();
		rest.keep();
	}
	template <typename F, typename... A> SPMD_INLINE auto call(F &f, int e, A... args) {
		return rest.call(f, e, args..., first.one(e));
	}
};

template <typename T, int N> struct array {
	T v[N];
	SPMD_INLINE T &at(int64_t i) { return v[i]; }
	SPMD_INLINE const T &at(int64_t i) const { return v[i]; }
#ifdef SPMD_BOUNDS
	SPMD_INLINE T &in(const where &r, int64_t i, const char *at) {
		check(r, i, N, at);
		return v[i];
	}
#endif
};

template <typename A, typename B> struct results2 { A r0; B r1; };
template <typename A, typename B, typename C> struct results3 { A r0; B r1; C r2; };

// Integers, modulo their width. 64 bits hold the values that C++ would make ints on the way.
template <typename T> SPMD_FN T add(T a, T b) { return (T)((uint64_t)a + (uint64_t)b); }
template <typename T> SPMD_FN T sub(T a, T b) { return (T)((uint64_t)a - (uint64_t)b); }
template <typename T> SPMD_FN T mul(T a, T b) { return (T)((uint64_t)a * (uint64_t)b); }
// A GPU does not say that a divisor is 0, or a shift negative. Emulated, the kernel ends.
#ifdef SPMD_EMULATED
#define SPMD_UNLESS(wrong, what) if (wrong) emulated::stop(what)
#else
#define SPMD_UNLESS(wrong, what)
#endif
// The most negative number by -1 is itself, as in Go.
template <typename T> SPMD_FN T quo(T a, T b) {
	SPMD_UNLESS(b == 0, "an integer is divided by 0");
	return (T)-1 < (T)0 && b == (T)-1 ? (T)(0 - (uint64_t)a) : (T)(a / b);
}
template <typename T> SPMD_FN T rem(T a, T b) {
	SPMD_UNLESS(b == 0, "an integer is divided by 0");
	return (T)-1 < (T)0 && b == (T)-1 ? (T)0 : (T)(a % b);
}
template <typename T> SPMD_FN T neg(T a) { return sub<T>(0, a); }
template <typename T> SPMD_FN T bits_and(T a, T b) { return (T)(a & b); }
template <typename T> SPMD_FN T bits_or(T a, T b) { return (T)(a | b); }
template <typename T> SPMD_FN T bits_xor(T a, T b) { return (T)(a ^ b); }
template <typename T> SPMD_FN T and_not(T a, T b) { return (T)(a & ~b); }
SPMD_FN uint64_t count(int64_t n) {
	SPMD_UNLESS(n < 0, "a shift is by a negative number");
	return (uint64_t)n;
}
template <typename T> SPMD_FN T shl(T a, uint64_t n) { return n < 8 * sizeof(T) ? (T)((uint64_t)a << n) : (T)0; }
template <typename T> SPMD_FN T shr(T a, uint64_t n) {
	return n < 8 * sizeof(T) ? (T)(a >> n) : a < (T)0 ? (T)-1 : (T)0;
}

// Floats. -0 is less than 0.
SPMD_FN bool is_nan(double x) { return x != x; }
SPMD_FN uint64_t double_bits(double x) { return (uint64_t)__double_as_longlong(x); }
SPMD_FN double bits_double(uint64_t x) { return __longlong_as_double((long long)x); }
SPMD_FN bool signbit_of(double x) { return double_bits(x) >> 63; }
SPMD_FN double inf(int64_t sign) { return bits_double(sign >= 0 ? 0x7ff0000000000000u : 0xfff0000000000000u); }
SPMD_FN double nan() { return bits_double(0x7ff8000000000001u); }
SPMD_FN bool is_inf(double x, int64_t sign) { return sign >= 0 && x == inf(1) || sign <= 0 && x == inf(-1); }
SPMD_FN double ldexp(double x, int64_t e) { return ::ldexp(x, (int)(e > 5000 ? 5000 : e < -5000 ? -5000 : e)); }

template <typename T> SPMD_FN T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> SPMD_FN T max_of(T a, T b) { return a < b ? b : a; }
template <> __device__ __forceinline__ double min_of(double a, double b) {
	return a < b || a != a ? a : b < a || b != b ? b : signbit_of(a) ? a : b;
}
template <> __device__ __forceinline__ double max_of(double a, double b) {
	return a > b || a != a ? a : b > a || b != b ? b : signbit_of(a) ? b : a;
}
template <> __device__ __forceinline__ float min_of(float a, float b) {
#if __CUDA_ARCH__ >= 800
	asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
	return a;
#else
	return a < b || a != a ? a : b < a || b != b ? b : signbit_of(a) ? a : b;
#endif
}
template <> __device__ __forceinline__ float max_of(float a, float b) {
#if __CUDA_ARCH__ >= 800
	asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
	return a;
#else
	return a > b || a != a ? a : b > a || b != b ? b : signbit_of(a) ? b : a;
#endif
}

// math_min and math_max are those of package math: an infinity wins over a NaN.
SPMD_FN double math_min(double a, double b) { return is_inf(a, -1) || is_inf(b, -1) ? inf(-1) : min_of(a, b); }
SPMD_FN double math_max(double a, double b) { return is_inf(a, 1) || is_inf(b, 1) ? inf(1) : max_of(a, b); }

} // namespace spmd

#include "spmd_complex.cuh"

namespace spmd {

// The arithmetic of other numbers than integers, for functions of several types.
#define SPMD_ARITHMETIC(T)                                                             \
	template <> __device__ __forceinline__ T add(T a, T b) { return a + b; }           \
	template <> __device__ __forceinline__ T sub(T a, T b) { return a - b; }           \
	template <> __device__ __forceinline__ T mul(T a, T b) { return a * b; }           \
	template <> __device__ __forceinline__ T quo(T a, T b) { return a / b; }           \
	template <> __device__ __forceinline__ T neg(T a) { return -a; }
SPMD_ARITHMETIC(float)
SPMD_ARITHMETIC(double)
SPMD_ARITHMETIC(complex<float>)
SPMD_ARITHMETIC(complex<double>)

// wrapping is a number that += and -= may change, of which an integer wraps around.
template <typename T> SPMD_FN T &wrapping(T &x) { return x; }
SPMD_FN uint32_t &wrapping(int32_t &x) { return (uint32_t &)x; }
SPMD_FN uint64_t &wrapping(int64_t &x) { return (uint64_t &)x; }

// Bits.
template <typename T> SPMD_FN int64_t ones(T x) { return __popcll((uint64_t)x); }
template <typename T> SPMD_FN int64_t bit_len(T x) { return 64 - __clzll((long long)(uint64_t)x); }
template <typename T> SPMD_FN int64_t leading(T x) { return (int64_t)(8 * sizeof(T)) - bit_len(x); }
template <typename T> SPMD_FN int64_t trailing(T x) {
	return x == 0 ? (int64_t)(8 * sizeof(T)) : __ffsll((long long)(uint64_t)x) - 1;
}
template <typename T> SPMD_FN T rotate(T x, int64_t k) {
	const int n = 8 * sizeof(T);
	int s = (int)(k & (n - 1));
	return s == 0 ? x : (T)((uint64_t)x << s | (uint64_t)x >> (n - s));
}
template <typename T> SPMD_FN T reverse(T x) { return (T)(__brevll((uint64_t)x) >> (64 - 8 * sizeof(T))); }
template <typename T> SPMD_FN T reverse_bytes(T x) {
	uint64_t r = 0;
	for (int i = 0; i < (int)sizeof(T); i++) r = r << 8 | ((uint64_t)x >> 8 * i & 0xff);
	return (T)r;
}
SPMD_FN results2<uint64_t, uint64_t> mul64(uint64_t a, uint64_t b) { return {__umul64hi(a, b), a * b}; }

SPMD_FN uint64_t random_bits(uint64_t seed, uint64_t i) { return mix(mix(seed) + i); }
SPMD_FN uint32_t uniform_bits(uint64_t seed, uint64_t i) { return (uint32_t)(random_bits(seed, i) >> 40); }

// atomic_add adds to a number that other threads may be adding to.
SPMD_FN void atomic_add(int32_t *p, int32_t v) { atomicAdd(p, v); }
SPMD_FN void atomic_add(uint32_t *p, uint32_t v) { atomicAdd(p, v); }
SPMD_FN void atomic_add(int64_t *p, int64_t v) { atomicAdd((unsigned long long *)p, (unsigned long long)v); }
SPMD_FN void atomic_add(uint64_t *p, uint64_t v) { atomicAdd((unsigned long long *)p, (unsigned long long)v); }
SPMD_FN void atomic_add(float *p, float v) { atomicAdd(p, v); }
SPMD_FN void atomic_add(double *p, double v) { atomicAdd(p, v); }

// atomic_max asks first: most values are less. The bits of floats of one sign are in the floats'
// order.
template <typename T> SPMD_FN void atomic_max(T *p, T v) {
	if (v > *(volatile T *)p) atomicMax(p, v);
}
template <> __device__ __forceinline__ void atomic_max(float *p, float v) {
	if (!(v > *(volatile float *)p)) return;
	if (signbit_of(v)) atomicMin((unsigned int *)p, __float_as_uint(v));
	else atomicMax((int *)p, __float_as_int(v));
}

// THREADS are those of a block of every kernel here, and LANES, as many, those of a reduction.
enum { THREADS = 256, LANES = 256 };

// whole says whether a block, this one, has EACH indices for every thread.
template <int EACH> SPMD_FN bool whole(int64_t n, int64_t block) { return (block + 1) * (EACH * THREADS) <= n; }

// part calls f for the indices of a block among n, EACH by a thread. Blocks whose indices all exist
// have no test between them, so that the loads of all can be under way.
template <int EACH, typename F> SPMD_FN void part(int64_t n, F f, int64_t block) {
	int64_t first = block * (EACH * THREADS) + threadIdx.x;
	if (whole<EACH>(n, block)) {
#pragma unroll 4
		for (int u = 0; u < EACH; u++) f(first + u * THREADS);
	} else {
#pragma unroll 1
		for (int u = 0; u < EACH; u++) {
			if (first + u * THREADS < n) f(first + u * THREADS);
		}
	}
}

// The first argument of each1 to each_wide has the type of indices: uint32_t for the form with a
// block for all indices, where a thread takes EACH, and int64_t for that of one, which loops over
// what a grid cannot hold.
template <int EACH, typename F> SPMD_FN void each1(uint32_t, int64_t n, F f) { part<EACH>(n, f, blockIdx.x); }
template <int EACH, typename F> SPMD_FN void each1(int64_t, int64_t n, F f) { part<1>(n, f, blockIdx.x); }

// wide_part is part for slices of which f uses the element of its index alone. Blocks whose indices
// all exist move V elements at a time: each thread has PACKS times V neighbours, all of which are
// loaded before the first is used.
template <int V, int PACKS, typename F, typename... U>
SPMD_FN void wide_part(int64_t n, int64_t block, F f, const U &...u) {
	const int64_t step = V * THREADS, first = block * (PACKS * step) + threadIdx.x * V;
	if (!whole<V * PACKS>(n, block) || !all_fit<V>(n, u...)) {
		part<V * PACKS>(n, [&](int64_t i) { f(i, u.x...); }, block);
		return;
	}
	auto call = [&](held_all<V, U...> &held, int64_t i) {
#pragma unroll
		for (int e = 0; e < V; e++) held.call(f, e, i + e);
	};
	held_all<V, U...> a(first, u...);
	if (PACKS == 2) {
		held_all<V, U...> b(first + step, u...);
		call(a, first);
		call(b, first + step);
		a.keep();
		b.keep();
	} else {
		call(a, first);
		a.keep();
	}
}

// With LOOPS a grid need not have a block for all indices.
template <int PACKS, bool LOOPS, typename F, typename... U>
SPMD_FN void each_wide(uint32_t, int64_t n, F f, const U &...u) {
	const int V = 16 / largest<1, U...>::size;
	if (LOOPS) {
		for (int64_t block = blockIdx.x; block * (V * PACKS * THREADS) < n; block += gridDim.x)
			wide_part<V, PACKS>(n, block, f, u...);
	} else {
		wide_part<V, PACKS>(n, blockIdx.x, f, u...);
	}
}
template <int PACKS, bool LOOPS, typename F, typename... U>
SPMD_FN void each_wide(int64_t, int64_t n, F f, const U &...u) {
	part<1>(n, [&](int64_t i) { f(i, u.x...); }, blockIdx.x);
}

// each2 and each3 have a thread for each pair or triple of indices, the last index along x, or for
// EACH of the last but one.
template <int EACH, typename F> SPMD_FN void rows(int n, F f) {
	int first = blockIdx.y * (EACH * blockDim.y) + threadIdx.y;
	if (first - threadIdx.y + EACH * blockDim.y <= n) {
#pragma unroll
		for (int u = 0; u < EACH; u++) f(first + u * (int)blockDim.y);
	} else {
#pragma unroll 1
		for (int u = 0; u < EACH; u++) {
			if (first + u * (int)blockDim.y < n) f(first + u * (int)blockDim.y);
		}
	}
}
template <int EACH, typename F> SPMD_FN void each2(uint32_t, int64_t ni, int64_t nj, F f) {
	int j = blockIdx.x * blockDim.x + threadIdx.x;
	if (j < (int)nj) rows<EACH>((int)ni, [&](int i) { f(i, j); });
}
template <int EACH, typename F> SPMD_FN void each3(uint32_t, int64_t, int64_t nj, int64_t nk, F f) {
	int k = blockIdx.x * blockDim.x + threadIdx.x;
	if (k < (int)nk) rows<EACH>((int)nj, [&](int j) { f((int)blockIdx.z, j, k); });
}
template <int EACH, typename F> SPMD_FN void each2(int64_t, int64_t ni, int64_t nj, F f) {
	int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (j >= nj) return;
	for (int64_t i = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; i < ni;
		i += (int64_t)gridDim.y * blockDim.y) f(i, j);
}
template <int EACH, typename F> SPMD_FN void each3(int64_t, int64_t ni, int64_t nj, int64_t nk, F f) {
	int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (k >= nk) return;
	for (int64_t i = blockIdx.z; i < ni; i += gridDim.z) {
		for (int64_t j = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; j < nj;
			j += (int64_t)gridDim.y * blockDim.y) f(i, j, k);
	}
}

} // namespace spmd

#include "spmd_reduce.cuh"

#endif
