// A board is memory that all ranks of a communicator on one node share: each writes what it contributes to a small
// collective to its desk, and reads what lies on the others'. It costs two transfers of a cache line where messages cost
// several, and no lock. Included once, by sys.go, after sys.h.

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

enum {
    LINE = 64,                 // bytes of a cache line
    BOARD_RANKS = 64,          // at most, since everyone reads everyone's part
    BOARD_OWN_CORES = 8,       // at most, where each has a core
    BOARD_BYTES = 32 << 10,    // of a contribution, at most
    NEWS_BYTES = 16 << 10,     // of a broadcast, at most
    NEWS = 16,                 // broadcasts that a root may be ahead of the others
    BOARD_SPINS = 1000,        // before a waiting rank lets others run, about 10 us; none where ranks share cores
    BOARD_YIELDS = 64,         // between two looks at MPI
    BOARD_PATIENCE = 1 << 16,  // yields before it sleeps at each look, where each rank has a core
    BOARD_SLEEP = 50,          // us
    UNIT = LINE,               // that a message in a ring begins at multiples of
    MAIL_BYTES = 256 << 10,    // of all rings to a rank
    RING_MOST = 64 << 10,      // of one
    RECORDS = 8,               // messages at least that fit a ring
};

// The collectives in which all ranks wait for all. Each has rounds of its own, so that a rank at one never meets ranks at
// another, or at a barrier: who compares the calls of the ranks can say more about that than a call.
enum { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALLTOALL, MEETINGS };

// A part is a contribution, the first bytes of which share the cache line of the round they belong to.
struct part {
    _Alignas(LINE) _Atomic uint64_t round;
    int32_t n;
    uint8_t t, op;
    char data[BOARD_BYTES];
};

struct news {
    _Alignas(LINE) _Atomic uint64_t round;
    int32_t n;
    uint8_t t;
    char data[NEWS_BYTES];
};

// A desk is written by one rank. There are two parts, for odd and even rounds: when a rank begins a round, all have
// finished the one before the last, since all began the last.
struct desk {
    _Alignas(LINE) _Atomic uint64_t barrier;
    _Alignas(LINE) _Atomic uint64_t heard; // broadcasts
    struct part parts[MEETINGS][2];
    struct news news[NEWS];
};

// record is a message in a ring. The sender clears the one behind it before it shows this one, so that a receiver who looks
// there sees nothing until the next message is there.
struct record {
    uint64_t there;
    int64_t bytes; // of the message, or ELSEWHERE
    char data[];
};

// Behind a desk lie the rings of messages to its rank, see mail.h, and before them how far it has taken each.
struct taken { _Alignas(LINE) uint64_t units; };

// A box is one end of a ring.
struct box {
    char *ring;
    uint64_t *taken;
    uint64_t size, next; // units; next counts on, over the ends of the ring
    uint64_t room;       // up to where the sender may go, as far as it knows
    uint64_t held;
};

struct board {
    struct desk *desks[BOARD_RANKS];
    struct box in[BOARD_RANKS], out[BOARD_RANKS]; // from and to each rank
    int64_t most;                                 // bytes of a message that goes in a ring as a whole
    int rank, size;
    uint64_t spins;
    uint64_t rounds[MEETINGS], barrier, news;
    uint64_t heard; // broadcasts, by all ranks, as far as this one knows
    MPI_Comm comm;
};

// share_cores sets *out, the same on all ranks, to whether they are more than the cores that they may use. Collective.
static int share_cores(MPI_Comm node, int size, int *out) {
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) memset(&mine, 0xff, sizeof mine); // there are more than it holds
    int rc = MPI_Allreduce(&mine, &all, sizeof all, MPI_BYTE, MPI_BOR, node);
    *out = CPU_COUNT(&all) < size;
    return rc;
}

// ring_bytes is a power of two.
static uint64_t ring_bytes(int size) {
    uint64_t bytes = RING_MOST;
    while (bytes * size > MAIL_BYTES) bytes /= 2;
    return bytes;
}

// board_bytes is the memory of a rank: whole pages, so that it is near the core that first writes it.
static int64_t board_bytes(int size) {
    const int64_t page = 4096;
    return (int64_t)(sizeof(struct desk) + size * (sizeof(struct taken) + ring_bytes(size)) + page - 1) / page * page;
}

