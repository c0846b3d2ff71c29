// Radix sort, from the lowest digit of 8 bits to the highest. One kernel counts all digits of all
// keys. Then each pass reads and writes every key once. A block sorts a tile. It looks back at the
// tiles before it, and so learns where its keys of each digit go.
//
// Source: Adinets, Merrill: Onesweep: a faster least significant digit radix sort for GPUs (2022).
#include "spmd.cuh"

enum { UNSIGNED, SIGNED, FLOATS }; // kinds of keys, as in sort.go
enum { DIGITS = 256, THREADS = 384, WARPS = THREADS / 32, COUNTERS = 512, HEAD = 16 };

// tuned has, for the bytes of the larger of key and value, how many keys of a tile a thread has,
// and how many blocks are to fit on a multiprocessor. Chosen on an H100.
template <int BYTES, bool PAIRS> struct tuned {
#ifdef ITEMS
	enum { ITEMS_OF_THREAD = ITEMS, BLOCKS = 2 };
#else
	enum { ITEMS_OF_THREAD = BYTES == 8 ? 10 : PAIRS ? 20 : 16, BLOCKS = PAIRS ? 2 : 3 };
#endif
};

// The memory that passes share: twice the places where the keys of a digit begin, for each pass;
// counts of blocks; and the words that tiles say of their digits.
SPMD_FN uint64_t *places(uint64_t *work, int set, int pass) { return work + (set * 8 + pass) * DIGITS; }
SPMD_FN unsigned long long *blocks(uint64_t *work, int which) {
	return (unsigned long long *)(work + 16 * DIGITS + which);
}
SPMD_FN uint32_t *said(uint64_t *work) { return (uint32_t *)(work + 16 * DIGITS + HEAD); }

// order maps keys to unsigned numbers of the same order, and back. It changes signed integers and
// floats; NaNs come last, and become one. It has no branch, so that loops of it keep their
// loads together.
template <typename K> struct order {
	K flipped, limit; // the bits that change in all keys, and the largest magnitude that is a number
	bool floats;

	__device__ __forceinline__ explicit order(int kind) {
		const K inf = sizeof(K) == 4 ? (K)0x7f800000u : (K)0x7ff0000000000000u;
		floats = kind == FLOATS;
		flipped = kind == UNSIGNED ? 0 : sign();
		limit = floats ? inf : ~(K)0;
	}
	static __device__ __forceinline__ K sign() { return (K)1 << (8 * sizeof(K) - 1); }
	__device__ __forceinline__ K into(K k) const {
		const K nan = sizeof(K) == 4 ? (K)0x7fc00000u : (K)0x7ff8000000000000u;
		k = (k & ~sign()) > limit ? nan : k;
		return k ^ (flipped | (floats && k >= sign() ? ~(K)0 : (K)0));
	}
	__device__ __forceinline__ K out_of(K k) const { return k ^ (flipped | (floats && k < sign() ? ~(K)0 : (K)0)); }
};

template <typename K> SPMD_FN int digit(K k, int pass) { return (int)(k >> 8 * pass) & (DIGITS - 1); }

// warp_scan is, on each lane, the sum of the lanes up to it.
template <typename T> SPMD_FN T warp_scan(T v) {
#pragma unroll
	for (int d = 1; d < 32; d *= 2) {
		T other = __shfl_up_sync(0xffffffffu, v, d);
		if (threadIdx.x % 32 >= d) v += other;
	}
	return v;
}

// digits_before is the sum of v over the threads before this one, of the first 256.
template <typename T> SPMD_FN T digits_before(T v) {
	__shared__ T of_warp[DIGITS / 32];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	T upto = warp_scan(v);
	__syncthreads(); // of_warp may still be read
	if (warp < DIGITS / 32 && lane == 31) of_warp[warp] = upto;
	__syncthreads();
	T before = upto - v;
#pragma unroll
	for (int w = 0; w < DIGITS / 32; w++) {
		if (w < warp) before += of_warp[w];
	}
	return before;
}

// clear_words sets the words from begin to end-1 to 0.
//
//	clear_words(words, begin I64, end I64)
extern "C" __global__ void clear_words(uint64_t *words, int64_t begin, int64_t end) {
	start_next();
	for (int64_t i = begin + grid_index(); i < end; i += grid_size()) words[i] = 0;
}

