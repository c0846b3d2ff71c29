// Compaction: the elements whose flag is not 0, in their order.

enum { ROUNDS = 4 };

// compact keeps an element x[i] if keep[i] is not 0. T is an unsigned integer of the size of the
// elements. dst may be x: a tile has read its part before others know the place of theirs.
//
//	compact(dst, count, x, keep, n I64, words, tiles I64)
template <typename T>
__global__ void __launch_bounds__(THREADS) compact(T *dst, int64_t *count, const T *x, const uint8_t *keep, int64_t n,
	uint64_t *words, int64_t tiles) {
	const int V = 16 / sizeof(T), TILE = THREADS * ROUNDS * V;
	__shared__ T kept[TILE];
	__shared__ int of_warp[WARPS];
	chain<int64_t> c(words, tiles);
	int64_t tile = c.number(), start = tile * TILE;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int64_t first = start + warp * (32 * ROUNDS * V) + lane * V;
	bool full = start + TILE <= n, whole = full && to_aligned(x) == 0;
	vector<T> v[ROUNDS];
	uint32_t wanted[ROUNDS], counts = 0; // bits of the elements; the counts of the rounds in bytes
#pragma unroll
	for (int r = 0; r < ROUNDS; r++) {
		int64_t i = first + r * (32 * V);
		v[r] = load_vector(x, i, n, whole, (T)0);
		wanted[r] = 0;
#pragma unroll
		for (int k = 0; k < V; k++) wanted[r] |= (i + k < n && keep[i + k] != 0 ? 1u : 0u) << k;
		counts |= (uint32_t)__popc(wanted[r]) << 8 * r; // a round has at most 128
	}
	wait_previous(); // which wrote neither x nor keep
	uint32_t upto = warp_scan(counts), totals = __shfl_sync(0xffffffffu, upto, 31), earlier = upto - counts;
	int base[ROUNDS], sum = 0;
#pragma unroll
	for (int r = 0; r < ROUNDS; r++) {
		base[r] = sum + (earlier >> 8 * r & 0xff);
		sum += totals >> 8 * r & 0xff;
	}
	if (lane == 0) of_warp[warp] = sum;
	__syncthreads();
	int mine = 0, all = 0;
#pragma unroll
	for (int w = 0; w < WARPS; w++) {
		if (w == warp) mine = all;
		all += of_warp[w];
	}
#pragma unroll
	for (int r = 0; r < ROUNDS; r++) {
		int at = mine + base[r];
#pragma unroll
		for (int k = 0; k < V; k++) {
			if (wanted[r] >> k & 1) kept[at++] = v[r].at[k];
		}
	}
	int64_t before = c.before(tile, (int64_t)all, (int64_t)0); // behind it all of kept is there
	for (int i = threadIdx.x; i < all; i += THREADS) dst[before + i] = kept[i];
	if (tile == tiles - 1 && threadIdx.x == 0) *count = before + all;
}
