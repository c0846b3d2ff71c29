// Scans: dst[i] is the sum of the elements up to x[i], or of those before it.

// A thread loads ROUNDS vectors: its warp a piece of the tile, and in each round 32 vectors that
// lie side by side.
#ifndef ROUNDS
#define ROUNDS 8
#endif

// scan_block scans the tile from start on. It calls before with the sum of the tile for the sum
// before it.
template <typename T, int COUNT, int R, typename F>
SPMD_FN void scan_block(T *dst, const T *x, int64_t start, int64_t n, bool exclusive, F before) {
	const int V = 16 / sizeof(T);
	__shared__ T of_warp[COUNT / 32];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int64_t first = start + (int64_t)warp * (32 * R * V) + lane * V;
	bool full = start + COUNT * R * V <= n;
	bool whole = full && to_aligned(x) == 0, to_whole = full && to_aligned(dst) == 0;
	vector<T> v[R];
#pragma unroll
	for (int r = 0; r < R; r++) v[r] = load_vector(x, first + r * (32 * V), n, whole, (T)0);
	wait_previous(); // which wrote no element of x
	T base[R], sum = 0;
#pragma unroll
	for (int r = 0; r < R; r++) {
#pragma unroll
		for (int k = 1; k < V; k++) v[r].at[k] = v[r].at[k - 1] + v[r].at[k];
		T upto = warp_scan(v[r].at[V - 1]);
		T earlier = __shfl_up_sync(0xffffffffu, upto, 1);
		base[r] = sum + (lane == 0 ? (T)0 : earlier);
		sum = sum + __shfl_sync(0xffffffffu, upto, 31);
	}
	if (lane == 0) of_warp[warp] = sum;
	__syncthreads();
	T mine = 0, all = 0;
#pragma unroll
	for (int w = 0; w < COUNT / 32; w++) {
		if (w == warp) mine = all;
		all = all + of_warp[w];
	}
	mine = before(all) + mine;
#pragma unroll
	for (int r = 0; r < R; r++) {
		T from = mine + base[r];
		vector<T> out;
#pragma unroll
		for (int k = 0; k < V; k++) {
			T earlier = k == 0 ? from : from + v[r].at[k == 0 ? 0 : k - 1];
			out.at[k] = exclusive ? earlier : from + v[r].at[k];
		}
		store_vector(dst, first + r * (32 * V), n, to_whole, out);
	}
}

// scan goes by tiles. first is added to all; it is 0 if it is null.
//
//	scan(dst, x, n I64, first, exclusive Bool, words, tiles I64)
template <typename T>
__global__ void __launch_bounds__(THREADS, 4)
	scan(T *dst, const T *x, int64_t n, const T *first, bool exclusive, uint64_t *words, int64_t tiles) {
	chain<T> c(words, tiles);
	int64_t tile = c.number();
	T add = first == nullptr ? (T)0 : *first;
	scan_block<T, THREADS, ROUNDS>(dst, x, tile * (THREADS * ROUNDS * 16 / (int)sizeof(T)), n, exclusive,
		[&](T sum) { return c.before(tile, sum, add); });
}

// scan_small takes one block.
//
//	scan_small(dst, x, n I64, first, exclusive Bool)
template <typename T>
__global__ void __launch_bounds__(1024) scan_small(T *dst, const T *x, int64_t n, const T *first, bool exclusive) {
	T add = first == nullptr ? (T)0 : *first;
	scan_block<T, 1024, sizeof(T)>(dst, x, 0, n, exclusive, [&](T) { return add; });
}
