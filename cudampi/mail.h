// Mail is the messages from one rank of a board to another. All of them go through a ring in memory that both see, in their
// order: a short one as a whole, a longer one as a notice that MPI brings it. A notice and a few bytes share the one cache
// line that goes from core to core. Included once, by sys.go, after board.h.

enum { HEAD = sizeof(struct record), ELSEWHERE = -1 };

// units is how much of the ring a message takes; most is what goes in it as a whole.
static inline uint64_t units(int64_t bytes, int64_t most) { return bytes <= most ? (HEAD + bytes + UNIT - 1) / UNIT : 1; }

static inline struct record *record_at(const struct box *x, uint64_t at) { return (struct record *)(x->ring + (at & (x->size - 1)) * UNIT); }

// has_room says whether a message and the cleared head behind it fit the ring, after what is skipped at its end.
static int has_room(struct box *x, uint64_t need) {
    uint64_t left = x->size - (x->next & (x->size - 1));
    uint64_t all = (need > left ? left : 0) + need + 1;
    if (x->next + all <= x->room) return 1;
    x->room = __atomic_load_n(x->taken, __ATOMIC_ACQUIRE) + x->size;
    return x->next + all <= x->room;
}

static inline void show(struct box *x, int64_t bytes, uint64_t need) {
    struct record *r = record_at(x, x->next);
    r->bytes = bytes;
    x->next += need;
    record_at(x, x->next)->there = 0;
    __atomic_store_n(&r->there, 1, __ATOMIC_RELEASE);
}

// put puts a message that there is room for.
static void put(const struct board *b, struct box *x, const void *from, int64_t bytes) {
    uint64_t need = units(bytes, b->most), left = x->size - (x->next & (x->size - 1));
    if (need > left) show(x, ELSEWHERE, left);
    if (bytes <= b->most) memcpy(record_at(x, x->next)->data, from, bytes);
    show(x, bytes, need);
}

// next_record is the message at hand, or NULL.
static struct record *next_record(struct box *x) {
    struct record *r = record_at(x, x->next);
    if (!__atomic_load_n(&r->there, __ATOMIC_ACQUIRE)) return NULL;
    if (r->bytes != ELSEWHERE) return r;
    x->next += x->size - (x->next & (x->size - 1));
    r = record_at(x, x->next);
    return __atomic_load_n(&r->there, __ATOMIC_ACQUIRE) ? r : NULL;
}

// take_record takes the message at hand out of the ring, and copies it if it has the length expected.
static struct outcome take_record(const struct board *b, struct box *x, const struct record *r, void *to, int64_t expected) {
    int64_t bytes = r->bytes;
    if (bytes == expected && bytes <= b->most) memcpy(to, r->data, bytes);
    x->next += units(bytes, b->most);
    __atomic_store_n(x->taken, x->next, __ATOMIC_RELEASE);
    return (struct outcome){bytes > expected ? MPI_ERR_TRUNCATE : MPI_SUCCESS, -1, bytes};
}

static int mail_send(struct board *b, MPI_Comm c, uintptr_t from, int64_t n, int t, int to, int tag, int64_t limit) {
    struct box *x = &b->out[to];
    int64_t bytes = n * sizes[t];
    for (uint64_t looks = 0; !has_room(x, units(bytes, b->most)); looks++) {
        int rc = idle(b, looks);
        if (rc != MPI_SUCCESS) return rc;
    }
    put(b, x, (const void *)from, bytes);
    return bytes <= b->most ? MPI_SUCCESS : send_message(c, from, n, t, to, tag, limit);
}

static struct outcome mail_recv(struct board *b, MPI_Comm c, uintptr_t to, int64_t n, int t, int from, int tag, int64_t limit) {
    struct box *x = &b->in[from];
    struct record *r;
    for (uint64_t looks = 0; !(r = next_record(x)); looks++) {
        int rc = idle(b, looks);
        if (rc != MPI_SUCCESS) return (struct outcome){rc, 0, -1};
    }
    struct outcome o = take_record(b, x, r, (void *)to, n * sizes[t]);
    return o.got <= b->most ? o : recv_message(c, to, n, t, from, tag, limit);
}

// p2p is one message of a group. The addresses of memory are integers so that Go memory, pinned, may hold it.
struct p2p {
    uintptr_t buf;
    int64_t n;
    MPI_Comm comm;
    struct board *board; // NULL where MPI alone carries it
    int t, peer, tag, recv;
    int state;          // from here on run_group's
    struct outcome how; // it went
};

