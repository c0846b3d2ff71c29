// A board is memory that all ranks of a communicator on one node share: each writes what it contributes to a small
// all-reduce on its part, and reads the others' parts. It costs two transfers of a cache line where messages cost
// several, and no lock. Included once, by sys.go, after sys.h.

#include <sched.h>
#include <stdatomic.h>

enum {
    LINE = 64,                 // bytes of a cache line
    BOARD_RANKS = 64,          // at most, since everyone reads everyone's part
    BOARD_OWN_CORES = 8,       // at most, where each has a core
    BOARD_BYTES = 16 << 10,    // of a contribution, at most
    BOARD_SPINS = 1000,        // before a waiting rank lets others run, about 10 us; none where ranks share cores
    BOARD_YIELDS = 64,         // between two looks at MPI
};

// A part is written by one rank. The first bytes of a contribution share the cache line of the round they belong to.
// Barriers are counted beside, so that a rank at one never meets ranks at an all-reduce: who compares the calls of the
// ranks can say more about that than a call.
struct part {
    _Alignas(LINE) _Atomic uint64_t barrier;
    _Alignas(LINE) _Atomic uint64_t round;
    int32_t n;
    uint8_t t, op;
    char data[BOARD_BYTES];
};

// There are two parts a rank, for odd and even rounds: when a rank begins a round, all have finished the one before the
// last, since all began the last.
struct board {
    struct part *parts[BOARD_RANKS]; // two of each rank
    int rank, size;
    uint64_t spins;
    uint64_t round, barrier;
    MPI_Comm comm;
    MPI_Win win;
};

static int free_board(struct board *b) {
    int rc = MPI_Win_free(&b->win);
    free(b);
    return rc;
}

// share_cores sets *out, the same on all ranks, to whether they are more than the cores that they may use. Collective.
static int share_cores(MPI_Comm node, int size, int *out) {
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) memset(&mine, 0xff, sizeof mine); // there are more than it holds
    int rc = MPI_Allreduce(&mine, &all, sizeof all, MPI_BYTE, MPI_BOR, node);
    *out = CPU_COUNT(&all) < size;
    return rc;
}

// make_board sets *out to a board for c, or to NULL where the ranks are not all on one node, or too many: that depends on
// whether they share cores, since there a message costs a wait for the core, and everybody's reading of everybody's part
// does not. Collective.
static int make_board(MPI_Comm c, int rank, int size, struct board **out) {
    *out = NULL;
    if (size < 2 || size > BOARD_RANKS) return MPI_SUCCESS;
    MPI_Comm node;
    int rc, together;
    if ((rc = split_shared(c, rank, &node)) != MPI_SUCCESS) return rc;
    if ((rc = MPI_Comm_size(node, &together)) != MPI_SUCCESS) return rc;
    int shared;
    if ((rc = share_cores(node, together, &shared)) != MPI_SUCCESS) return rc;
    if (size > BOARD_OWN_CORES && !shared) return MPI_Comm_free(&node);
    struct board *b = malloc(sizeof *b);
    void *mine;
    if (b) *b = (struct board){.rank = rank, .size = size, .spins = shared ? 0 : BOARD_SPINS, .comm = c, .win = MPI_WIN_NULL};
    else rc = MPI_ERR_NO_MEM;
    // All do the same whatever fails, up to where they agree on it.
    if (rc == MPI_SUCCESS && together == size)
        rc = MPI_Win_allocate_shared(2 * sizeof(struct part) + LINE, 1, MPI_INFO_NULL, node, &mine, &b->win);
    for (int r = 0; r < size && rc == MPI_SUCCESS && together == size; r++) {
        MPI_Aint bytes;
        int unit;
        char *at;
        rc = MPI_Win_shared_query(b->win, r, &bytes, &unit, &at);
        // Mappings begin at a page in every process, so all round up to the same place.
        b->parts[r] = (struct part *)(((uintptr_t)at + LINE - 1) / LINE * LINE);
    }
    int ok = rc == MPI_SUCCESS && together == size;
    for (int i = 0; i < 2 && ok; i++) {
        atomic_store(&b->parts[rank][i].round, 0);
        atomic_store(&b->parts[rank][i].barrier, 0);
    }
    int rc2 = MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_MIN, c);
    if (rc == MPI_SUCCESS) rc = rc2;
    if (ok && rc == MPI_SUCCESS) *out = b;
    else if (b && b->win != MPI_WIN_NULL) (void)free_board(b); // what failed counts
    else free(b);
    rc2 = MPI_Comm_free(&node);
    return rc != MPI_SUCCESS ? rc : rc2;
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

