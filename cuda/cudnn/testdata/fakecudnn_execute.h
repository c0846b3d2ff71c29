// The double of cuDNN computes a graph. fakecudnn.c includes this.

// Execution.

enum { MOST = 64 };

// memory is the place of a tensor's elements. An intermediate result has an array of its own, laid
// out by its strides. The descriptor is looked up once, not for each element.
struct memory {
    const struct desc *t;
    void *p;
    double *own;
    int type;
    const int64_t *dims, *strides;
};

struct run {
    const struct desc *graph;
    int n;
    struct memory m[MOST];
    float scalars[8];
    char *workspace;
    int engine;
};

static double get(const struct memory *m, int64_t at) {
    if (m->own) return m->own[at];
    switch (m->type) {
    case FLOAT: return ((const float *)m->p)[at];
    case HALF: return from16(((const uint16_t *)m->p)[at]);
    default: return frombf(((const uint16_t *)m->p)[at]);
    }
}
static void put(const struct memory *m, int64_t at, double v) {
    int t = m->type;
    if (m->own) m->own[at] = t == FLOAT ? (float)v : t == HALF ? from16(to16((float)v)) : t == BFLOAT16
        ? frombf(tobf((float)v)) : v;
    else if (t == FLOAT) ((float *)m->p)[at] = (float)v;
    else if (t == HALF) ((uint16_t *)m->p)[at] = to16((float)v);
    else ((uint16_t *)m->p)[at] = tobf((float)v);
}

// place is the place of an element: an index beyond a dimension of 1 is broadcast.
static int64_t place(const struct memory *m, const int64_t i[4]) {
    const int64_t *d = m->dims, *s = m->strides;
    int64_t at = 0;
    for (int k = 0; k < 4; k++) at += (d[k] == 1 ? 0 : i[k]) * s[k];
    return at;
}
static int next(const struct memory *m, int64_t i[4]) {
    const int64_t *d = m->dims;
    for (int k = 3; k >= 0; k--) {
        if (++i[k] < d[k]) return 1;
        i[k] = 0;
    }
    return 0;
}

static struct memory *find(struct run *r, const struct desc *t) {
    for (int i = 0; i < r->n; i++)
        if (r->m[i].t == t) return &r->m[i];
    return NULL;
}

static double point(int mode, double x, double b, double t, int64_t index) {
    switch (mode) {
    case ADD: return x + b;
    case MUL: return x * b;
    case DIV: return x / b;
    case SUB: return x - b;
    case EXP: return exp(x);
    case LOG: return log(x);
    case GE: return x >= b;
    case INDEX: return (double)index;
    case SELECT: return t != 0 ? x : b;
    default: return x;
    }
}

static void compute(struct run *r, const struct desc *o) {
    struct desc *in[3];
    const struct memory *y = find(r, reads(o, in)), *x = find(r, in[0]), *b = in[1] ? find(r, in[1]) : NULL,
        *t = in[2] ? find(r, in[2]) : NULL;
    int64_t i[4] = {0};
    if (o->kind == OP_REDUCTION) {
        int most = number(link(o, 1612), 1600) == 3;
        int64_t n = extent(y->t);
        double *sum = malloc(n * sizeof *sum);
        for (int64_t k = 0; k < n; k++) sum[k] = most ? -INFINITY : 0;
        do {
            double v = get(x, place(x, i)), *s = &sum[place(y, i)];
            *s = most ? (v > *s ? v : *s) : *s + v;
        } while (next(x, i));
        do put(y, place(y, i), sum[place(y, i)]);
        while (next(y, i));
        free(sum);
        return;
    }
    const struct desc *p = o->kind == OP_MATMUL || o->kind == OP_RESHAPE ? NULL : link(o, 750);
    int mode = p ? number(p, 0) : -1;
    int axis = mode == INDEX ? (int)*longs(p, 9) : 0;
    do {
        if (o->kind == OP_MATMUL) {
            int64_t n = x->dims[3], row = place(x, (int64_t[4]){i[0], i[1], i[2], 0}),
                column = place(b, (int64_t[4]){i[0], i[1], 0, i[3]});
            int64_t right = x->strides[3], down = b->dims[2] == 1 ? 0 : b->strides[2];
            double sum = 0;
            for (int64_t k = 0; k < n; k++) sum += get(x, row + k * right) * get(b, column + k * down);
            put(y, place(y, i), sum);
        } else if (o->kind == OP_RESHAPE) {
            put(y, place(y, i), get(x, place(y, i)));
        } else {
            put(y, place(y, i), point(mode, get(x, place(x, i)), b ? get(b, place(b, i)) : 0,
                t ? get(t, place(t, i)) : 0, i[axis]));
        }
    } while (next(y, i));
}

