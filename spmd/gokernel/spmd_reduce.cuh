// What reduces the results of kernels in Go, a part of spmd_go.cuh.
#ifndef SPMD_REDUCE_CUH
#define SPMD_REDUCE_CUH

namespace spmd {

// share is how many of n values a block of a reduction takes, as in Go's share.
SPMD_FN int64_t share(int64_t n) {
	int64_t each = (n + 1023) / 1024;
	if (each > 64 * LANES) each = 64 * LANES;
	if (each < 8 * LANES) each = 8 * LANES;
	if (each < (n + 4095) / 4096) each = (n + 4095) / 4096;
	return (each + LANES - 1) / LANES * LANES;
}

// The operations of reductions, each with the value that changes nothing.
template <typename T> SPMD_FN T lowest();
template <> __device__ __forceinline__ int32_t lowest() { return -2147483647 - 1; }
template <> __device__ __forceinline__ int64_t lowest() { return -9223372036854775807L - 1; }
template <> __device__ __forceinline__ uint32_t lowest() { return 0; }
template <> __device__ __forceinline__ uint64_t lowest() { return 0; }
template <> __device__ __forceinline__ float lowest() { return (float)inf(-1); }
template <> __device__ __forceinline__ double lowest() { return inf(-1); }
template <typename T> SPMD_FN T highest();
template <> __device__ __forceinline__ int32_t highest() { return 2147483647; }
template <> __device__ __forceinline__ int64_t highest() { return 9223372036854775807L; }
template <> __device__ __forceinline__ uint32_t highest() { return 0xffffffffu; }
template <> __device__ __forceinline__ uint64_t highest() { return 0xffffffffffffffffu; }
template <> __device__ __forceinline__ float highest() { return (float)inf(1); }
template <> __device__ __forceinline__ double highest() { return inf(1); }

// with enters a value of f, and result is the value to store.
template <typename T, typename Op> struct op_plain {
	typedef T acc;
	SPMD_INLINE static T with(T a, T b) { return Op::of(a, b); }
	SPMD_INLINE static T result(T a) { return a; }
};
template <typename T> struct op_sum : op_plain<T, op_sum<T>> {
	SPMD_INLINE static T none() { return 0; }
	SPMD_INLINE static T of(T a, T b) { return a + b; }
};
template <typename T> struct op_prod : op_plain<T, op_prod<T>> {
	SPMD_INLINE static T none() { return 1; }
	SPMD_INLINE static T of(T a, T b) { return a * b; }
};
template <typename T> struct op_min : op_plain<T, op_min<T>> {
	SPMD_INLINE static T none() { return highest<T>(); }
	SPMD_INLINE static T of(T a, T b) { return min_of(a, b); }
};
template <typename T> struct op_max : op_plain<T, op_max<T>> {
	SPMD_INLINE static T none() { return lowest<T>(); }
	SPMD_INLINE static T of(T a, T b) { return max_of(a, b); }
};

// op_named is a function in Go, F::call. No value changes nothing in it.
template <typename T> struct maybe {
	T v;
	bool has;
};
template <typename T, typename F> struct op_named {
	typedef maybe<T> acc;
	SPMD_INLINE static acc none() { return {T(), false}; }
	SPMD_INLINE static acc with(acc a, T b) { return {a.has ? F::call(a.v, b) : b, true}; }
	SPMD_INLINE static acc of(acc a, acc b) { return !b.has ? a : with(a, b.v); }
	SPMD_INLINE static T result(acc a) { return a.v; }
};

template <typename T> SPMD_FN T shuffle(T v, int d) { return __shfl_xor_sync(0xffffffffu, v, d); }
template <typename T> SPMD_FN complex<T> shuffle(complex<T> v, int d) { return {shuffle(v.re, d), shuffle(v.im, d)}; }

template <typename T> SPMD_FN maybe<T> shuffle(maybe<T> v, int d) {
	return {shuffle(v.v, d), shuffle((int)v.has, d) != 0};
}

// block_reduce is over the threads of the block. In each step partners compute the same pair, as
// Go's tree does.
template <typename T, typename Op> SPMD_FN T block_reduce(T v) {
#pragma unroll
	for (int d = 16; d > 0; d /= 2) v = Op::of(v, shuffle(v, d));
	v = share_warps(v, Op::none());
#pragma unroll
	for (int d = 16; d > 0; d /= 2) v = Op::of(v, shuffle(v, d));
	return v;
}

// reduce1 sets to[blockIdx.x] to the result of f over the block's share of n indices. A thread takes
// W neighbours of every 256 times W. It loads the elements of DEEP such packs before it uses the
// first.
template <typename Op, typename I, typename T, typename F, typename... U>
SPMD_FN void reduce1(T *to, int64_t n, F f, const U &...u) {
	const int USED = sizeof...(U), W = USED ? 16 / largest<2, U...>::size : 1;
	const int DEEP = W == 1 || W > 4 ? 1 : USED > 4 ? 1 : 4 / (USED ? USED : 1), step = LANES * W;
	int64_t first = share(n) * blockIdx.x, end = first + share(n);
	if (end > n) end = n;
	typename Op::acc v = Op::none();
	int64_t at = first + threadIdx.x * W;
	if (sizeof(I) == 4 && all_fit<W>(n, u...)) {
		auto enter = [&](held_all<W, U...> &held, int64_t i) {
#pragma unroll
			for (int e = 0; e < W; e++) v = Op::with(v, held.call(f, e, i + e));
			held.keep();
		};
		if (W == 1 || DEEP == 4) {
			for (; at + 3 * step + W <= end; at += 4 * step) {
				held_all<W, U...> a(at, u...), b(at + step, u...), c(at + 2 * step, u...), d(at + 3 * step, u...);
				enter(a, at);
				enter(b, at + step);
				enter(c, at + 2 * step);
				enter(d, at + 3 * step);
			}
		}
		if (DEEP == 2) {
			for (; at + step + W <= end; at += 2 * step) {
				held_all<W, U...> a(at, u...), b(at + step, u...);
				enter(a, at);
				enter(b, at + step);
			}
		}
		for (; at + W <= end; at += step) {
			held_all<W, U...> a(at, u...);
			enter(a, at);
		}
	}
	for (; at < end; at += step) {
		for (int e = 0; e < W && at + e < end; e++) v = Op::with(v, f(at + e, u.x...));
	}
	v = block_reduce<typename Op::acc, Op>(v);
	if (threadIdx.x == 0) to[blockIdx.x] = Op::result(v);
}

// reduce2 and reduce3 are reduce1 over pairs and triples of indices.
template <typename Op, typename I, typename T, typename F>
SPMD_FN void reduce2(T *to, int64_t ni, int64_t nj, F f) {
	reduce1<Op, I>(to, ni * nj, [&](int64_t at) {
		I row = (I)at / (I)nj;
		return f((int64_t)row, (int64_t)((I)at - row * (I)nj));
	});
}
template <typename Op, typename I, typename T, typename F>
SPMD_FN void reduce3(T *to, int64_t ni, int64_t nj, int64_t nk, F f) {
	reduce1<Op, I>(to, ni * nj * nk, [&](int64_t at) {
		I row = (I)at / (I)nk, plane = row / (I)nj;
		return f((int64_t)plane, (int64_t)(row - plane * (I)nj), (int64_t)((I)at - row * (I)nk));
	});
}

// reduce_parts sets *to to the result over n parts, in one block.
template <typename Op, typename T> SPMD_FN void reduce_parts(T *to, const T *part, int64_t n) {
	typename Op::acc v = Op::none();
#pragma unroll 4
	for (int64_t i = threadIdx.x; i < n; i += LANES) v = Op::with(v, part[i]);
	v = block_reduce<typename Op::acc, Op>(v);
	if (threadIdx.x == 0) *to = Op::result(v);
}

} // namespace spmd

#endif
