// What kernels of rows stand on: a row has N threads, the 32 of a warp or those of a block. A loop over its elements gives a
// thread V that follow each other, so that 16 bytes are moved at once; which thread has an element depends on its place alone.
#ifndef SPMD_ROWS_CUH
#define SPMD_ROWS_CUH
#include "spmd_go.cuh"

#ifdef SPMD_BOUNDS
#define SPMD_KEPT(n, most, place) spmd::check(r_, n, most + 1, place)
#else
#define SPMD_KEPT(n, most, place)
#endif

namespace spmd {

enum { WARPS_OF_ROWS = 8 }; // of a block, where a warp has a row

template <int N, typename F> SPMD_FN void each_row(int64_t n, F f) {
	int64_t i = N == 32 ? (int64_t)blockIdx.x * WARPS_OF_ROWS + threadIdx.x / 32 : blockIdx.x;
	if (i < n) f(i);
}

// leads says whether this thread does what is done once for the row.
template <int N> SPMD_FN bool leads() { return threadIdx.x % N == 0; }

// meet waits for the threads of the row; meet_any does where arguments may overlap.
template <int N> SPMD_FN void meet() {
	if (N == 32) __syncwarp();
	else __syncthreads();
}
template <int N, typename I> SPMD_FN void meet_any() {
	if (sizeof(I) == 8) meet<N>();
}

// row_reduce gives all threads of the row the result over their values. They meet.
template <typename T, typename Op, int N> SPMD_FN T row_reduce(T v) {
	if (N > 32) return block_reduce<T, Op>(v);
#pragma unroll
	for (int d = 16; d > 0; d /= 2) v = Op::of(v, shuffle(v, d));
	__syncwarp();
	return v;
}

// zero clears an array that the threads of a row share.
template <int N, typename T, int M> SPMD_FN void zero(array<T, M> &x) {
	for (int i = threadIdx.x % N; i < M; i += N) x.v[i] = {};
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

template <bool READ, bool WRITTEN, typename T, typename I> SPMD_FN used<T, I, READ, WRITTEN> use(const slice<T, I> &x) { return {x}; }

template <int V> SPMD_FN bool all_fit(int64_t) { return true; }
template <int V, typename U, typename... R> SPMD_FN bool all_fit(int64_t n, const U &u, const R &...rest) {
	return fits<V>(u.x, n) && all_fit<V>(n, rest...);
}

template <int V, typename F, typename... H> SPMD_FN void of_held(int64_t at, int slot, F &f, H &&...h) {
#pragma unroll
	for (int e = 0; e < V; e++) f(at + e, slot + e, h.one(e)...);
	int done[] = {0, (h.store(), 0)...};
	(void)done;
}

template <int V, typename F, typename... U> SPMD_FN void of_pack(int64_t at, int slot, F &f, const U &...u) {
	of_held<V>(at, slot, f, typename U::template held<V>(u, at)...);
}

// elements calls f for every element of n: f has its index, its place among those that the thread keeps, and the slices.
// Four packs of a thread are loaded before the first is used. With KEEP a thread has at most so many packs.
template <int N, int V, int KEEP, typename I, typename F, typename... U> SPMD_FN void elements(int64_t n, F f, const U &...u) {
	const int step = N * V, times = KEEP ? KEEP : 4;
	int64_t first = threadIdx.x % N * V;
	if (sizeof(I) == 4 && (V == 1 || n % V == 0 && all_fit<V>(n, u...))) {
		for (int at = (int)first; at < (int)n; at += times * step) {
#pragma unroll
			for (int k = 0; k < times; k++) {
				if (at + k * step < (int)n) of_pack<V>(at + k * step, k * V, f, u...);
			}
			if (KEEP) break;
		}
		return;
	}
	if (KEEP) {
#pragma unroll
		for (int k = 0; k < KEEP * V; k++) {
			int64_t at = first + k / V * step + k % V;
			if (at < n) f(at, k, u.x...);
		}
		return;
	}
	for (; first < n; first += step) {
		for (int e = 0; e < V && first + e < n; e++) f(first + e, 0, u.x...);
	}
}

} // namespace spmd

#endif
