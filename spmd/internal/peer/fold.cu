// Arithmetic on the device for collectives that do without NCCL, and what kernels need to read and write memory of other
// devices. peers.cu of package peer may follow in the same source. It needs no header, and compiles as C++14 with NVRTC 11.2 and
// newer.
//
// Grids and blocks have one dimension. They have any size where no other is stated, but blocks are no larger than their launch
// bounds. base is an array in device memory: an address for each rank. type and op are numbered as in package elem. Avg divides
// the sum by size, of integers truncating. All reduce in the order of the ranks, the 16-bit floats in float and rounded once: so
// every rank gets the same bits.

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define FN static __device__ __forceinline__

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#ifndef EMULATED // a test compiles the rest for the host, with these of its own
FN float as_float(u32 u) { return __uint_as_float(u); }
FN u32 as_bits(float f) { return __float_as_uint(f); }
FN double as_double(u64 u) { return __longlong_as_double((i64)u); }
FN u64 as_bits(double f) { return (u64)__double_as_longlong(f); }
FN float wide(f16 x) {
	if ((x.bits & 0x7c00) == 0x7c00) { // infinity, NaN
		return as_float((u32)(x.bits & 0x8000) << 16 | 0x7f800000u | (u32)(x.bits & 0x3ff) << 13);
	}
	float r;
	asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
	return r;
}
FN u16 rounded_f16(float x) {
	u16 r;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
	return r;
}
// Flags of other devices: what was written before a flag is set is seen by who has seen the flag.
FN void set_flag(u32 *p, u32 v) {
	__threadfence_system();
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
FN u32 flag(const u32 *p) {
	u32 v;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
// fence_system orders what the block wrote or saw before a barrier, and what is written or seen after, for all devices.
FN void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// peek looks at a flag that tells of nothing that was written before.
FN u32 peek(const u32 *p) {
	u32 v;
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
// post sets a flag of another device whose reader needs nothing that was written before.
FN void post(u32 *p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
FN void relax() {}
// Four bytes each of data with a stamp beside it. Who reads the stamp reads the data that were written with it: the two
// share eight aligned bytes, which no link tears apart.
FN void put_stamped(u32 *p, u32 a, u32 b, u32 stamp) {
	asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(p), "r"(a), "r"(b), "r"(stamp) : "memory");
}
FN bool get_stamped(const u32 *p, u32 *a, u32 *b, u32 stamp) {
	u32 s, t;
	asm volatile("ld.volatile.global.v4.u32 {%0, %2, %1, %3}, [%4];" : "=r"(*a), "=r"(*b), "=r"(s), "=r"(t) : "l"(p) : "memory");
	return s == stamp && t == stamp;
}
#endif

// For a kernel that is launched early (cuda.Stream.LaunchEarly). Launched in the ordinary way, it finds nothing to wait for.
// await_earlier_work returns when all kernels ahead of this one in the stream, or in the graph, are over, which includes
// what they have waited for in turn, and their writes are seen. Copies and waits for events ahead are over before it starts.
FN void await_earlier_work() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// start_next lets the next kernel start, if it was launched early too, once all blocks of this one have come here or ended.
// After await_earlier_work, so that no more than one waits beside one that runs.
FN void start_next() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;");
#endif
}

FN float wide(bf16 x) { return as_float((u32)x.bits << 16); }

// Acc<T> is what T is computed in. Sums and products of integers wrap round, which only unsigned types may.
template <typename T> struct Acc {
	typedef T type;
	FN T get(T x) { return x; }
	FN T put(T x) { return x; }
};
template <> struct Acc<f16> {
	typedef float type;
	FN float get(f16 x) { return wide(x); }
	FN f16 put(float x) {
		u32 b = as_bits(x), payload = b >> 13 & 0x3ff;
		f16 r;
		r.bits = (b & 0x7fffffffu) > 0x7f800000u ? (u16)((b >> 16 & 0x8000) | 0x7c00 | (payload ? payload : 0x200)) : rounded_f16(x);
		return r;
	}
};
template <> struct Acc<bf16> {
	typedef float type;
	FN float get(bf16 x) { return wide(x); }
	FN bf16 put(float x) {
		u32 b = as_bits(x);
		bf16 r;
		r.bits = (u16)((b & 0x7fffffffu) > 0x7f800000u ? b >> 16 | 0x40 : (b + 0x7fff + (b >> 16 & 1)) >> 16);
		return r;
	}
};

template <typename T> struct Wrap { typedef T type; };
template <> struct Wrap<i8> { typedef u8 type; };
template <> struct Wrap<int> { typedef u32 type; };
template <> struct Wrap<i64> { typedef u64 type; };

enum { SUM, PROD, MIN, MAX, AVG };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64, COMPLEX64 };

// Of floats a NaN wins, and -0 is less than 0 (minimum and maximum of IEEE 754-2019), by their bits: those are ordered as the
// numbers are once those of negative ones are flipped. The result has one NaN, whichever went in.
template <bool LEAST, typename T> FN T extreme(T a, T b) { return (LEAST ? a < b : a > b) ? a : b; }
template <bool LEAST> FN float extreme(float a, float b) {
	const int top = 0x7fffffff, inf = 0x7f800000;
	int x = (int)as_bits(a), y = (int)as_bits(b), r = extreme<LEAST, int>(x ^ (x >> 31 & top), y ^ (y >> 31 & top));
	return as_float((x & top) > inf || (y & top) > inf ? 0x7fc00000u : (u32)(r ^ (r >> 31 & top)));
}
template <bool LEAST> FN double extreme(double a, double b) {
	const i64 top = 0x7fffffffffffffff, inf = 0x7ff0000000000000;
	i64 x = (i64)as_bits(a), y = (i64)as_bits(b), r = extreme<LEAST, i64>(x ^ (x >> 63 & top), y ^ (y >> 63 & top));
	return as_double((x & top) > inf || (y & top) > inf ? 0x7ff8000000000000u : (u64)(r ^ (r >> 63 & top)));
}

template <int OP, typename T> FN T combine(T a, T b) {
	typedef typename Wrap<T>::type W;
	switch (OP) {
	case PROD: return (T)((W)a * (W)b);
	case MIN: return extreme<true>(a, b);
	case MAX: return extreme<false>(a, b);
	default: return (T)((W)a + (W)b);
	}
}

// A pack is what a thread moves at once. Buffers of users may lie anywhere, and the last pack of theirs be short; all other
// memory is aligned, and as long as whole packs are.
struct alignas(16) Raw { u32 w[4]; };
template <typename T> struct alignas(16) Pack { T v[16 / sizeof(T)]; };
enum { PACK = 16 };

FN bool is_aligned(const void *p) { return ((u64)p & (PACK - 1)) == 0; }

// A pack that is short, or not aligned, goes by words where it is made of them, all at once; else byte by byte.
FN bool is_words(const char *p, i64 left) { return (((u64)p | (u64)left) & 3) == 0; }

FN Raw load(const char *p, i64 i, i64 bytes, bool aligned) {
	if (aligned && (i + 1) * PACK <= bytes) return ((const Raw *)p)[i];
	Raw x = {};
	const char *from = p + i * PACK;
	i64 left = bytes - i * PACK;
	if (is_words(from, left)) {
#pragma unroll
		for (int j = 0; j < PACK / 4; j++) {
			if (4 * j < left) x.w[j] = ((const u32 *)from)[j];
		}
		return x;
	}
#pragma unroll 1
	for (int j = 0; j < PACK && j < left; j++) ((u8 *)&x)[j] = ((const u8 *)from)[j];
	return x;
}
FN void store(char *p, i64 i, i64 bytes, bool aligned, const Raw &x) {
	if (aligned && (i + 1) * PACK <= bytes) {
		((Raw *)p)[i] = x;
		return;
	}
	char *to = p + i * PACK;
	i64 left = bytes - i * PACK;
	if (is_words(to, left)) {
#pragma unroll
		for (int j = 0; j < PACK / 4; j++) {
			if (4 * j < left) ((u32 *)to)[j] = x.w[j];
		}
		return;
	}
#pragma unroll 1
	for (int j = 0; j < PACK && j < left; j++) ((u8 *)to)[j] = ((const u8 *)&x)[j];
}

template <int OP, typename T> FN void combine_all(typename Acc<T>::type *sum, const Pack<T> &x) {
	typedef typename Acc<T>::type A;
#pragma unroll
	for (int j = 0; j < 16 / (int)sizeof(T); j++) sum[j] = combine<OP, A>(sum[j], Acc<T>::get(x.v[j]));
}

// fold_as reduces the packs at base[r] + at, of which it loads four at a time.
template <typename T> FN Raw fold_as(int op, int size, const char *const *base, i64 at) {
	enum { V = 16 / sizeof(T), AHEAD = 4 };
	typedef typename Acc<T>::type A;
	A sum[V];
	for (int r = 0; r < size; r += AHEAD) {
		Pack<T> x[AHEAD];
#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			if (r + k < size) x[k] = *(const Pack<T> *)(base[r + k] + at);
		}
#pragma unroll (V > 4 ? 1 : AHEAD) // of 1 and 2 bytes it would be half of the time that all this takes to compile
		for (int k = 0; k < AHEAD; k++) {
			if (r + k >= size) {
			} else if (r + k == 0) {
#pragma unroll
				for (int j = 0; j < V; j++) sum[j] = Acc<T>::get(x[0].v[j]);
			} else if (op == PROD) {
				combine_all<PROD>(sum, x[k]);
			} else if (op == MIN) {
				combine_all<MIN>(sum, x[k]);
			} else if (op == MAX) {
				combine_all<MAX>(sum, x[k]);
			} else {
				combine_all<SUM>(sum, x[k]);
			}
		}
	}
	union { Pack<T> of; Raw raw; } y;
#pragma unroll
	for (int j = 0; j < V; j++) {
		if (op == AVG) sum[j] = (A)(sum[j] / (A)size);
		y.of.v[j] = Acc<T>::put(sum[j]);
	}
	return y.raw;
}

