// The base of kernels of rows. A row has N threads, the 32 of a warp or those of a block. A loop
// over its elements gives a thread V that follow each other, so that 16 bytes are moved at once.
// Which thread has an element depends on its place alone.
#ifndef SPMD_ROWS_CUH
#define SPMD_ROWS_CUH
#include "spmd_go.cuh"

#ifdef SPMD_BOUNDS
#define SPMD_KEPT(n, most, place) spmd::check(spmd_r, n, most + 1, place)
#else
#define SPMD_KEPT(n, most, place)
#endif

namespace spmd {

enum { WARPS_OF_ROWS = 8 }; // of a block, where a warp has a row

template <int N, typename F> SPMD_FN void each_row(int64_t n, F f) {
	int64_t i = N == 32 ? (int64_t)blockIdx.x * WARPS_OF_ROWS + threadIdx.x / 32 : blockIdx.x;
	if (i < n) f(i);
}

// leads says whether this thread does the work that is done once for the row.
template <int N> SPMD_FN bool leads() { return threadIdx.x % N == 0; }

// meet waits for the threads of the row; meet_any does if arguments may overlap.
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
template <int N, typename T> SPMD_FN void zero(T &x) {
	if (sizeof(T) % 4 == 0) {
		for (int i = threadIdx.x % N; i < (int)(sizeof(T) / 4); i += N) ((uint32_t *)&x)[i] = 0;
	} else {
		for (int i = threadIdx.x % N; i < (int)sizeof(T); i += N) ((uint8_t *)&x)[i] = 0;
	}
}

// elements calls f for every element of n: f has its index, its place among those that the thread
// keeps, and the slices. Up to four packs of a thread are loaded before the first is used. With
// KEEP a thread has at most so many packs.
template <int N, int V, int KEEP, typename I, typename F,
	typename... U> SPMD_FN void elements(int64_t n, F f, const U &...u) {
	const int step = N * V;
	int64_t first = threadIdx.x % N * V;
	if (sizeof(I) == 4 && (V == 1 || n % V == 0 && all_fit<V>(n, u...))) {
		auto enter = [&](held_all<V, U...> &held, int at, int slot) {
#pragma unroll
			for (int e = 0; e < V; e++) held.call(f, e, at + e, slot + e);
			held.keep();
		};
		int at = (int)first;
		if (KEEP) {
#pragma unroll
			for (int k = 0; k < KEEP; k++) {
				if (at + k * step >= (int)n) continue;
				held_all<V, U...> held(at + k * step, u...);
				enter(held, at + k * step, k * V);
			}
			return;
		}
		for (; at + 3 * step < (int)n; at += 4 * step) {
			held_all<V, U...> a(at, u...), b(at + step, u...), c(at + 2 * step, u...), d(at + 3 * step, u...);
			enter(a, at, 0);
			enter(b, at + step, 0);
			enter(c, at + 2 * step, 0);
			enter(d, at + 3 * step, 0);
		}
		if (at + step < (int)n) {
			held_all<V, U...> a(at, u...), b(at + step, u...);
			enter(a, at, 0);
			enter(b, at + step, 0);
			at += 2 * step;
		}
		if (at < (int)n) {
			held_all<V, U...> a(at, u...);
			enter(a, at, 0);
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

// unset leaves it as it is. Emulated, it has a value that no kernel expects, so that tests find
// reads of it.
template <int N, typename T> SPMD_FN void unset(T &x) {
#ifdef SPMD_EMULATED
	for (int i = threadIdx.x % N; i < (int)sizeof(T); i += N) ((uint8_t *)&x)[i] = 0xff;
	meet<N>();
#endif
}

} // namespace spmd

#endif
