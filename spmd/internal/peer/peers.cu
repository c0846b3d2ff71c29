#line 2 "peers.cu"
// Kernels between ranks that reach each other's memory: the second half of a source that begins with device.cu.

// What every rank has at base[rank], which all ranks reach. Each block is a channel of its own: it meets the blocks of the
// same number on the other ranks, and counts how often it has, on the device, so that a graph can be replayed.
enum { BLOCKS = 512, MEETING = 64, RANKS = 16, SMALL_BLOCK = 2 << 10 };
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
// the data alone, for no flag after them, and no fence. That is at base[q] + offset of every rank, which the others write and
// it reads. It has two halves, for even and odd epochs: when a rank writes one again, two epochs later, it has heard of every other in the epoch
// between, which that began after it had read the half. Therefore the first thread of a block puts and takes a stamp
// where there is no message. A block does SMALL_BLOCK bytes of each message, always the same, and counts its own epochs. The
// first halves of its packs lie side by side, and then the second ones, so that what a warp stores at once are whole
// sectors. It may be launched early.
//
// All three kernels have the same parameters; small_moves uses neither type nor op, the others neither dst_step nor from:
//
//	small_sum, small_reduction, small_moves(dst, dst_step I64, src, src_step I64, bytes I64, type I32, op I32, to I32, from I32,
//		base, offset I64, room I64, epochs, rank I32, size I32)
enum { EACH = SMALL_BLOCK / PACK, AHEAD = 4, SECOND = EACH * 4 };

