// Shared slots: memory that all ranks of a communicator on one node share. Each rank writes what it brings to a small
// collective into slots of its own, and reads those of the others. That costs two transfers of a cache line, where messages
// cost several, and no lock. slots.go has broadcasts. Included once, by collective.go.
//
// Processors of ARM reorder what x86-64 does not. So each word that tells another rank something is stored with release: all
// that this rank read and wrote before is over by then. It is loaded with acquire: what comes behind sees all of that. Nothing
// else is ordered, and nothing else needs to be. Go's atomics are at least as strong, and go together with those of C.

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "../../../internal/elem/arith.h"
#include "../../../cudampi/calls.h"

enum {
    LINE = 64,               // bytes of a cache line
    MOST_RANKS = 64,         // since every rank reads every rank's part
    OWN_CORES = 8,           // the most ranks, where each has a core
    SLOT_BYTES = 32 << 10,   // of what a rank brings, at most
    BCAST_BYTES = 16 << 10,  // of a broadcast, at most
    BCASTS = 16,             // broadcasts that a root may be ahead of the others
    SPINS = 1000,            // looks before a waiting rank lets others run, about 10 us; none where ranks share cores
    YIELDS = 64,             // between two looks at MPI
    PATIENCE = 1 << 16,      // yields before it sleeps at each look, where each rank has a core
    SLEEP = 50,              // us
    BRIEF = 32 * YIELDS,     // yields before a wait is a long one, where ranks share cores: about 5 ms
    LONG_SLEEP = 1000,       // us, the most of a long wait
    UNIT = LINE,             // messages in a ring begin at multiples of it
    RINGS_BYTES = 256 << 10, // of all rings to a rank
    RING_MOST = 64 << 10,    // of one
    RECORDS = 8,             // messages at least that fit a ring
};

// slot is what a rank brings to a round: its call, as coll.Call.What and Alike have it, and short data. The first bytes share
// the cache line of the round. In the collectives that go through slots all ranks wait for all, and so they do before a call
// goes to MPI, which writes where it should not if ranks differ.
struct slot {
    _Alignas(LINE) _Atomic uint64_t round;
    uint64_t what;
    int64_t n;
    char data[SLOT_BYTES];
};

struct bcast_slot {
    _Alignas(LINE) _Atomic uint64_t round;
    int32_t n;
    uint8_t t;
    char data[BCAST_BYTES];
};

// slots are written by one rank. Of those of meetings there are two, for odd and even rounds. When a rank begins a round, all
// have begun the last one, and so have finished the one before, whose slot it writes again. They have also read that slot: a
// rank reads before the release with which it shows the next round, and this rank has acquired that.
struct slots {
    _Alignas(LINE) _Atomic uint64_t heard; // broadcasts
    struct slot meeting[2];
    struct bcast_slot bcast[BCASTS];
};

// record is a message in a ring. Before the sender shows it, it clears the record behind it, so that a receiver who looks
// there sees nothing until the next message is there. The release that shows this record covers the clearing too. What a
// record held before has been read by then: the receiver releases taken behind its reads, and the sender acquires that.
struct record {
    uint64_t there;
    int64_t has; // the message's content, or SKIPPED
    char data[];
};

// Behind the slots of a rank lie the rings of messages to it, see ring.h, and before them how far it has taken each.
struct taken { _Alignas(LINE) uint64_t units; };

// ring_end is one end of a ring.
struct ring_end {
    struct carrier carrier; // first
    char *ring;
    uint64_t *taken;
    uint64_t size, next; // units; next counts on, over the ends of the ring
    uint64_t room;       // up to where the sender may go, as far as it knows
    int64_t most;        // bytes of a message that goes in the ring as a whole
    struct shared *of;
};

// shared is one rank's view of what the ranks of a communicator share.
struct shared {
    struct slots *slots[MOST_RANKS];
    struct ring_end in[MOST_RANKS], out[MOST_RANKS]; // from and to each rank
    int rank, size;
    uint64_t spins;
    uint64_t round, bcasts; // of meetings, and of broadcasts
    uint64_t heard; // broadcasts, by all ranks, as far as this one knows
    struct calls *mpi;
    uintptr_t comm;
};

// ring_bytes is a power of two.
static uint64_t ring_bytes(int size) {
    uint64_t bytes = RING_MOST;
    while (bytes * size > RINGS_BYTES) bytes /= 2;
    return bytes;
}

// shared_bytes is the memory of a rank: whole pages, so that it is near the core that first writes it.
static int64_t shared_bytes(int size) {
    const int64_t page = 4096;
    return (int64_t)(sizeof(struct slots) + size * (sizeof(struct taken) + ring_bytes(size)) + page - 1) / page * page;
}

static int idle(struct shared *s, uint64_t looks);
static int ring_idle(struct carrier *, uint64_t looks);
static int ring_step(struct carrier *, uintptr_t buf, int64_t has, int recv, int64_t *got);