// count_digits makes the places of all passes. The last block to finish adds up all counts.
//
//	count_digits(work, x, n I64, kind I32)
template <typename K>
__global__ void __launch_bounds__(COUNTERS) count_digits(uint64_t *work, const K *x, int64_t n, int kind) {
	const int PASSES = sizeof(K), V = 16 / sizeof(K), COPIES = 32 / PASSES, DEEP = 4;
	struct alignas(16) vector { K at[V]; };
	__shared__ uint32_t own[PASSES * DIGITS * COPIES]; // side by side, so that equal digits do not wait for each other
	__shared__ bool last;
	start_next();
	for (int i = threadIdx.x; i < PASSES * DIGITS * COPIES; i += COUNTERS) own[i] = 0;
	__syncthreads();
	uint32_t *mine = own + threadIdx.x % COPIES;
	const order<K> as(kind);
	auto count = [=](K k) {
		if (kind != UNSIGNED) k = as.into(k);
#pragma unroll
		for (int p = 0; p < PASSES; p++) atomicAdd(&mine[(p * DIGITS + digit(k, p)) * COPIES], 1u);
	};
	int64_t head = to_aligned(x), vectors = n > head ? (n - head) / V : 0, step = grid_size();
	const vector *v = (const vector *)(x + head);
	int64_t i = grid_index();
	for (; i + (DEEP - 1) * step < vectors; i += DEEP * step) {
		vector some[DEEP];
#pragma unroll
		for (int d = 0; d < DEEP; d++) some[d] = v[i + d * step];
#pragma unroll
		for (int d = 0; d < DEEP; d++) {
#pragma unroll
			for (int k = 0; k < V; k++) count(some[d].at[k]);
		}
	}
	for (; i < vectors; i += step) {
		vector some = v[i];
#pragma unroll
		for (int k = 0; k < V; k++) count(some.at[k]);
	}
	for (int64_t k = grid_index(); k < head && k < n; k += step) count(x[k]);
	for (int64_t k = head + vectors * V + grid_index(); k < n; k += step) count(x[k]);
	__syncthreads();
	wait_previous(); // which cleared work, and touched nothing else
	for (int b = threadIdx.x; b < PASSES * DIGITS; b += COUNTERS) {
		uint32_t sum = 0;
#pragma unroll
		for (int c = 0; c < COPIES; c++) sum += own[b * COPIES + (c + b) % COPIES];
		if (sum > 0) atomicAdd((unsigned long long *)&places(work, 0, 0)[b], (unsigned long long)sum);
	}
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) last = atomicAdd(blocks(work, 0), 1ull) == gridDim.x - 1;
	__syncthreads();
	if (!last) return;
	__threadfence();
	for (int p = 0; p < PASSES; p++) {
		volatile uint64_t *place = places(work, 0, p);
		uint64_t v = threadIdx.x < DIGITS ? place[threadIdx.x] : 0;
		v = digits_before(v);
		if (threadIdx.x < DIGITS) place[threadIdx.x] = v;
	}
}

// A word of a tile has a count in its lower bits. The upper bits are 0 at first. Then they are 1
// and 2, 3 and 4 ... in turn of launches: the count is of the tile, or of all tiles up to it.
enum { COUNT_BITS = 27 };

// look_back is the count of a digit in the tiles before; own is the count in the tile itself.
SPMD_FN uint32_t look_back(uint32_t *words, int64_t tile, uint32_t own, uint32_t turn) {
	const uint32_t mask = (1u << COUNT_BITS) - 1, of_tile = 2 * turn + 1, of_all = 2 * turn + 2;
	const int DEEP = 4;
	uint32_t before = 0;
	for (int64_t t = tile - 1; t >= 0;) {
		uint32_t word[DEEP];
#pragma unroll
		for (int d = 0; d < DEEP; d++) word[d] = t >= d ? ((volatile uint32_t *)words)[(t - d) * DIGITS] : 0;
		bool there = true;
#pragma unroll
		for (int d = 0; d < DEEP; d++) {
			uint32_t kind = word[d] >> COUNT_BITS;
			there = there && (kind == of_tile || kind == of_all);
			if (!there) continue;
			before += word[d] & mask;
			t--;
			if (kind == of_all) {
				t = -1;
				there = false;
			}
		}
	}
	((volatile uint32_t *)words)[tile * DIGITS] = of_all << COUNT_BITS | (before + own);
	return before;
}