// fold_complex is fold_as of complex numbers with parts of type T. All but the product is done part by part.
template <typename T> FN Raw fold_complex(int op, int size, const char *const *base, i64 at) {
	if (op != PROD) return fold_as<T>(op, size, base, at);
	union { Pack<T> of; Raw raw; } y;
	y.of = *(const Pack<T> *)(base[0] + at);
	for (int r = 1; r < size; r++) {
		Pack<T> x = *(const Pack<T> *)(base[r] + at);
#pragma unroll
		for (int j = 0; j < 16 / (int)sizeof(T); j += 2) {
			double a = y.of.v[j], b = y.of.v[j + 1], c = x.v[j], d = x.v[j + 1];
			y.of.v[j] = (T)(a * c - b * d);
			y.of.v[j + 1] = (T)(a * d + b * c);
		}
	}
	return y.raw;
}

// fold_packs is one function for all kernels, or it would take minutes to compile. It is bound by memory, not by calls.
static __device__ __noinline__ Raw fold_packs(int type, int op, int size, const char *const *base, i64 at) {
	switch (type) {
	case INT8: return fold_as<i8>(op, size, base, at);
	case UINT8: return fold_as<u8>(op, size, base, at);
	case INT32: return fold_as<int>(op, size, base, at);
	case UINT32: return fold_as<u32>(op, size, base, at);
	case INT64: return fold_as<i64>(op, size, base, at);
	case UINT64: return fold_as<u64>(op, size, base, at);
	case FLOAT16: return fold_as<f16>(op, size, base, at);
	case BFLOAT16: return fold_as<bf16>(op, size, base, at);
	case FLOAT32: return fold_as<float>(op, size, base, at);
	case FLOAT64: return fold_as<double>(op, size, base, at);
	case COMPLEX64: return fold_complex<float>(op, size, base, at);
	default: return fold_complex<double>(op, size, base, at);
	}
}

// The largest blocks. What a thread may need of registers depends on them: without them it would be too many to launch.
enum { FOLD_THREADS = 256, BARRIER_THREADS = 32, ALL_REDUCE_THREADS = 512 };

FN i64 grid_index() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
FN i64 grid_size() { return (i64)gridDim.x * blockDim.x; }

// dst = op over the ranks r of the bytes at base[r] + offset; base[r] and offset are aligned to 16.
//
//	fold(dst, base, offset I64, bytes I64, type I32, op I32, size I32)
extern "C" __global__ void __launch_bounds__(FOLD_THREADS) fold(char *dst, const char *const *base, i64 offset, i64 bytes, int type, int op, int size) {
	bool out = is_aligned(dst);
	for (i64 i = grid_index(); i < (bytes + PACK - 1) / PACK; i += grid_size()) {
		store(dst, i, bytes, out, fold_packs(type, op, size, base, offset + i * PACK));
	}
}
