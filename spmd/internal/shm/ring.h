// Message rings: the messages from one rank to another go, in order, through a ring in memory that both see. A short message
// lies in the ring as a whole. For a longer one there is a notice, and MPI brings the message. A head and a few bytes fit the
// one cache line that goes from core to core. ring.go has the same protocol in Go. Included once, by collective.go, after slots.h.

enum { HEAD = sizeof(struct record), SKIPPED = -1 };

// units is how much of the ring a message takes.
static inline uint64_t units(const struct ring_end *x, int64_t bytes) { return bytes <= x->most ? (HEAD + bytes + UNIT - 1) / UNIT : 1; }

static inline struct record *record_at(const struct ring_end *x, uint64_t at) {
    return (struct record *)(x->ring + (at & (x->size - 1)) * UNIT);
}

// has_room says whether a message and the cleared head behind it fit the ring, besides what is skipped at the ring's end.
static int has_room(struct ring_end *x, uint64_t need) {
    uint64_t left = x->size - (x->next & (x->size - 1));
    uint64_t all = (need > left ? left : 0) + need + 1;
    if (x->next + all <= x->room) return 1;
    x->room = __atomic_load_n(x->taken, __ATOMIC_ACQUIRE) + x->size;
    return x->next + all <= x->room;
}

static inline void show(struct ring_end *x, int64_t has, uint64_t need) {
    struct record *r = record_at(x, x->next);
    r->has = has;
    x->next += need;
    record_at(x, x->next)->there = 0;
    __atomic_store_n(&r->there, 1, __ATOMIC_RELEASE);
}

// put puts a message into the ring, which has room for it.
static void put(struct ring_end *x, uintptr_t from, int64_t has) {
    int64_t bytes = has >> 8;
    uint64_t need = units(x, bytes), left = x->size - (x->next & (x->size - 1));
    if (need > left) show(x, SKIPPED, left);
    if (bytes <= x->most) memcpy(record_at(x, x->next)->data, (const void *)from, bytes);
    show(x, has, need);
}

// next_record is the message at hand, or NULL.
static struct record *next_record(struct ring_end *x) {
    struct record *r = record_at(x, x->next);
    if (!__atomic_load_n(&r->there, __ATOMIC_ACQUIRE)) return NULL;
    if (r->has != SKIPPED) return r;
    x->next += x->size - (x->next & (x->size - 1));
    r = record_at(x, x->next);
    return __atomic_load_n(&r->there, __ATOMIC_ACQUIRE) ? r : NULL;
}

// take takes the message at hand out of the ring and returns its content. It copies the message if that is the expected one.
static int64_t take(struct ring_end *x, const struct record *r, uintptr_t to, int64_t expected) {
    int64_t has = r->has, bytes = has >> 8;
    if (has == expected && bytes <= x->most) memcpy((void *)to, r->data, bytes);
    x->next += units(x, bytes);
    __atomic_store_n(x->taken, x->next, __ATOMIC_RELEASE);
    return has;
}

// ring_send blocks until the program may change the message, ring_recv until it is there.
static int ring_send(struct ring_end *x, uintptr_t from, int64_t n, int t, int to) {
    struct shared *s = x->of;
    int64_t bytes = n * sizes[t];
    for (uint64_t looks = 0; !has_room(x, units(x, bytes)); looks++) {
        int rc = idle(s, looks);
        if (rc != 0) return rc;
    }
    put(x, from, content(bytes, t));
    return bytes <= x->most ? 0 : s->mpi->send(s->comm, from, n, t, to);
}

static struct outcome ring_recv(struct ring_end *x, uintptr_t to, int64_t n, int t, int from) {
    struct shared *s = x->of;
    struct record *r;
    for (uint64_t looks = 0; !(r = next_record(x)); looks++) {
        int rc = idle(s, looks);
        if (rc != 0) return (struct outcome){rc, 0, -1};
    }
    int64_t has = take(x, r, to, content(n * sizes[t], t));
    return has >> 8 <= x->most ? (struct outcome){0, 0, has} : s->mpi->recv(s->comm, to, n, t, from);
}

// What a group of messages asks of a ring: see calls.h.

static int ring_idle(struct carrier *c, uint64_t looks) { return idle(((struct ring_end *)c)->of, looks); }

static int ring_step(struct carrier *c, uintptr_t buf, int64_t has, int recv, int64_t *got) {
    struct ring_end *x = (struct ring_end *)c;
    if (recv) {
        struct record *r = next_record(x);
        if (!r) return WAITS;
        *got = has = take(x, r, buf, has);
    } else {
        if (!has_room(x, units(x, has >> 8))) return WAITS;
        put(x, buf, has);
    }
    return has >> 8 <= x->most ? CARRIED : LEFT_TO_MPI;
}