// sort_pass is one pass over count keys from begin on. Passes write to the upper half of the
// workspace and to dst in turn. Tiles are numbered from 0 in each launch.
//
//	sort_pass(dst, x, values_dst, values, work, upper I64, n I64, kind I32, pass I32, begin I64,
//	          count I64, set I32, turn I32)
template <typename K, typename V, bool PAIRS>
__global__ void __launch_bounds__(THREADS, tuned<PAIRS && sizeof(V) == 8 ? 8 : (int)sizeof(K), PAIRS>::BLOCKS)
sort_pass(K *dst, const K *x, V *values_dst, const V *values, uint64_t *work, int64_t upper, int64_t n, int kind,
	int pass, int64_t begin, int64_t count, int set, int turn) {
	const int BYTES = PAIRS && sizeof(V) > sizeof(K) ? sizeof(V) : sizeof(K), N = tuned<BYTES, PAIRS>::ITEMS_OF_THREAD,
		TILE = THREADS * N;
	__shared__ uint64_t room[(TILE * BYTES + 7) / 8];
	__shared__ uint32_t offsets[WARPS * DIGITS];
	__shared__ int64_t to[DIGITS];
	__shared__ int64_t number;
	start_next();
	K *temporary = (K *)(work + upper);
	V *temporary_values = (V *)(work + upper + (n * (int64_t)sizeof(K) + 7) / 8);
	const K *in = (pass == 0 ? x : pass % 2 == 1 ? temporary : dst) + begin;
	K *out = pass % 2 == 1 ? dst : temporary;
	const V *values_in = (pass == 0 ? values : pass % 2 == 1 ? temporary_values : values_dst) + begin;
	V *values_out = pass % 2 == 1 ? values_dst : temporary_values;
	bool first_pass = pass == 0, last_pass = pass == sizeof(K) - 1;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t *mine = offsets + warp * DIGITS;
	for (int i = threadIdx.x; i < WARPS * DIGITS; i += THREADS) offsets[i] = 0;
	wait_previous();
#ifdef SPMD_EMULATED // blocks start in another order than that of their numbers
	if (threadIdx.x == 0) number = (int64_t)atomicAdd(blocks(work, 1 + turn), 1ull);
#else
	if (threadIdx.x == 0) number = blockIdx.x;
#endif
	__syncthreads();
	int64_t tile = number, start = tile * TILE;
	int valid = (int)(count - start < TILE ? count - start : TILE);

	// The warp has a piece of the tile, and in each round 32 neighbours. Lanes behind the end come
	// last.
	int first = warp * (32 * N) + lane;
	K key[N];
#pragma unroll
	for (int i = 0; i < N; i++) {
		int at = first + 32 * i;
		key[i] = at < valid ? in[start + at] : ~(K)0;
	}
	const order<K> as(kind);
	if (first_pass && kind != UNSIGNED) {
#pragma unroll
		for (int i = 0; i < N; i++) key[i] = first + 32 * i < valid ? as.into(key[i]) : key[i];
	}
#pragma unroll
	for (int i = 0; i < N; i++) atomicAdd(&mine[digit(key[i], pass)], 1u);
	__syncthreads();
	uint32_t own = 0;
	uint32_t *words = said(work) + threadIdx.x;
	if (threadIdx.x < DIGITS) {
#pragma unroll
		for (int w = 0; w < WARPS; w++) {
			uint32_t c = offsets[w * DIGITS + threadIdx.x];
			offsets[w * DIGITS + threadIdx.x] = own;
			own += c;
		}
		((volatile uint32_t *)words)[tile * DIGITS] = (2 * turn + 1u) << COUNT_BITS | own;
	}
	uint32_t before = digits_before(own);
	if (threadIdx.x < DIGITS) {
#pragma unroll
		for (int w = 0; w < WARPS; w++) offsets[w * DIGITS + threadIdx.x] += before;
	}
	__syncthreads();

	// The place of a key in the tile: behind the keys of its digit in the warp so far, in earlier
	// rounds and on lower lanes.
	uint16_t place[N];
#pragma unroll
	for (int i = 0; i < N; i++) {
		int d = digit(key[i], pass);
		uint32_t peers = 0xffffffffu;
#pragma unroll
		for (int b = 0; b < 8; b++) {
			uint32_t has = __ballot_sync(0xffffffffu, d >> b & 1);
			peers &= d >> b & 1 ? has : ~has;
		}
		int leader = __ffs(peers) - 1;
		uint32_t base = 0;
		if (lane == leader) {
			base = mine[d];
			mine[d] = base + __popc(peers);
		}
		__syncwarp();
		base = __shfl_sync(0xffffffffu, base, leader);
		place[i] = (uint16_t)(base + __popc(peers & ((1u << lane) - 1)));
	}
	K *keys_room = (K *)room;
#pragma unroll
	for (int i = 0; i < N; i++) keys_room[place[i]] = key[i];
	if (threadIdx.x < DIGITS) {
		uint64_t begins = places(work, set, pass)[threadIdx.x];
		uint32_t earlier = look_back(words, tile, own, turn);
		to[threadIdx.x] = (int64_t)(begins + earlier) - before;
		// of the next launch
		if (start + TILE >= count) places(work, 1 - set, pass)[threadIdx.x] = begins + earlier + own;
	}
	__syncthreads();
	uint8_t of[N];
	if (last_pass && kind != UNSIGNED) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			int at = threadIdx.x + i * THREADS;
			if (at >= valid) continue;
			K k = keys_room[at];
			of[i] = (uint8_t)digit(k, pass);
			out[to[of[i]] + at] = as.out_of(k);
		}
	} else {
#pragma unroll
		for (int i = 0; i < N; i++) {
			int at = threadIdx.x + i * THREADS;
			if (at >= valid) continue;
			K k = keys_room[at];
			of[i] = (uint8_t)digit(k, pass);
			out[to[of[i]] + at] = k;
		}
	}
	if (!PAIRS) return;
	V value[N];
#pragma unroll
	for (int i = 0; i < N; i++) {
		int at = first + 32 * i;
		if (at < valid) value[i] = values_in[start + at];
	}
	__syncthreads();
	V *values_room = (V *)room;
#pragma unroll
	for (int i = 0; i < N; i++) values_room[place[i]] = value[i];
	__syncthreads();
#pragma unroll
	for (int i = 0; i < N; i++) {
		int at = threadIdx.x + i * THREADS;
		if (at < valid) values_out[to[of[i]] + at] = values_room[at];
	}
}