// has_board sets *out to whether there is a board for c, and *shared to whether its ranks share cores. There is none where
// they are not all on one node, or too many: that depends on whether they share cores, since there a message costs a wait
// for the core, and everybody's reading of everybody's part does not. Collective.
static int has_board(MPI_Comm c, int rank, int size, int *out, int *shared) {
    *out = *shared = 0;
    if (size < 2 || size > BOARD_RANKS) return MPI_SUCCESS;
    MPI_Comm node;
    int rc, together;
    if ((rc = split_shared(c, rank, &node)) != MPI_SUCCESS) return rc;
    if ((rc = MPI_Comm_size(node, &together)) != MPI_SUCCESS) return rc;
    if ((rc = share_cores(node, together, shared)) != MPI_SUCCESS) return rc;
    int alone = together == size && (size <= BOARD_OWN_CORES || *shared);
    if ((rc = MPI_Comm_free(&node)) != MPI_SUCCESS) return rc;
    return MPI_Allreduce(&alone, out, 1, MPI_INT, MPI_MIN, c);
}

// make_board returns a board in memory of size times board_bytes, zeros, which the ranks of c share; NULL without memory.
static struct board *make_board(MPI_Comm c, int rank, int size, int shared, void *memory) {
    struct board *b = malloc(sizeof *b);
    if (!b) return NULL;
    *b = (struct board){.rank = rank, .size = size, .spins = shared ? 0 : BOARD_SPINS, .comm = c};
    for (int r = 0; r < size; r++) b->desks[r] = (struct desk *)((char *)memory + r * board_bytes(size));
    uint64_t bytes = ring_bytes(size);
    b->most = bytes / RECORDS - sizeof(struct record);
    for (int r = 0; r < size; r++) {
        struct taken *in = (struct taken *)(b->desks[rank] + 1), *out = (struct taken *)(b->desks[r] + 1);
        b->in[r] = (struct box){.ring = (char *)(in + size) + r * bytes, .taken = &in[r].units, .size = bytes / UNIT};
        b->out[r] = (struct box){.ring = (char *)(out + size) + rank * bytes, .taken = &out[rank].units, .size = bytes / UNIT};
    }
    return b;
}

#define FOLD(T, E) { T *d = dst; const T *p = x, *q = y; for (int i = 0; i < n; i++) { T a = p[i], b = q[i]; d[i] = (T)(E); } return; }
// Sums and products of integers wrap round, which in C only the unsigned types may.
#define FOLD_AS(T, U) \
    switch (op) { case 1: FOLD(U, a * b) case 2: FOLD(T, a < b ? a : b) case 3: FOLD(T, a > b ? a : b) default: FOLD(U, a + b) }
CLONES static void fold(void *dst, const void *x, const void *y, int n, int t, int op) {
    switch (t) {
    case 0: FOLD_AS(int8_t, uint8_t)
    case 1: FOLD_AS(uint8_t, uint8_t)
    case 2: FOLD_AS(int32_t, uint32_t)
    case 3: FOLD_AS(uint32_t, uint32_t)
    case 4: FOLD_AS(int64_t, uint64_t)
    case 5: FOLD_AS(uint64_t, uint64_t)
    case 8: FOLD_AS(float, float)
    case 9: FOLD_AS(double, double)
    }
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// idle is what a rank does between two looks at what it waits for. One that waits long gives its core to a rank that shares it,
// and lets MPI progress, since another may be waiting for a message of this one. And it sleeps now and then, where ranks share
// cores at every look at MPI: Linux 6.18 charges a yield as a whole time slice, so ranks that do nothing but yield drift minutes
// apart, and the one that is ahead gets no core until the others have used as many.
static int idle(const struct board *b, uint64_t looks) {
    if (looks < b->spins) {
        relax();
        return MPI_SUCCESS;
    }
    sched_yield();
    uint64_t yields = looks - b->spins;
    if (yields % BOARD_YIELDS != BOARD_YIELDS - 1) return MPI_SUCCESS;
    int there, rc = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, b->comm, &there, MPI_STATUS_IGNORE);
    if (rc == MPI_SUCCESS && (b->spins == 0 || yields >= BOARD_PATIENCE)) nanosleep(&(struct timespec){.tv_nsec = BOARD_SLEEP * 1000}, NULL);
    return rc;
}

