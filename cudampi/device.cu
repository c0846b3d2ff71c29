// Arithmetic on the device for collectives that do without NCCL, and memory of other devices that is read and written
// over the link between them. It needs no header and compiles as C++14 with NVRTC 11.2 and newer.
//
// Grids and blocks have one dimension, of any size but where stated, blocks no larger than their launch bounds. base is an array, in device memory, of an address
// for each rank. type and op are numbered as in package elem; Avg divides the sum by size, of integers truncating.
// All fold in the order of the ranks, the 16-bit floats in float, rounded once: every rank gets the same bits.

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

template <int OP, typename T> FN T combine(T a, T b) {
	typedef typename Wrap<T>::type W;
	switch (OP) {
	case PROD: return (T)((W)a * (W)b);
	case MIN: return a < b ? a : b;
	case MAX: return a > b ? a : b;
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

// fold_packs is one function for all kernels, or it would take minutes to compile. It is bound by memory, not by calls.
static __device__ __noinline__ Raw fold_packs(int type, int op, int size, const char *const *base, i64 at) {
	switch (type) {
	case 0: return fold_as<i8>(op, size, base, at);
	case 1: return fold_as<u8>(op, size, base, at);
	case 2: return fold_as<int>(op, size, base, at);
	case 3: return fold_as<u32>(op, size, base, at);
	case 4: return fold_as<i64>(op, size, base, at);
	case 5: return fold_as<u64>(op, size, base, at);
	case 6: return fold_as<f16>(op, size, base, at);
	case 7: return fold_as<bf16>(op, size, base, at);
	case 8: return fold_as<float>(op, size, base, at);
	default: return fold_as<double>(op, size, base, at);
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

// What every rank has at base[rank], which all ranks reach. Each block is a channel of its own: it meets the blocks of the
// same number on the other ranks, and counts how often it has, on the device, so that a graph can be replayed.
enum { BLOCKS = 256, MEETING = 64, RANKS = 16, SMALL_BLOCK = 2 << 10 };
struct Control {
	u32 epoch[BLOCKS];         // meetings of this rank's blocks
	u32 flags[MEETING][RANKS]; // epochs of the ranks, each written by that rank
	// Here the inbox of small collectives follows.
};
FN Control *control(char *const *base, int rank) { return (Control *)base[rank]; }

// meet waits until this block has come here on all ranks. What any of them wrote before, all see afterwards. All blocks
// of the grid, at most MEETING, must fit the device at once, on every rank.
FN void meet(char *const *base, int rank, int size) {
	__syncthreads();
	Control *mine = control(base, rank);
	int b = blockIdx.x;
	u32 now = mine->epoch[b] + 1;
	for (int r = threadIdx.x; r < size; r += blockDim.x) set_flag(&control(base, r)->flags[b][rank], now);
	for (int r = threadIdx.x; r < size; r += blockDim.x) {
		while ((int)(flag(&mine->flags[b][r]) - now) < 0) relax();
	}
	__syncthreads();
	if (threadIdx.x == 0) mine->epoch[b] = now;
}

// Returns when all ranks have come here. One block.
//
//	peer_barrier(base, rank I32, size I32)
extern "C" __global__ void __launch_bounds__(BARRIER_THREADS) peer_barrier(char *const *base, int rank, int size) { meet(base, rank, size); }

// A small collective in one step. Each rank has a message for each other, of as many bytes, at most room: that for rank q
// lies at src + q * src_step. Of these go all, or where from is a rank those of that rank, or where to is a rank those to
// that rank. After a reduction dst is op over what came from all ranks; else it has at dst + r * dst_step what came from rank r.
// A part of dst may be that of src: a thread has sent the packs that it stores.
//
// Each rank puts its packs, stamped with an epoch, where the others look for them, and takes theirs. So a rank waits for
// the data alone, for no flag after them, and no fence. That is in copies places, at base[q] + offset: one on every rank,
// which the others write and it reads, or a single one that all reach, where messages are the same for all. A place has two
// halves, for even and odd epochs: when a rank writes one again, two epochs later, it has heard of every other in the epoch
// between, which that began after it had read the half. Therefore the first thread of a block puts and takes a stamp
// where there is no message. A block does SMALL_BLOCK bytes of each message, always the same, and counts its own epochs. The
// first halves of its packs lie side by side, and then the second ones, so that what a warp stores at once are whole
// sectors. It may be launched early.
//
// Both kernels have the same parameters; small_moves uses neither type nor op, small_reduction neither dst_step nor from:
//
//	small_reduction, small_moves(dst, dst_step I64, src, src_step I64, bytes I64, type I32, op I32, to I32, from I32,
//		base, copies I32, offset I64, room I64, epochs, rank I32, size I32)
enum { EACH = SMALL_BLOCK / PACK, AHEAD = 4, SECOND = EACH * 4 };

// put_small puts the packs of this thread's block, and returns where those of the others will be.
FN const char *put_small(const char *src, i64 src_step, i64 bytes, bool sends, int to,
		char *const *base, int copies, i64 offset, i64 room, u32 now, int rank, int size, i64 lo, i64 hi) {
	bool in = is_aligned(src + src_step) && is_aligned(src);
	offset += (now & 1) * size * 2 * room;
	int own = copies > 1 ? rank : 0;
	for (i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
		i64 at = offset + rank * 2 * room + (lo + i) * PACK;
		for (int first = 0; first < copies; first += AHEAD) {
			Raw x[AHEAD];
#pragma unroll
			for (int k = 0; k < AHEAD; k++) {
				int q = own + first + k; // not all to the same rank at once
				if (q >= copies) q -= copies;
				if (k > 0 && src_step == 0) {
					x[k] = x[0];
				} else if (first + k < copies && sends && (src_step == 0 || to < 0 || to == q)) {
					x[k] = load(src + q * src_step, i, bytes, in);
				}
			}
#pragma unroll
			for (int k = 0; k < AHEAD; k++) {
				int q = own + first + k;
				if (q >= copies) q -= copies;
				if (first + k >= copies) break;
				u32 *place = (u32 *)(base[q] + at);
				if (sends && (to < 0 || to == q)) {
					put_stamped(place, x[k].w[0], x[k].w[1], now);
					put_stamped(place + SECOND, x[k].w[2], x[k].w[3], now);
				} else if (i == lo) {
					put_stamped(place, 0, 0, now);
				}
			}
		}
	}
	return base[own] + offset;
}

// take_small waits for the packs i of AHEAD ranks from first on, at once, or for the stamps alone of those that send no message.
FN void take_small(Raw *x, const char *mine, i64 room, u32 now, int size, int first, bool takes, int from, i64 lo, i64 i) {
	for (bool there = false; !there;) {
		there = true;
#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			int r = first + k;
			bool message = takes && (from < 0 || from == r);
			if (r < size && (message || i == lo)) {
				const u32 *place = (const u32 *)(mine + r * 2 * room + (lo + i) * PACK);
				u32 *w = x[k].w;
				bool one = get_stamped(place, w, w + 1, now), two = !message || get_stamped(place + SECOND, w + 2, w + 3, now);
				there = there && one && two;
			}
		}
		if (!there) relax();
	}
}

// add_small adds packs of ranks from first on to a sum, or begins it; sum_small is that sum. What fold_packs does alike for
// all types and operations goes by memory, which takes 0.4 us more.
template <typename T> FN void add_small(u64 *sum, const Raw *x, int first, int size) {
	typedef typename Acc<T>::type A;
	A *a = (A *)sum;
#pragma unroll
	for (int k = 0; k < AHEAD; k++) {
		if (first + k >= size) break;
		const Pack<T> &p = (const Pack<T> &)x[k];
#pragma unroll
		for (int j = 0; j < 16 / (int)sizeof(T); j++) {
			A v = Acc<T>::get(p.v[j]);
			a[j] = first + k == 0 ? v : combine<SUM, A>(a[j], v);
		}
	}
}
template <typename T> FN Raw sum_small(const u64 *sum) {
	union { Pack<T> of; Raw raw; } y;
#pragma unroll
	for (int j = 0; j < 16 / (int)sizeof(T); j++) y.of.v[j] = Acc<T>::put(((const typename Acc<T>::type *)sum)[j]);
	return y.raw;
}

extern "C" __global__ void __launch_bounds__(SMALL_BLOCK / PACK) small_reduction(char *dst, i64 dst_step, const char *src, i64 src_step, i64 bytes,
		int type, int op, int to, int from, char *const *base, int copies, i64 offset, i64 room, u32 *epochs, int rank, int size) {
	bool out = is_aligned(dst), takes = to < 0 || to == rank;
	i64 lo = (i64)blockIdx.x * EACH, end = (bytes + PACK - 1) / PACK, hi = lo + EACH < end ? lo + EACH : end;
	await_earlier_work();
	u32 now = epochs[blockIdx.x] + 1;
	const char *mine = put_small(src, src_step, bytes, true, to, base, copies, offset, room, now, rank, size, lo, hi);
	start_next();
	for (i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
		Raw y = {};
		if (op == SUM && type >= 2) {
			u64 sum[4] = {};
			for (int first = 0; first < size; first += AHEAD) {
				Raw x[AHEAD];
				take_small(x, mine, room, now, size, first, takes, -1, lo, i);
				if (type == 8) {
					add_small<float>(sum, x, first, size);
				} else if (type == 7) {
					add_small<bf16>(sum, x, first, size);
				} else if (type == 6) {
					add_small<f16>(sum, x, first, size);
				} else if (type == 9) {
					add_small<double>(sum, x, first, size);
				} else if (type < 4) {
					add_small<u32>(sum, x, first, size);
				} else {
					add_small<u64>(sum, x, first, size);
				}
			}
			y = type == 6 ? sum_small<f16>(sum) : type == 7 ? sum_small<bf16>(sum) : *(const Raw *)sum;
		} else {
			Raw x[RANKS];
			const char *each[RANKS];
			for (int r = 0; r < size; r += AHEAD) take_small(x + r, mine, room, now, size, r, takes, -1, lo, i);
			for (int r = 0; r < size; r++) each[r] = (const char *)&x[r];
			if (takes) y = fold_packs(type, op, size, each, 0);
		}
		if (takes) store(dst, i, bytes, out, y);
	}
	__syncthreads();
	if (threadIdx.x == 0) epochs[blockIdx.x] = now;
}

extern "C" __global__ void __launch_bounds__(SMALL_BLOCK / PACK) small_moves(char *dst, i64 dst_step, const char *src, i64 src_step, i64 bytes,
		int type, int op, int to, int from, char *const *base, int copies, i64 offset, i64 room, u32 *epochs, int rank, int size) {
	bool out = is_aligned(dst + dst_step) && is_aligned(dst), takes = to < 0 || to == rank;
	i64 lo = (i64)blockIdx.x * EACH, end = (bytes + PACK - 1) / PACK, hi = lo + EACH < end ? lo + EACH : end;
	await_earlier_work();
	u32 now = epochs[blockIdx.x] + 1;
	const char *mine = put_small(src, src_step, bytes, from < 0 || from == rank, to, base, copies, offset, room, now, rank, size, lo, hi);
	start_next();
	for (i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
		for (int first = 0; first < size; first += AHEAD) {
			Raw x[AHEAD];
			take_small(x, mine, room, now, size, first, takes, from, lo, i);
#pragma unroll
			for (int k = 0; k < AHEAD; k++) {
				int r = first + k;
				if (r < size && takes && (from < 0 || from == r)) store(dst + r * dst_step, i, bytes, out, x[k]);
			}
		}
	}
	__syncthreads();
	if (threadIdx.x == 0) epochs[blockIdx.x] = now;
}

// A message by way of a slot of twice as many bytes that both ends reach, with a stamp that nothing in the
// slot bears. The receiver waits for what bears it.
//
//	put_message(slot, src, bytes I64, stamp U32), get_message(dst, slot, bytes I64, stamp U32)
extern "C" __global__ void __launch_bounds__(SMALL_BLOCK / PACK) put_message(char *slot, const char *src, i64 bytes, u32 stamp) {
	bool in = is_aligned(src);
	for (i64 i = grid_index(); i < (bytes + PACK - 1) / PACK; i += grid_size()) {
		Raw x = load(src, i, bytes, in);
		u32 *to = (u32 *)(slot + i * 2 * PACK);
		put_stamped(to, x.w[0], x.w[1], stamp);
		put_stamped(to + 4, x.w[2], x.w[3], stamp);
	}
}
extern "C" __global__ void __launch_bounds__(SMALL_BLOCK / PACK) get_message(char *dst, const char *slot, i64 bytes, u32 stamp) {
	bool out = is_aligned(dst);
	for (i64 i = grid_index(); i < (bytes + PACK - 1) / PACK; i += grid_size()) {
		const u32 *from = (const u32 *)(slot + i * 2 * PACK);
		Raw x;
		while (!get_stamped(from, x.w, x.w + 1, stamp)) relax();
		while (!get_stamped(from + 4, x.w + 2, x.w + 3, stamp)) relax();
		store(dst, i, bytes, out, x);
	}
}

// dst = op over all ranks of src, as many bytes as the scratch memory of a rank has room for, in two halves: in, at
// base[r] + scratch, and out, room bytes after it. Each rank copies src to its in; reduces its slice from the in of all
// to the out of all; and copies its out to dst. A block touches the same packs of each slice throughout, so it need only
// meet the same block of the other ranks. At most MEETING blocks.
//
//	peer_all_reduce(dst, src, bytes I64, type I32, op I32, base, rank I32, size I32, scratch I64, room I64)
extern "C" __global__ void __launch_bounds__(ALL_REDUCE_THREADS) peer_all_reduce(char *dst, const char *src, i64 bytes, int type, int op,
		char *const *base, int rank, int size, i64 scratch, i64 room) {
	bool in = is_aligned(src), out = is_aligned(dst);
	i64 packs = (bytes + PACK - 1) / PACK, slice = (packs + size - 1) / size;
	Raw *mine = (Raw *)(base[rank] + scratch);
	for (int q = 0; q < size; q++) {
		i64 lo = q * slice, hi = lo + slice < packs ? lo + slice : packs;
		for (i64 i = lo + grid_index(); i < hi; i += grid_size()) mine[i] = load(src, i, bytes, in);
	}
	meet(base, rank, size);
	i64 lo = rank * slice, hi = lo + slice < packs ? lo + slice : packs;
	for (i64 i = lo + grid_index(); i < hi; i += grid_size()) {
		Raw x = fold_packs(type, op, size, base, scratch + i * PACK);
		for (int k = 0; k < size; k++) ((Raw *)(base[(rank + k) % size] + scratch + room))[i] = x;
	}
	meet(base, rank, size);
	const Raw *result = (const Raw *)(base[rank] + scratch + room);
	for (int q = 0; q < size; q++) {
		lo = q * slice, hi = lo + slice < packs ? lo + slice : packs;
		for (i64 i = lo + grid_index(); i < hi; i += grid_size()) store(dst, i, bytes, out, result[i]);
	}
}