// Host functions of all streams may run at the same time; a graph may replay one again, so a run is
// never freed.
static void execute(void *arg) {
    struct run *r = arg;
    memset(r->workspace, 0xff, WORKSPACE);
    if (r->engine == setting("FAKECUDNN_SLOW", -1)) {
        void (*seconds)(int) = NULL;
        *(void **)&seconds = driver("fakeSeconds");
        if (seconds) seconds(1);
    }
    for (int i = 0; i < r->n; i++)
        if (flag(r->m[i].t, 907)) {
            int64_t n = extent(r->m[i].t);
            r->m[i].own = malloc(n * sizeof(double));
            for (int64_t k = 0; k < n; k++) r->m[i].own[k] = NAN;
        }
    for (int i = 0; i < count(r->graph, 801); i++) compute(r, op(r->graph, i));
    for (int i = 0; i < r->n; i++) {
        free(r->m[i].own);
        r->m[i].own = NULL;
    }
}

// add has a tensor of the graph in the run. A tensor with a place in memory is found in the pack.
static int add(struct run *r, const struct desc *t, const struct desc *pack, uint64_t *used, int *scalars) {
    const int64_t *ids = longs(pack, 1000);
    void *const *at = attr(pack, 1001);
    if (!t || find(r, t)) return OK;
    struct memory *m = &r->m[r->n++];
    *m = (struct memory){.t = t, .type = type(t), .dims = dims(t), .strides = strides(t)};
    if (flag(t, 907)) return OK;
    for (int i = 0; i < count(pack, 1000); i++)
        if (ids[i] == *longs(t, 906)) {
            *used |= 1ull << i;
            m->p = at[i];
        }
    if (!m->p) return NULL_POINTER;
    if (flag(t, 908)) { // read now
        r->scalars[*scalars] = *(float *)m->p;
        m->p = &r->scalars[(*scalars)++];
        return OK;
    }
    return (uintptr_t)m->p % *longs(t, 900) == 0 ? OK : MISALIGNED;
}

int cudnnBackendExecute(struct handle *h, struct desc *plan, struct desc *pack) {
    BEGIN;
    static int (*launch)(void *stream, void (*fn)(void *), void *arg);
    if (!launch) *(void **)&launch = driver("cuLaunchHostFunc");
    NEED(h->magic == MAGIC, NOT_INITIALIZED);
    NEED(ready(plan, PLAN) && ready(pack, PACK), NOT_FINALIZED);
    NEED(rc != OK || ready(link(plan, 401)->of, GRAPH), NOT_FINALIZED);
    if (rc == OK) {
        struct run *r = calloc(1, sizeof *r);
        struct desc *in[3];
        uint64_t used = 0;
        int scalars = 0;
        r->graph = link(plan, 401)->of;
        r->engine = link(plan, 401)->number;
        r->workspace = *(char *const *)attr(pack, 1003);
        NEED(r->workspace != NULL, NULL_POINTER);
        for (int i = 0; rc == OK && i < count(r->graph, 801); i++) {
            rc = add(r, reads(op(r->graph, i), in), pack, &used, &scalars);
            for (int k = 0; rc == OK && k < 3; k++) rc = add(r, in[k], pack, &used, &scalars);
        }
        NEED(used == (1ull << count(pack, 1000)) - 1, BAD_PARAM); // a tensor that the graph has not
        if (rc == OK && launch(h->stream, execute, r) != 0) rc = 5001;
    }
    END("stream=%p", h->stream);
}