// await returns when a rank has come to the round. word is an _Atomic uint64_t, which cgo has no type for.
static int await(const struct board *b, void *word, uint64_t round) {
    _Atomic uint64_t *its = word;
    for (uint64_t looks = 0; atomic_load_explicit(its, memory_order_acquire) < round; looks++) {
        int rc = idle(b, looks);
        if (rc != MPI_SUCCESS) return rc;
    }
    return MPI_SUCCESS;
}

static int board_barrier(struct board *b) {
    uint64_t round = ++b->barrier;
    atomic_store_explicit(&b->desks[b->rank]->barrier, round, memory_order_release);
    for (int r = 0; r < b->size; r++) {
        int rc = await(b, &b->desks[r]->barrier, round);
        if (rc != MPI_SUCCESS) return rc;
    }
    return MPI_SUCCESS;
}

// brought returns what rank r has brought to the meeting that this rank is at.
static inline struct part *brought(const struct board *b, int meeting, int r) {
    return &b->desks[r]->parts[meeting][b->rounds[meeting] & 1];
}

// begin enters the next round of a meeting and returns this rank's part, for what it brings.
static struct part *begin(struct board *b, int meeting) {
    b->rounds[meeting]++;
    return brought(b, meeting, b->rank);
}

// meet shows the others this rank's part, and waits until all have brought theirs. Where a rank brought another count, type
// or operation, index is that rank and got its count, on every rank; else it is -1.
static struct outcome meet(struct board *b, int meeting, int n, int t, int op) {
    uint64_t round = b->rounds[meeting];
    struct part *mine = brought(b, meeting, b->rank);
    mine->n = n;
    mine->t = (uint8_t)t;
    mine->op = (uint8_t)op;
    atomic_store_explicit(&mine->round, round, memory_order_release);

    struct outcome o = {MPI_SUCCESS, -1, 0};
    for (int r = 0; r < b->size; r++) { // all of them, also after a mismatch, or the next round begins too early
        struct part *p = brought(b, meeting, r);
        int rc = await(b, &p->round, round);
        if (rc != MPI_SUCCESS) return (struct outcome){rc, -1, 0};
        if (o.index < 0 && (p->n != n || p->t != t || p->op != op)) o = (struct outcome){MPI_SUCCESS, r, p->n};
    }
    return o;
}

// fold_brought sets dst to what all ranks have brought from element lo on, folded in rank order.
static int fold_brought(const struct board *b, int meeting, void *dst, int lo, int n, int t, int op) {
    size_t skip = (size_t)lo * sizes[t];
    if (half(t)) {
        float *f = scratch(2 * (size_t)n * sizeof(float));
        if (!f) return MPI_ERR_NO_MEM;
        for (int r = 0; r < b->size; r++) {
            float *wide = r ? f + n : f;
            const void *half = brought(b, meeting, r)->data + skip;
            t == F16 ? widen_f16(wide, half, n) : widen_bf16(wide, half, n);
            if (r) fold(f, f, wide, n, 8, op);
        }
        finish_half(dst, f, n, t, op, b->size);
        return MPI_SUCCESS;
    }
    const void *so_far = brought(b, meeting, 0)->data + skip;
    for (int r = 1; r < b->size; r++) {
        fold(dst, so_far, brought(b, meeting, r)->data + skip, n, t, op);
        so_far = dst;
    }
    if (op == AVG) divide(dst, n, t, b->size);
    return MPI_SUCCESS;
}

// The collectives return what meet does. What each rank brings has at most BOARD_BYTES, and all ranks get the same bits.

static struct outcome board_allreduce(struct board *b, uintptr_t to, uintptr_t from, int n, int t, int op) {
    memcpy(begin(b, ALLREDUCE)->data, (const void *)from, (size_t)n * sizes[t]);
    struct outcome o = meet(b, ALLREDUCE, n, t, op);
    if (o.code == MPI_SUCCESS && o.index < 0) o.code = fold_brought(b, ALLREDUCE, (void *)to, 0, n, t, op);
    return o;
}

static struct outcome board_reduce_scatter(struct board *b, uintptr_t to, uintptr_t from, int n, int t, int op) {
    memcpy(begin(b, REDUCE_SCATTER)->data, (const void *)from, (size_t)n * sizes[t] * b->size);
    struct outcome o = meet(b, REDUCE_SCATTER, n, t, op);
    if (o.code == MPI_SUCCESS && o.index < 0) o.code = fold_brought(b, REDUCE_SCATTER, (void *)to, b->rank * n, n, t, op);
    return o;
}