enum { WAITING, STARTED, DONE };

static int start_message(struct p2p *p, MPI_Request *req, int64_t limit) {
    struct message m;
    void *buf = some((void *)p->buf);
    int rc = make_message(&m, p->n, p->t, limit);
    if (rc == MPI_SUCCESS)
        rc = p->recv ? MPI_Irecv(buf, m.count, m.type, p->peer, p->tag, p->comm, req)
                     : MPI_Isend(buf, m.count, m.type, p->peer, p->tag, p->comm, req);
    p->state = STARTED;
    return free_message(&m, rc);
}

// step_mail takes a message on, if that can be now.
static int step_mail(struct p2p *p, struct box *x, MPI_Request *req, int64_t limit) {
    const struct board *b = p->board;
    int64_t bytes = p->n * sizes[p->t];
    if (p->recv) {
        struct record *r = next_record(x);
        if (!r) return MPI_SUCCESS;
        p->how = take_record(b, x, r, (void *)p->buf, bytes);
        bytes = p->how.got;
    } else {
        if (!has_room(x, units(bytes, b->most))) return MPI_SUCCESS;
        put(b, x, (const void *)p->buf, bytes);
        p->how = (struct outcome){MPI_SUCCESS, -1, bytes};
    }
    p->state = DONE;
    return bytes <= b->most ? MPI_SUCCESS : start_message(p, req, limit);
}

// run_group starts all messages, the receives first where MPI alone carries them, and waits for them, or until MPI fails.
// index is -1, or the first message that failed. The waiting is one by one: MPI_Waitall of Open MPI 4.1 hangs, with threads,
// where one request fails.
static struct outcome run_group(struct p2p *p, int n, MPI_Request *reqs, int64_t limit) {
    static uint64_t pass; // in a box it marks that a message waits there, which no other may overtake
    const struct board *b = NULL;
    for (int recv = 1; recv >= 0; recv--) {
        for (int i = 0; i < n; i++) {
            if (p[i].recv != recv) continue;
            p[i].state = WAITING;
            if (p[i].board) {
                b = p[i].board;
                continue;
            }
            int rc = start_message(&p[i], &reqs[i], limit);
            if (rc != MPI_SUCCESS) return (struct outcome){rc, i, -1};
        }
    }
    for (uint64_t looks = 0; b; looks++) {
        int waiting = 0, moved = 0;
        pass++;
        for (int i = 0; i < n; i++) {
            if (p[i].state != WAITING) continue;
            struct box *x = p[i].recv ? &p[i].board->in[p[i].peer] : &p[i].board->out[p[i].peer];
            if (x->held != pass) {
                int rc = step_mail(&p[i], x, &reqs[i], limit);
                if (rc != MPI_SUCCESS) return (struct outcome){rc, i, -1};
            }
            if (p[i].state != WAITING) {
                moved = 1;
                continue;
            }
            x->held = pass;
            waiting = 1;
        }
        if (!waiting) break;
        if (moved) looks = 0;
        int rc = idle(b, looks);
        if (rc != MPI_SUCCESS) return (struct outcome){rc, 0, -1};
    }
    struct outcome first = {MPI_SUCCESS, -1, 0};
    for (int i = 0; i < n; i++) {
        if (p[i].state == STARTED) {
            MPI_Status s = {0};
            int rc = MPI_Wait(&reqs[i], &s);
            if (rc != MPI_SUCCESS) return (struct outcome){rc, i, received(&s)};
            p[i].how = (struct outcome){rc, -1, received(&s)};
        }
        if (first.index < 0 && p[i].recv && p[i].how.got != p[i].n * sizes[p[i].t]) first = (struct outcome){p[i].how.code, i, p[i].how.got};
    }
    return first;
}

static struct outcome mail_sendrecv(struct board *b, MPI_Comm c, uintptr_t to, int64_t rn, int from, uintptr_t src, int64_t sn, int dst, int t,
                                    int tag, int64_t limit) {
    struct p2p p[2] = {{.buf = to, .n = rn, .comm = c, .board = from == b->rank ? NULL : b, .t = t, .peer = from, .tag = tag, .recv = 1},
                       {.buf = src, .n = sn, .comm = c, .board = dst == b->rank ? NULL : b, .t = t, .peer = dst, .tag = tag}};
    MPI_Request reqs[2];
    struct outcome o = run_group(p, 2, reqs, limit);
    return o.index < 0 ? (struct outcome){MPI_SUCCESS, -1, rn * sizes[t]} : o;
}
