// Groups of messages. Included once, by sys.go, after sys.h.

// p2p is one message of a group. The addresses of memory are integers so that Go memory, pinned,
// may hold it.
struct p2p {
    uintptr_t buf;
    int64_t n;
    MPI_Comm comm;
    struct carrier *by; // NULL where MPI alone carries it
    int t, peer, tag, recv;
    int state;   // from here on run_group's
    int64_t got; // content
};

enum { WAITING, STARTED, DONE };

static int start_message(struct p2p *p, MPI_Request *req) {
    struct message m;
    void *buf = some((void *)p->buf);
    int rc = make_message(&m, p->n, p->t);
    if (rc == MPI_SUCCESS)
        rc = p->recv ? MPI_Irecv(buf, m.count, m.type, p->peer, tag_from(p->tag), p->comm, req)
                     : MPI_Isend(buf, m.count, m.type, p->peer, tag_to(p->tag, p->t), p->comm, req);
    p->state = STARTED;
    return free_message(&m, rc);
}

static int64_t expected(const struct p2p *p) { return content(p->n * sizes[p->t], p->t); }

// step goes on with a message by its carrier, if the carrier can.
static int step(struct p2p *p, MPI_Request *req) {
    switch (p->by->step(p->by, p->buf, expected(p), p->recv, &p->got)) {
    case WAITS: return MPI_SUCCESS;
    case LEFT_TO_MPI: return start_message(p, req);
    case CARRIED: p->state = DONE;
    }
    return MPI_SUCCESS;
}

// run_group starts all messages and waits for them, or until MPI fails. Receives that MPI alone
// carries start first. index is the first message that failed, else -1. It waits for one after the
// other: with threads, MPI_Waitall of Open MPI 4.1 hangs if one request fails.
static struct outcome run_group(struct p2p *p, int n, MPI_Request *reqs) {
    static uint64_t pass;
    struct carrier *by = NULL;
    for (int recv = 1; recv >= 0; recv--) {
        for (int i = 0; i < n; i++) {
            if (p[i].recv != recv) continue;
            p[i].state = WAITING;
            if (p[i].by) {
                by = p[i].by;
                continue;
            }
            int rc = start_message(&p[i], &reqs[i]);
            if (rc != MPI_SUCCESS) return (struct outcome){rc, i, -1};
        }
    }
    for (uint64_t looks = 0; by; looks++) {
        int waiting = 0, moved = 0;
        pass++;
        for (int i = 0; i < n; i++) {
            if (p[i].state != WAITING) continue;
            if (p[i].by->held != pass) {
                int rc = step(&p[i], &reqs[i]);
                if (rc != MPI_SUCCESS) return (struct outcome){rc, i, -1};
            }
            if (p[i].state != WAITING) {
                moved = 1;
                continue;
            }
            p[i].by->held = pass;
            waiting = 1;
        }
        if (!waiting) break;
        if (moved) looks = 0;
        int rc = by->idle(by, looks);
        if (rc != MPI_SUCCESS) return (struct outcome){rc, 0, -1};
    }
    struct outcome first = {MPI_SUCCESS, -1, 0};
    for (int i = 0; i < n; i++) {
        if (p[i].state == STARTED) {
            MPI_Status s = {.MPI_TAG = MPI_ANY_TAG};
            int rc = MPI_Wait(&reqs[i], &s);
            p[i].got = arrived(&s, p[i].tag, p[i].t);
            if (rc != MPI_SUCCESS) return (struct outcome){rc, i, p[i].got};
        }
        if (first.index < 0 && p[i].recv && p[i].got != expected(&p[i]))
            first = (struct outcome){MPI_SUCCESS, i, p[i].got};
    }
    return first;
}

// sendrecv_by is a sendrecv of the application's messages. in and out may take them; NULL if MPI
// alone does.
static struct outcome sendrecv_by(MPI_Comm c, struct carrier *in, struct carrier *out, uintptr_t dst, int64_t rn,
    int from, uintptr_t src, int64_t sn, int to, int t) {
    struct p2p p[2] = {{.buf = dst, .n = rn, .comm = c, .by = in, .t = t, .peer = from, .tag = TAG_USER, .recv = 1},
                       {.buf = src, .n = sn, .comm = c, .by = out, .t = t, .peer = to, .tag = TAG_USER}};
    MPI_Request reqs[2];
    struct outcome o = run_group(p, 2, reqs);
    return o.index < 0 ? (struct outcome){MPI_SUCCESS, -1, expected(&p[0])} : o;
}

// The table of calls.h.

static uintptr_t handle_word(MPI_Comm c) {
    uintptr_t word = 0;
    memcpy(&word, &c, sizeof c);
    return word;
}
static MPI_Comm word_handle(uintptr_t word) {
    MPI_Comm c;
    memcpy(&c, &word, sizeof c);
    return c;
}
static int call_progress(uintptr_t comm) {
    return progress(word_handle(comm));
}
static int call_send(uintptr_t comm, uintptr_t from, int64_t n, int t, int to) {
    return send_message(word_handle(comm), from, n, t, to, TAG_USER);
}
static struct outcome call_recv(uintptr_t comm, uintptr_t to, int64_t n, int t, int from) {
    return recv_message(word_handle(comm), to, n, t, from, TAG_USER);
}
static struct calls call_table = {call_progress, call_send, call_recv};
static struct calls *calls(void) { return &call_table; }