// put_small puts the packs of this thread's block, and returns where those of the others will be.
FN const char *put_small(const char *src, i64 src_step, i64 bytes, bool sends, int to,
		char *const *base, i64 offset, i64 room, u32 now, int rank, int size, i64 lo, i64 hi) {
	bool in = is_aligned(src + src_step) && is_aligned(src);
	offset += (now & 1) * size * 2 * room;
	for (i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
		i64 at = offset + rank * 2 * room + (lo + i) * PACK;
		for (int first = 0; first < size; first += AHEAD) {
			Raw x[AHEAD];
#pragma unroll
			for (int k = 0; k < AHEAD; k++) {
				int q = rank + first + k; // not all to the same rank at once
				if (q >= size) q -= size;
				if (k > 0 && src_step == 0) {
					x[k] = x[0];
				} else if (first + k < size && sends && (src_step == 0 || to < 0 || to == q)) {
					x[k] = load(src + q * src_step, i, bytes, in);
				}
			}
#pragma unroll
			for (int k = 0; k < AHEAD; k++) {
				int q = rank + first + k;
				if (q >= size) q -= size;
				if (first + k >= size) break;
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
	return base[rank] + offset;
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

template <typename T> FN void sum_packs(char *dst, i64 bytes, bool out, const char *mine, i64 room, u32 now, int size, bool takes, i64 lo, i64 hi) {
	for (i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
		u64 sum[4] = {};
		for (int first = 0; first < size; first += AHEAD) {
			Raw x[AHEAD];
			take_small(x, mine, room, now, size, first, takes, -1, lo, i);
			add_small<T>(sum, x, first, size);
		}
		if (takes) store(dst, i, bytes, out, sum_small<T>(sum));
	}
}

template <bool SUMS> FN void reduce_small(char *dst, const char *src, i64 src_step, i64 bytes,
		int type, int op, int to, char *const *base, i64 offset, i64 room, u32 *epochs, int rank, int size) {
	bool out = is_aligned(dst), takes = to < 0 || to == rank;
	i64 lo = (i64)blockIdx.x * EACH, end = (bytes + PACK - 1) / PACK, hi = lo + EACH < end ? lo + EACH : end;
	await_earlier_work();
	u32 now = epochs[blockIdx.x] + 1;
	const char *mine = put_small(src, src_step, bytes, true, to, base, offset, room, now, rank, size, lo, hi);
	start_next();
	if (SUMS) {
		switch (type) {
		case INT32:
		case UINT32: sum_packs<u32>(dst, bytes, out, mine, room, now, size, takes, lo, hi); break;
		case INT64:
		case UINT64: sum_packs<u64>(dst, bytes, out, mine, room, now, size, takes, lo, hi); break;
		case FLOAT16: sum_packs<f16>(dst, bytes, out, mine, room, now, size, takes, lo, hi); break;
		case BFLOAT16: sum_packs<bf16>(dst, bytes, out, mine, room, now, size, takes, lo, hi); break;
		case FLOAT32:
		case COMPLEX64: sum_packs<float>(dst, bytes, out, mine, room, now, size, takes, lo, hi); break;
		default: sum_packs<double>(dst, bytes, out, mine, room, now, size, takes, lo, hi);
		}
	} else {
		for (i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
			Raw x[RANKS];
			const char *each[RANKS];
			for (int r = 0; r < size; r += AHEAD) take_small(x + r, mine, room, now, size, r, takes, -1, lo, i);
			for (int r = 0; r < size; r++) each[r] = (const char *)&x[r];
			if (takes) store(dst, i, bytes, out, fold_packs(type, op, size, each, 0));
		}
	}
	__syncthreads();
	if (threadIdx.x == 0) epochs[blockIdx.x] = now;
}

// Sums of all types but those of one byte. It has no stack, for it calls no function: so it starts sooner.
extern "C" __global__ void __launch_bounds__(SMALL_BLOCK / PACK) small_sum(char *dst, i64 dst_step, const char *src, i64 src_step, i64 bytes,
		int type, int op, int to, int from, char *const *base, i64 offset, i64 room, u32 *epochs, int rank, int size) {
	reduce_small<true>(dst, src, src_step, bytes, type, op, to, base, offset, room, epochs, rank, size);
}

extern "C" __global__ void __launch_bounds__(SMALL_BLOCK / PACK) small_reduction(char *dst, i64 dst_step, const char *src, i64 src_step, i64 bytes,
		int type, int op, int to, int from, char *const *base, i64 offset, i64 room, u32 *epochs, int rank, int size) {
	reduce_small<false>(dst, src, src_step, bytes, type, op, to, base, offset, room, epochs, rank, size);
}

extern "C" __global__ void __launch_bounds__(SMALL_BLOCK / PACK) small_moves(char *dst, i64 dst_step, const char *src, i64 src_step, i64 bytes,
		int type, int op, int to, int from, char *const *base, i64 offset, i64 room, u32 *epochs, int rank, int size) {
	bool out = is_aligned(dst + dst_step) && is_aligned(dst), takes = to < 0 || to == rank;
	i64 lo = (i64)blockIdx.x * EACH, end = (bytes + PACK - 1) / PACK, hi = lo + EACH < end ? lo + EACH : end;
	await_earlier_work();
	u32 now = epochs[blockIdx.x] + 1;
	const char *mine = put_small(src, src_step, bytes, from < 0 || from == rank, to, base, offset, room, now, rank, size, lo, hi);
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

// Messages between ranks. Those from one rank to another are a lane. A lane goes by chunks of SMALL_BLOCK bytes, and chunk
// c of a message by queue c % QUEUES, which counts on the device: the sender what it has put there, the receiver what it has
// taken. A queue has two places, for even and odd counts. A receiver that begins to take a chunk acknowledges the ones
// before, so the third waits until the first is taken; the others are put before anyone asks for them.
//
// Stamps take half of what the link carries. So messages of more than most bytes go by chunks of up to each bytes, without
// stamps, in two other places of a queue, at base[receiver] + bulk. The length, with its stamp, comes behind every chunk. These
// places are scratch memory of other calls, too: the first chunk of a message waits until the receiver has begun to take it.
//
// A block does every per-th chunk of the messages of one lane, one after the other; per divides QUEUES, so that all of a
// queue is one block's. No lane waits for another, and the blocks that send have the lowest numbers: whatever ranks send
// each other at once, it gets through, as in one group of NCCL. With the first chunk goes the length. A receiver that
// expects another says so at wrong + 4 * peer, in memory of the host, and waits until the host ends it. It may be launched early.
//
// What a rank has for it lies at base[rank] + offset: the counts of its queues, and the places of what comes. The n messages
// are those of few, or where list is not null those there.
//
//	exchange(base, offset I64, wrong, rank I32, size I32, per I32, n I32, list, bulk I64, each I64, most I64, few Few)
struct Message {
	char *at;
	u64 bytes : 40, lane : 8, peer : 8, receives : 8;
};
enum { FEW = 16, MANY = 128 };
struct Few { Message of[FEW]; };
struct Many { Message of[MANY]; };

enum { QUEUES = 256, PUT = 0, TAKEN, ACKNOWLEDGED, COUNTS, PLACE = 2 * PACK + 2 * SMALL_BLOCK };
FN u32 *count_of(char *at, int size, int which, int peer, int c) {
	return (u32 *)at + ((i64)which * size + peer) * QUEUES + c % QUEUES;
}
FN char *place_of(char *at, int size, int sender, u32 now, int c) {
	return at + (i64)4 * COUNTS * size * QUEUES + (((i64)sender * 2 + (now & 1)) * QUEUES + c % QUEUES) * PLACE;
}

FN void put_chunk(char *const *base, i64 offset, int rank, int size, const Message &m, int c) {
	u32 *put = count_of(base[rank] + offset, size, PUT, m.peer, c), now = *put + 1;
	const u32 *acknowledged = count_of(base[rank] + offset, size, ACKNOWLEDGED, m.peer, c);
	u32 seen = peek(acknowledged); // on its way with what this thread loads
	bool in = is_aligned(m.at);
	i64 lo = (i64)c * EACH, end = ((i64)m.bytes + PACK - 1) / PACK, hi = lo + EACH < end ? lo + EACH : end;
	char *place = place_of(base[m.peer] + offset, size, rank, now, c);
	for (i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
		Raw x = load(m.at, i, m.bytes, in);
		for (; (int)(seen - (now - 2)) < 0; seen = peek(acknowledged)) relax();
		if (i == 0) put_stamped((u32 *)place, (u32)m.bytes, (u32)(m.bytes >> 32), now);
		u32 *to = (u32 *)(place + 2 * PACK + (i - lo) * PACK);
		put_stamped(to, x.w[0], x.w[1], now);
		put_stamped(to + SECOND, x.w[2], x.w[3], now);
	}
	if (end == 0 && threadIdx.x == 0) {
		for (; (int)(seen - (now - 2)) < 0; seen = peek(acknowledged)) relax();
		put_stamped((u32 *)place, 0, 0, now);
	}
	__syncthreads();
	if (threadIdx.x == 0) *put = now;
	__syncthreads();
}

FN void complain(u32 *wrong, const Message &m, u32 low, u32 high) {
	u32 *say = wrong + 4 * m.peer;
	say[1] = low;
	say[2] = (u32)m.bytes;
	say[3] = high << 16 | (u32)(m.bytes >> 32);
	set_flag(say, 1);
	while (flag(say) != 0) relax();
}

FN void take_chunk(char *const *base, i64 offset, int rank, int size, const Message &m, int c, u32 *wrong) {
	u32 *taken = count_of(base[rank] + offset, size, TAKEN, m.peer, c), now = *taken + 1;
	if (threadIdx.x == 0) post(count_of(base[m.peer] + offset, size, ACKNOWLEDGED, rank, c), now - 1);
	const char *place = place_of(base[rank] + offset, size, m.peer, now, c);
	bool out = is_aligned(m.at);
	i64 lo = (i64)c * EACH, end = ((i64)m.bytes + PACK - 1) / PACK, hi = lo + EACH < end ? lo + EACH : end;
	for (i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
		const u32 *from = (const u32 *)(place + 2 * PACK + (i - lo) * PACK);
		Raw x;
		u32 low = (u32)m.bytes, high = (u32)(m.bytes >> 32);
		for (bool there = false; !there;) {
			bool length = i != 0 || get_stamped((const u32 *)place, &low, &high, now);
			bool one = get_stamped(from, x.w, x.w + 1, now), two = get_stamped(from + SECOND, x.w + 2, x.w + 3, now);
			if (length && (low | (u64)high << 32) != m.bytes) {
				complain(wrong, m, low, high);
				break;
			}
			there = length && one && two;
			if (!there) relax();
		}
		store(m.at, i, m.bytes, out, x);
	}
	if (end == 0 && threadIdx.x == 0) {
		u32 low, high;
		while (!get_stamped((const u32 *)place, &low, &high, now)) relax();
		if ((low | high) != 0) complain(wrong, m, low, high);
	}
	__syncthreads();
	if (threadIdx.x == 0) *taken = now;
	__syncthreads();
}

// copy_packs copies packs from lo to hi of a message of so many bytes, several of a thread at once. dst and src are where the
// message begins, or would. WHOLE says that all of them are aligned and whole.
enum { BATCH = 8 };
template <bool WHOLE> FN void copy_packs(char *dst, const char *src, i64 bytes, i64 lo, i64 hi) {
	bool in = is_aligned(src), out = is_aligned(dst);
	for (i64 i = lo + threadIdx.x; i < hi; i += BATCH * blockDim.x) {
		Raw x[BATCH];
#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			i64 at = i + k * (i64)blockDim.x;
			if (at < hi) x[k] = WHOLE ? ((const Raw *)src)[at] : load(src, at, bytes, in);
		}
#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			i64 at = i + k * (i64)blockDim.x;
			if (at >= hi) break;
			if (WHOLE) {
				((Raw *)dst)[at] = x[k];
			} else {
				store(dst, at, bytes, out, x[k]);
			}
		}
	}
}
FN void copy_packs(char *dst, const char *src, i64 bytes, i64 lo, i64 hi) {
	if (is_aligned(src) && is_aligned(dst) && hi * PACK <= bytes) {
		copy_packs<true>(dst, src, bytes, lo, hi);
	} else {
		copy_packs<false>(dst, src, bytes, lo, hi);
	}
}

// Bulk is the places of long messages, and the chunks of one: at least two for each queue.
struct Bulk {
	i64 offset, each, chunk;
};
FN i64 bulk_chunk(i64 bytes, i64 each) {
	i64 chunk = (bytes / (2 * QUEUES) + SMALL_BLOCK - 1) / SMALL_BLOCK * SMALL_BLOCK;
	return chunk < each ? chunk : each;
}
// bulk_of is where a message would begin of which a chunk is in its place.
FN char *bulk_of(char *at, int sender, const Bulk &b, u32 now, int c) {
	return at + b.offset + (((i64)sender * 2 + (now & 1)) * QUEUES + c % QUEUES) * b.each - c * b.chunk;
}
FN i64 bulk_end(const Message &m, const Bulk &b, int c) {
	i64 end = ((i64)m.bytes + PACK - 1) / PACK, hi = (c + 1) * b.chunk / PACK;
	return hi < end ? hi : end;
}

FN void put_bulk(char *const *base, i64 offset, const Bulk &b, int rank, int size, const Message &m, int c) {
	u32 *put = count_of(base[rank] + offset, size, PUT, m.peer, c), now = *put + 1;
	const u32 *acknowledged = count_of(base[rank] + offset, size, ACKNOWLEDGED, m.peer, c);
	u32 free = c < QUEUES ? now - 1 : now - 2;
	while ((int)(peek(acknowledged) - free) < 0) relax();
	copy_packs(bulk_of(base[m.peer], rank, b, now, c), m.at, m.bytes, c * b.chunk / PACK, bulk_end(m, b, c));
	__syncthreads();
	if (threadIdx.x == 0) {
		fence_system();
		put_stamped((u32 *)place_of(base[m.peer] + offset, size, rank, now, c), (u32)m.bytes, (u32)(m.bytes >> 32), now);
		*put = now;
	}
	__syncthreads();
}

FN void take_bulk(char *const *base, i64 offset, const Bulk &b, int rank, int size, const Message &m, int c, u32 *wrong) {
	u32 *taken = count_of(base[rank] + offset, size, TAKEN, m.peer, c), now = *taken + 1;
	if (threadIdx.x == 0) {
		post(count_of(base[m.peer] + offset, size, ACKNOWLEDGED, rank, c), now - 1);
		const u32 *place = (const u32 *)place_of(base[rank] + offset, size, m.peer, now, c);
		u32 low, high;
		while (!get_stamped(place, &low, &high, now)) relax();
		if (c == 0 && (low | (u64)high << 32) != m.bytes) complain(wrong, m, low, high);
		fence_system();
	}
	__syncthreads();
	copy_packs(m.at, bulk_of(base[rank], m.peer, b, now, c), m.bytes, c * b.chunk / PACK, bulk_end(m, b, c));
	__syncthreads();
	if (threadIdx.x == 0) *taken = now;
	__syncthreads();
}

extern "C" __global__ void __launch_bounds__(SMALL_BLOCK / PACK) exchange(char *const *base, i64 offset, u32 *wrong,
		int rank, int size, int per, int n, const Message *list, i64 bulk, i64 each, i64 most, Few few) {
	int lane = blockIdx.x / per;
	await_earlier_work();
	start_next();
	for (int k = 0; k < n; k++) {
		Message m;
		if (list) {
			m = list[k];
		} else {
			m = few.of[k];
		}
		if (m.lane != lane) continue;
		bool stamped = (i64)m.bytes <= most;
		i64 chunk = stamped ? SMALL_BLOCK : bulk_chunk(m.bytes, each);
		Bulk b = {bulk, each, chunk};
		int chunks = m.bytes == 0 ? 1 : (int)((m.bytes + chunk - 1) / chunk);
		for (int c = blockIdx.x % per; c < chunks; c += per) {
			if (!stamped && m.receives) {
				take_bulk(base, offset, b, rank, size, m, c, wrong);
			} else if (!stamped) {
				put_bulk(base, offset, b, rank, size, m, c);
			} else if (m.receives) {
				take_chunk(base, offset, rank, size, m, c, wrong);
			} else {
				put_chunk(base, offset, rank, size, m, c);
			}
		}
	}
}

// list[k] = many.of[k] of n messages at most MANY, for exchange.
//
//	list_messages(list, n I32, many Many)
extern "C" __global__ void __launch_bounds__(MANY) list_messages(Message *list, int n, Many many) {
	for (int k = threadIdx.x; k < n; k += blockDim.x) list[k] = many.of[k];
}

// dst = op over all ranks of src, as many bytes as the scratch memory of a rank has room for, in two halves: in, at
// base[r] + scratch, and out, room bytes after it. Each rank size src to its in; reduces its slice from the in of all
// to the out of all; and size its out to dst. A block touches the same packs of each slice throughout, so it need only
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