// await returns when a rank has come to the round. A rank that waits long gives its core to a rank that shares it, and lets MPI
// progress, since another may be waiting for a message of this one.
static int await(const struct board *b, _Atomic uint64_t *its, uint64_t round) {
    for (uint64_t spins = 0; atomic_load_explicit(its, memory_order_acquire) < round; spins++) {
        if (spins < b->spins) {
            relax();
            continue;
        }
        sched_yield();
        if ((spins - b->spins) % BOARD_YIELDS != BOARD_YIELDS - 1) continue;
        int there, rc = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, b->comm, &there, MPI_STATUS_IGNORE);
        if (rc != MPI_SUCCESS) return rc;
    }
    return MPI_SUCCESS;
}

static int board_barrier(struct board *b) {
    uint64_t round = ++b->barrier;
    atomic_store_explicit(&b->parts[b->rank]->barrier, round, memory_order_release);
    for (int r = 0; r < b->size; r++) {
        int rc = await(b, &b->parts[r]->barrier, round);
        if (rc != MPI_SUCCESS) return rc;
    }
    return MPI_SUCCESS;
}

// board_allreduce is allreduce of at most BOARD_BYTES. All ranks fold in rank order, and get the same bits. Where a rank
// brought another count, type or operation, index is that rank and got its count, on every rank.
static struct outcome board_allreduce(struct board *b, uintptr_t to, uintptr_t from, int n, int t, int op) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    uint64_t round = ++b->round;
    size_t bytes = (size_t)n * sizes[t];
    struct part *mine = &b->parts[b->rank][round & 1];
    memcpy(mine->data, src, bytes);
    mine->n = n;
    mine->t = (uint8_t)t;
    mine->op = (uint8_t)op;
    atomic_store_explicit(&mine->round, round, memory_order_release);

    struct outcome o = {MPI_SUCCESS, -1, 0};
    for (int r = 0; r < b->size; r++) { // all of them, also after a mismatch, or the next round begins too early
        struct part *p = &b->parts[r][round & 1];
        int rc = await(b, &p->round, round);
        if (rc != MPI_SUCCESS) return (struct outcome){rc, -1, 0};
        if (o.index < 0 && (p->n != n || p->t != t || p->op != op)) o = (struct outcome){MPI_SUCCESS, r, p->n};
    }
    if (o.index >= 0) return o;
    if (half(t)) {
        float *f = scratch(2 * (size_t)n * sizeof(float));
        if (!f) return (struct outcome){MPI_ERR_NO_MEM, -1, 0};
        for (int r = 0; r < b->size; r++) {
            float *wide = r ? f + n : f;
            const void *half = b->parts[r][round & 1].data;
            t == F16 ? widen_f16(wide, half, n) : widen_bf16(wide, half, n);
            if (r) fold(f, f, wide, n, 8, op);
        }
        finish_half(dst, f, n, t, op, b->size);
        return o;
    }
    const void *so_far = b->parts[0][round & 1].data;
    for (int r = 1; r < b->size; r++) {
        fold(dst, so_far, b->parts[r][round & 1].data, n, t, op);
        so_far = dst;
    }
    if (op == AVG) divide(dst, n, t, b->size);
    return o;
}
