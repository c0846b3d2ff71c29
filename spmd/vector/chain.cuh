// The base of kernels that pass once over memory, though each tile needs a sum over all tiles
// before it. Tiles are the blocks of a grid, which start in the order of their numbers: a tile
// waits only for blocks that run or have run.
//
// GROUP tiles are a group, GROUP groups a field. The sum before a tile is that of the fields before
// its own, plus that of the groups before its own in the field, plus that of the tiles before it in
// the group. A tile waits for no more than GROUP words of each kind. The order of additions depends
// on the number of tiles alone.
#include "spmd.cuh"

#ifndef GROUP
#define GROUP 32
#endif
enum { THREADS = 256, WARPS = THREADS / 32 };

// A value that others wait for lies in words of 64 bits. Each has 32 bits of it and says whether
// they are there.
template <typename T> SPMD_FN void publish(uint64_t *slots, int64_t i, T v) {
	const int words = sizeof(T) / 4;
	union { T v; uint32_t part[words]; } u;
	u.v = v;
#pragma unroll
	for (int w = 0; w < words; w++) ((volatile uint64_t *)slots)[i * words + w] = (uint64_t)1 << 32 | u.part[w];
}

template <typename T> SPMD_FN T await(uint64_t *slots, int64_t i) {
	const int words = sizeof(T) / 4;
	union { T v; uint32_t part[words]; } u;
#pragma unroll
	for (int w = 0; w < words; w++) {
		uint64_t word;
		do word = ((volatile uint64_t *)slots)[i * words + w];
		while (word >> 32 == 0);
		u.part[w] = (uint32_t)word;
	}
	return u.v;
}

// chain is the place where the tiles of a launch publish their sums. The words are 0 before it.
template <typename T> struct chain {
	uint64_t *tiles, *groups, *fields, *started;

	// The words of so many tiles; in Go chainWords.
	__device__ __forceinline__ chain(uint64_t *words, int64_t count) {
		const int each = sizeof(T) / 4;
		int64_t in_groups = (count + GROUP - 1) / GROUP;
		started = words;
		tiles = words + 2;
		groups = tiles + count * each;
		fields = groups + in_groups * each;
	}

	// number is that of this block's tile. Emulated, blocks start in another order than that of
	// their numbers.
	__device__ __forceinline__ int64_t number() {
#ifdef SPMD_EMULATED
		__shared__ uint64_t tile;
		if (threadIdx.x == 0) tile = atomicAdd((unsigned long long *)started, 1ull);
		__syncthreads();
		return tile;
#else
		return blockIdx.x;
#endif
	}

	// before publishes the sum of a tile, and returns first plus the sum of all tiles before it.
	// All threads of the block call it, at least 96, with the same arguments.
	__device__ __forceinline__ T before(int64_t tile, T sum, T first) {
		__shared__ T part[3];
		int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
		int64_t group = tile / GROUP, field = group / GROUP;
		int in_group = tile % GROUP, in_field = group % GROUP;
		if (threadIdx.x == 0) publish(tiles, tile, sum);
		if (warp < 2) {
			bool earlier = lane < (warp == 0 ? in_group : in_field);
			T v = 0;
			if (earlier) v = warp == 0 ? await<T>(tiles, group * GROUP + lane) : await<T>(groups, field * GROUP + lane);
			__syncwarp();
			v = warp_sum(v);
			if (lane == 0) part[warp] = v;
			if (warp == 0 && lane == 0 && in_group == GROUP - 1) publish(groups, group, v + sum);
		} else if (warp == 2 && lane == 0) {
			part[2] = field == 0 ? first : await<T>(fields, field);
		}
		__syncthreads();
		T all = (part[2] + part[1]) + part[0];
		if (threadIdx.x == 0 && in_group == GROUP - 1 && in_field == GROUP - 1) publish(fields, field + 1, all + sum);
		return all;
	}
};

// clear_words sets n words to 0.
//
//	clear_words(words, n I64)
extern "C" __global__ void clear_words(uint64_t *words, int64_t n) {
	start_next();
	for (int64_t i = grid_index(); i < n; i += grid_size()) words[i] = 0;
}

// A thread loads a vector at once.
template <typename T> struct alignas(16) vector { T at[16 / sizeof(T)]; };

// load_vector loads the elements from i on that lie below n, and none for others. whole says that
// all do, and that x is aligned.
template <typename T> SPMD_FN vector<T> load_vector(const T *x, int64_t i, int64_t n, bool whole, T none) {
	const int V = 16 / sizeof(T);
	if (whole) return *(const vector<T> *)(x + i);
	vector<T> v;
#pragma unroll
	for (int k = 0; k < V; k++) v.at[k] = i + k < n ? x[i + k] : none;
	return v;
}

template <typename T> SPMD_FN void store_vector(T *x, int64_t i, int64_t n, bool whole, vector<T> v) {
	const int V = 16 / sizeof(T);
	if (whole) {
		*(vector<T> *)(x + i) = v;
		return;
	}
#pragma unroll
	for (int k = 0; k < V; k++) {
		if (i + k < n) x[i + k] = v.at[k];
	}
}

// warp_scan is, on each lane, the sum of the lanes up to it.
template <typename T> SPMD_FN T warp_scan(T v) {
#pragma unroll
	for (int d = 1; d < 32; d *= 2) {
		T other = __shfl_up_sync(0xffffffffu, v, d);
		if (threadIdx.x % 32 >= d) v = other + v;
	}
	return v;
}
