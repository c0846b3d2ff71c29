// With -DMOVES the double communicates: ranks that are goroutines of one process, on streams that
// run at once. Each call gives the others a copy of its input, and takes its part of theirs.
// Included once, by fakenccl.c.

#include <time.h>

#include "../../internal/elem/arith.h"

// letter is data that a rank has given: to another rank, or to all in a collective, for which to is
// -1. Letters from a rank to the same receivers are numbered.
typedef struct letter {
    struct letter *next;
    int from, to, number, left; // left: ranks that have not read it
    size_t bytes;
    char data[];
} letter;

typedef struct world {
    int size, joined;
    letter *letters;
    pthread_cond_t come;
} world;

enum { MOST = 8 }; // ranks

// moves is a communicator's part in a world: how many letters it has given and taken.
typedef struct moves {
    world *w;
    int rank, given[MOST + 1], taken[MOST + 1]; // the last is of collectives
} moves;

// task is a call that has not begun, of a group that has not ended.
typedef struct task {
    moves *m;
    // 'a'll-reduce, 'r'educe, 'b'roadcast, all-'g'ather, reduce-'s'catter, all-to-all 't', '<'
    // recv, '>' send
    char kind;
    const char *src;
    char *dst;
    size_t n;
    int type, op, peer;
} task;

static __thread task tasks[1024];
static __thread int waiting;
static pthread_mutex_t post = PTHREAD_MUTEX_INITIALIZER;

static void refuse(const char *why) {
    fprintf(stderr, "fakenccl: %s\n", why);
    abort();
}

// enter returns a rank's part of the world that is being joined, or of a new one.
static moves *enter(int rank, int size) {
    static world *joining;
    if (size > MOST) refuse("too many ranks");
    pthread_mutex_lock(&post);
    if (!joining) {
        joining = calloc(1, sizeof *joining);
        joining->size = size;
        pthread_cond_init(&joining->come, NULL);
    }
    moves *m = calloc(1, sizeof *m);
    *m = (moves){.w = joining, .rank = rank};
    if (joining->size != size) refuse("ranks of two worlds join at the same time");
    if (++joining->joined == size) joining = NULL;
    pthread_mutex_unlock(&post);
    return m;
}

static void give(moves *m, int to, const void *src, size_t bytes) {
    letter *l = malloc(sizeof *l + bytes);
    *l = (letter){m->w->letters, m->rank, to, m->given[to < 0 ? MOST : to]++, to < 0 ? m->w->size : 1, bytes};
    if (bytes) memcpy(l->data, src, bytes);
    m->w->letters = l;
    pthread_cond_broadcast(&m->w->come);
}

// find waits for a letter. The caller has the lock. A letter that has not come after so long does
// not come: a test has failed on its rank.
static letter *find(moves *m, int from, int to, int number) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    for (;;) {
        for (letter *l = m->w->letters; l; l = l->next)
            if (l->from == from && l->to == to && l->number == number) return l;
        if (pthread_cond_timedwait(&m->w->come, &post, &until) != 0) refuse("a rank has waited for a minute");
    }
}

// read_by says that a rank needs a letter no more.
static void read_by(moves *m, letter *l) {
    if (--l->left > 0) return;
    letter **at = &m->w->letters;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    free(l);
}

// In the order of ncclDataType_t and ncclRedOp_t, as package elem numbers them.
static const int elem_of[] = {0, 1, 2, 3, 4, 5, F16, F32, F64, BF16}, op_of[] = {0, 1, MAX, MIN, AVG};

// meet takes a rank's part of a collective from the letters of all ranks.
static void meet(task *x) {
    moves *m = x->m;
    int ranks = m->w->size, number = m->taken[MOST]++, t = elem_of[x->type];
    size_t bytes = x->n * sizes[t], mine = x->kind == 's' || x->kind == 't' ? m->rank * bytes : 0;
    uintptr_t from[MOST];
    letter *all[MOST];
    for (int r = 0; r < ranks; r++) {
        all[r] = find(m, r, -1, number);
        if (all[r]->bytes != bytes * (x->kind == 's' || x->kind == 't' ? ranks : 1))
            refuse("ranks bring different lengths");
        from[r] = (uintptr_t)all[r]->data + mine;
    }
    switch (x->kind) {
    case 'b':
        memcpy(x->dst, (void *)from[x->peer], bytes);
        break;
    case 'g':
    case 't':
        for (int r = 0; r < ranks; r++) memcpy(x->dst + r * bytes, (void *)from[r], bytes);
        break;
    default:
        if (x->kind == 'r' && x->peer != m->rank) break;
        if (ranks > 1) reduce_many((uintptr_t)x->dst, from, ranks, x->n, t, op_of[x->op]);
        else memcpy(x->dst, (void *)from[0], bytes);
    }
    for (int r = 0; r < ranks; r++) read_by(m, all[r]);
}

// carry_out makes the calls of a group, or one alone: no rank waits before it has given all.
static void carry_out(void) {
    pthread_mutex_lock(&post);
    for (task *x = tasks; x < tasks + waiting; x++) {
        moves *m = x->m;
        size_t bytes = x->n * sizes[elem_of[x->type]];
        if (x->kind == '>') give(m, x->peer, x->src, bytes);
        else if (x->kind != '<') give(m, -1, x->src, bytes * (x->kind == 's' || x->kind == 't' ? m->w->size : 1));
    }
    for (task *x = tasks; x < tasks + waiting; x++) {
        moves *m = x->m;
        if (x->kind == '>') continue;
        if (x->kind != '<') {
            meet(x);
            continue;
        }
        letter *l = find(m, x->peer, m->rank, m->taken[x->peer]++);
        if (l->bytes != x->n * sizes[elem_of[x->type]]) refuse("a message of another length");
        memcpy(x->dst, l->data, l->bytes);
        read_by(m, l);
    }
    waiting = 0;
    pthread_mutex_unlock(&post);
}

// note_task puts off a call until its group ends. name is that of its function.
static void note_task(moves *m, const char *name, const void *src, void *dst, size_t n, int type, int op,
    int peer, int depth) {
    static const struct { const char *name; char kind; } kinds[] = {
        {"ncclAllReduce", 'a'}, {"ncclReduce", 'r'}, {"ncclBroadcast", 'b'}, {"ncclAllGather", 'g'},
        {"ncclReduceScatter", 's'}, {"ncclAlltoAll", 't'}, {"ncclSend", '>'}, {"ncclRecv", '<'},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(name, kinds[i].name) != 0) continue;
        if (waiting == sizeof tasks / sizeof *tasks) refuse("too many calls in a group");
        tasks[waiting++] = (task){m, kinds[i].kind, src, dst, n, type, op, peer};
        if (depth == 0) carry_out();
        return;
    }
    refuse("no such call");
}