// open_shared returns a view of memory of size times shared_bytes, zeros, which the ranks share; NULL without memory.
static struct shared *open_shared(struct calls *mpi, uintptr_t comm, int rank, int size, int shares_cores, void *memory) {
    struct shared *s = malloc(sizeof *s);
    if (!s) return NULL;
    *s = (struct shared){.rank = rank, .size = size, .spins = shares_cores ? 0 : SPINS, .mpi = mpi, .comm = comm};
    for (int r = 0; r < size; r++) s->slots[r] = (struct slots *)((char *)memory + r * shared_bytes(size));
    uint64_t bytes = ring_bytes(size);
    for (int r = 0; r < size; r++) {
        struct taken *in = (struct taken *)(s->slots[rank] + 1), *out = (struct taken *)(s->slots[r] + 1);
        struct ring_end end = {.carrier = {.step = ring_step, .idle = ring_idle}, .size = bytes / UNIT, .of = s,
                               .most = bytes / RECORDS - sizeof(struct record)};
        s->in[r] = s->out[r] = end;
        s->in[r].ring = (char *)(in + size) + r * bytes;
        s->in[r].taken = &in[r].units;
        s->out[r].ring = (char *)(out + size) + rank * bytes;
        s->out[r].taken = &out[rank].units;
    }
    return s;
}

// idle is what a rank does between two looks at what it waits for. One that waits long gives its core to a rank that shares it.
// It lets MPI progress, since another may be waiting for a message of this one. And it sleeps now and then; where ranks share
// cores, at every look at MPI. For Linux 6.18 charges a yield as a whole time slice: of ranks that do nothing but yield, one
// that is minutes ahead gets no core until the others have used as many.
//
// A wait that is long there is sleeps and looks alone, which grow by an eighth of the first: each is some hundredths of what
// the rank has waited by then, and a rank that waits for seconds uses next to nothing.
static int idle(struct shared *s, uint64_t looks) {
    if (looks < s->spins) {
        relax();
        return 0;
    }
    uint64_t yields = looks - s->spins, us = SLEEP;
    if (s->spins == 0 && yields >= BRIEF) {
        us += (yields - BRIEF) * SLEEP / 8;
        if (us > LONG_SLEEP) us = LONG_SLEEP;
    } else {
        sched_yield();
        if (yields % YIELDS != YIELDS - 1) return 0;
    }
    int rc = s->mpi->progress(s->comm);
    if (rc == 0 && (s->spins == 0 || yields >= PATIENCE)) nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    return rc;
}

// await returns when a rank has come to the round. word is an _Atomic uint64_t, which cgo has no type for.
static int await(struct shared *s, void *word, uint64_t round) {
    _Atomic uint64_t *its = word;
    for (uint64_t looks = 0; atomic_load_explicit(its, memory_order_acquire) < round; looks++) {
        int rc = idle(s, looks);
        if (rc != 0) return rc;
    }
    return 0;
}

// brought returns what rank r has brought to the meeting that this rank is at.
static inline struct slot *brought(const struct shared *s, int r) { return &s->slots[r]->meeting[s->round & 1]; }

// begin enters the next meeting and returns this rank's slot, for what it brings.
static struct slot *begin(struct shared *s) {
    s->round++;
    return brought(s, s->rank);
}

// meet shows the others this rank's slot, and waits until all have brought theirs. Where a rank brought another call, index is
// that rank and got its count, on every rank; else it is -1.
static struct outcome meet(struct shared *s, uint64_t what, int64_t n) {
    struct slot *mine = brought(s, s->rank);
    mine->n = n;
    mine->what = what;
    atomic_store_explicit(&mine->round, s->round, memory_order_release);

    struct outcome o = {0, -1, 0};
    for (int r = 0; r < s->size; r++) { // all of them, also after a mismatch, or the next round begins too early
        struct slot *p = brought(s, r);
        int rc = await(s, &p->round, s->round);
        if (rc != 0) return (struct outcome){rc, -1, 0};
        if (o.index < 0 && (p->n != n || p->what != what)) o = (struct outcome){0, r, p->n};
    }
    return o;
}

// meet_first is meet of a call that has brought no data.
static struct outcome meet_first(struct shared *s, uint64_t what, int64_t n) {
    begin(s);
    return meet(s, what, n);
}

// reduce_brought reduces in rank order what the first ranks have brought, from element lo on, to dst. With no ranks it does
// nothing.
static void reduce_brought(const struct shared *s, int ranks, uintptr_t dst, int lo, int n, uint64_t what) {
    int t = what >> 8 & 0xff, op = what >> 16 & 0xff;
    uintptr_t from[MOST_RANKS];
    for (int r = 0; r < ranks; r++) from[r] = (uintptr_t)(brought(s, r)->data + (size_t)lo * sizes[t]);
    if (ranks > 1) reduce_many(dst, from, ranks, n, t, op);
    else if (ranks == 1) memcpy((void *)dst, (const void *)from[0], (size_t)n * sizes[t]);
}

// slots_reduce has this rank bring so many bytes, and returns what meet does. It reduces n elements from lo on of the first
// ranks. What each rank brings has at most SLOT_BYTES, and all ranks get the same bits.
static struct outcome slots_reduce(struct shared *s, uint64_t what, int64_t alike, uintptr_t to, uintptr_t from, int bytes,
                                   int ranks, int lo, int n) {
    memcpy(begin(s)->data, (const void *)from, bytes);
    struct outcome o = meet(s, what, alike);
    if (o.code == 0 && o.index < 0) reduce_brought(s, ranks, to, lo, n, what);
    return o;
}
