// The state of the double of the driver, the log and failures of calls, and the operations of
// streams. fakecuda.c includes it.

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
        INVALID_PTX = 218,
    PEER_UNSUPPORTED = 217, PEER_ENABLED = 704, INVALID_HANDLE = 400, LOSSY_QUERY = 402, NOT_FOUND = 500,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908, };
enum { MAX_DEVICES = 16, MAX_PARAMS = 1024 };

typedef uint64_t device_ptr;

// Nothing below is ever freed but the memory of cuMemFree and cuMemFreeHost: a stale handle is
// recognised as one.
struct object { int kind, id, alive; struct context *ctx; };
enum { STREAM = 1, EVENT, GRAPH, EXEC, MODULE, FUNCTION, KINDS };

struct context { int device, refs; unsigned reaches; size_t used, stack; int live[KINDS]; };

struct op {
    enum { COPY = 1, FILL, HOST, KERNEL, CHILD, WAIT_VALUE, WRITE_VALUE, RECORD, WAIT } type;
    struct op *next;
    uintptr_t dst, src;
    size_t n;
    int size;
    unsigned v;
    void (*fn)(void *);
    void *arg;
    struct function *kernel;
    unsigned dims[6], shared;
    int early; // a launch by cuLaunchKernelEx
    unsigned cluster[3]; // none where the first is 0
    int argc;
    uint64_t *args;
    struct op *child;
    struct record *record;
    struct ends { struct op *of[16]; int n; } after; // of a graph: what it waits for
    int odd; // of the records of a graph it is the second, fourth, ...
};
struct ops { struct op *first, **last; int n; };

// The ends of a stream in a capture are the operations that the next one depends on.
enum { MOST_ENDS = 16 };
struct capture { struct ops ops; struct stream *origin; int mode, invalid, over; pthread_t thread;
    struct capture *next; };
struct stream {
    struct object o;
    int flags, priority;
    struct capture *capture;
    long seq, merged;
    struct ends ends;
    struct stream *next;
    int delayed; // has a thread of its own, which takes from todo until it is gone
    struct op *todo, **last;
    long pending;
    int gone;
    pthread_cond_t more; // to do
};
struct event {
    struct object o;
    int flags, recorded;
    struct capture *capture;
    struct stream *stream;
    long seq;
    struct ends ends;
    struct record *last; // NULL before the first
};
// record is one record of an event. A stream waits for the last record at the time of its wait,
// whatever becomes of the event: streams may pass later records first.
struct record {
    int passed;
    int64_t later;      // seconds that the clock of events had been put on when it was recorded
    struct timespec at; // when it was passed
};
struct graph { struct object o; struct ops ops; };
struct params { char kernel[256]; int n; int size[64], offset[64]; struct params *next; };
struct module { struct object o; struct params *kernels; };
struct function { struct object o; char name[256]; struct module *module; int max_shared, local; };
// The kinds of blocks: device memory, pinned host memory, host memory of others that is pinned,
// device memory of another process.
enum { DEVICE_MEMORY, PINNED, REGISTERED, FOREIGN };
struct block { uintptr_t p; size_t bytes; int kind, file, managed; struct context *ctx; struct block *next; };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
// For delayed streams: their operations, and the records of events.
static pthread_mutex_t delayed = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static struct context contexts[MAX_DEVICES];
static struct block *blocks;
static struct stream *streams;
static struct capture *captures;
static int initialised, ids[KINDS];
static __thread struct context *current;

// fakeSeconds lets time pass on the clock of events, for doubles of libraries whose work takes
// some: no machine is so busy that its own delays look like seconds. So does a kernel that is
// called lasts_N, when it runs. While a graph runs a record takes 100 ns, and nothing else any time:
// there the program under test compares microseconds.
static int64_t passed_by, lasted;
static __thread struct timespec replayed; // when this thread began to run a graph
void fakeSeconds(int n) { __atomic_fetch_add(&passed_by, n, __ATOMIC_RELAXED); }

static long setting(const char *name, long otherwise) {
    const char *s = getenv(name);
    return s != NULL && *s != 0 ? strtol(s, NULL, 0) : otherwise;
}
static int device_count(void) {
    long n = setting("FAKECUDA_DEVICES", 1);
    return n > MAX_DEVICES ? MAX_DEVICES : (int)n;
}

// The log. Each line is one write, so that processes can share a file.

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...) {
    const char *name = getenv("FAKECUDA_LOG");
    if (name == NULL || *name == 0) return;
    char path[4096], line[1 << 15];
    size_t n = 0;
    for (; *name != 0 && n + 32 < sizeof path; name++) {
        if (name[0] == '%' && name[1] == 'p') {
            n += (size_t)snprintf(path + n, sizeof path - n, "%d", (int)getpid());
            name++;
        } else {
            path[n++] = *name;
        }
    }
    path[n] = 0;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    int f = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (f < 0 || write(f, line, (size_t)length) != length) {
        fprintf(stderr, "fakecuda: cannot write %s\n", path);
        abort();
    }
    close(f);
}

// injected returns the status that FAKECUDA_FAIL has for this call, or OK.
static int injected(const char *call) {
    static char set[4096];
    static struct { char name[64]; long calls; } counts[64];
    const char *now = getenv("FAKECUDA_FAIL");
    if (now == NULL) now = "";
    pthread_mutex_lock(&mutex);
    if (strcmp(set, now) != 0) {
        snprintf(set, sizeof set, "%s", now);
        memset(counts, 0, sizeof counts);
    }
    int status = OK, found = 0;
    long nth = 0;
    size_t length = strlen(call);
    for (const char *p = set; *p != 0;) {
        if (strncmp(p, call, length) == 0 && p[length] == '=') {
            if (!found) {
                int i = 0;
                while (i < 63 && counts[i].name[0] != 0 && strcmp(counts[i].name, call) != 0) i++;
                snprintf(counts[i].name, sizeof counts[i].name, "%s", call);
                nth = ++counts[i].calls;
                found = 1;
            }
            char *end;
            int r = (int)strtol(p + length + 1, &end, 0);
            if (*end != '@' || strtol(end + 1, NULL, 0) == nth) status = r;
        }
        p = strchr(p, ',');
        if (p == NULL) break;
        p++;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

// Every call is FAIL_IF(...) for its preconditions between BEGIN and a last RETURN.
#define BEGIN(call)                                             \
    const char *const name = call;                              \
    int status = injected(name);                                \
    if (status == OK && !initialised) status = NOT_INITIALIZED; \
    if (status != OK) {                                         \
        note("%s = %d", name, status);                          \
        return status;                                          \
    }
#define FAIL_IF(condition, r)           \
    do {                                \
        if (condition) {                \
            int why = r;                \
            note("%s = %d", name, why); \
            return why;                 \
        }                               \
    } while (0)
#define RETURN(format, ...)                             \
    do {                                                \
        note("%s " format " = 0", name, ##__VA_ARGS__); \
        return OK;                                      \
    } while (0)
#define NEED_CONTEXT FAIL_IF(current == NULL || current->refs == 0, INVALID_CONTEXT)

static int valid(const void *p, int kind) {
    const struct object *o = p;
    return o != NULL && o->kind == kind && o->alive;
}
static int id_of(const void *p) { return p != NULL ? ((const struct object *)p)->id : 0; }
#define NEED(p, kind) \
    FAIL_IF(!valid(p, kind), INVALID_HANDLE); \
    FAIL_IF(((struct object *)(p))->ctx != current, INVALID_CONTEXT)

static void *object(size_t bytes, int kind) {
    struct object *o = calloc(1, bytes);
    pthread_mutex_lock(&mutex);
    *o = (struct object){kind, ++ids[kind], 1, current};
    current->live[kind]++;
    pthread_mutex_unlock(&mutex);
    return o;
}
static void destroy(void *p) {
    struct object *o = p;
    pthread_mutex_lock(&mutex);
    o->alive = 0;
    o->ctx->live[o->kind]--;
    pthread_mutex_unlock(&mutex);
}

// forbidden says whether a capture in progress does not allow the calling thread a call that may
// wait or allocate. Such a call makes the capture invalid.
static int forbidden(void) {
    int found = 0;
    pthread_mutex_lock(&mutex);
    for (struct capture *c = captures; c != NULL; c = c->next)
        if (!c->over && (c->mode == 0 || (c->mode == 1 && pthread_equal(c->thread, pthread_self()))))
            c->invalid = found = 1;
    pthread_mutex_unlock(&mutex);
    return found;
}
#define UNSAFE FAIL_IF(forbidden(), CAPTURE_UNSUPPORTED)

// fits says whether n bytes at p stay in the allocation that p lies in; memory that is not ours may
// be anything.
static int fits(uintptr_t p, size_t n) {
    int ok = p != 0;
    pthread_mutex_lock(&mutex);
    for (struct block *b = blocks; b != NULL; b = b->next)
        if (p >= b->p && p < b->p + b->bytes) ok = n <= b->p + b->bytes - p;
    pthread_mutex_unlock(&mutex);
    return ok;
}

// Operations.

static void log_kernel(const char *prefix, const struct op *k, int stream) {
    char args[24 * MAX_PARAMS + 1] = "";
    size_t at = 0;
    for (int i = 0; i < k->argc; i++)
        at += (size_t)snprintf(args + at, sizeof args - at, "%s0x%llx", i > 0 ? "," : "",
            (unsigned long long)k->args[i]);
    char cluster[64] = "";
    if (k->cluster[0] != 0) snprintf(cluster, sizeof cluster, " cluster=%u,%u,%u", k->cluster[0], k->cluster[1],
        k->cluster[2]);
    note("%scuLaunchKernel%s function=%s grid=%u,%u,%u block=%u,%u,%u%s%s shared=%u stream=%d args=%s = 0", prefix,
         k->early || k->cluster[0] != 0 ? "Ex" : "", k->kernel->name, k->dims[0], k->dims[1], k->dims[2], k->dims[3],
         k->dims[4], k->dims[5],
         cluster, k->early && k->cluster[0] != 0 ? " early" : "", k->shared, stream, args);
}

static void emulate(const struct op *k) {
    static void *library;
    const char *file = getenv("FAKECUDA_KERNELS");
    if (file == NULL || *file == 0) return;
    pthread_mutex_lock(&mutex);
    if (library == NULL) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    pthread_mutex_unlock(&mutex);
    if (library == NULL) {
        fprintf(stderr, "fakecuda: %s\n", dlerror());
        abort();
    }
    char symbol[300];
    snprintf(symbol, sizeof symbol, "emulate_%s", k->kernel->name);
    void (*run)(const uint64_t *, const unsigned *) = dlsym(library, symbol);
    if (run != NULL) run(k->args, k->dims);
}

static void carry_out(const struct op *p, int replay, int stream) {
    switch (p->type) {
    case COPY:
        if (replay) note("replay cuMemcpyAsync bytes=%zu stream=%d = 0", p->n, stream);
        memmove((void *)p->dst, (void *)p->src, p->n);
        break;
    case FILL:
        if (replay) note("replay cuMemsetD%dAsync n=%zu stream=%d = 0", 8 * p->size, p->n, stream);
        for (size_t i = 0; i < p->n; i++) memcpy((char *)p->dst + i * (size_t)p->size, &p->v, (size_t)p->size);
        break;
    case HOST:
        if (replay) note("replay cuLaunchHostFunc stream=%d = 0", stream);
        p->fn(p->arg);
        break;
    case KERNEL:
        log_kernel(replay ? "replay " : "", p, stream);
        emulate(p);
        int seconds;
        if (sscanf(p->kernel->name, "lasts_%d", &seconds) == 1)
            __atomic_fetch_add(&lasted, seconds, __ATOMIC_RELAXED);
        break;
    case WAIT_VALUE:
        for (int looks = 0; (int32_t)(__atomic_load_n((uint32_t *)p->dst, __ATOMIC_ACQUIRE) - p->v) < 0; looks++)
            if (looks < 20) sched_yield();
            else usleep(50); // the host that it waits for needs the core
        break;
    case WRITE_VALUE: __atomic_store_n((uint32_t *)p->dst, p->v, __ATOMIC_RELEASE); break;
    case RECORD:
        pthread_mutex_lock(&delayed);
        if (replay) {
            __atomic_fetch_add(&lasted, setting("FAKECUDA_SLOW", 0), __ATOMIC_RELAXED);
            p->record->later = __atomic_load_n(&passed_by, __ATOMIC_RELAXED) + p->odd * setting("FAKECUDA_LATE", 0);
        }
        p->record->later += __atomic_load_n(&lasted, __ATOMIC_RELAXED);
        if (replay) {
            replayed.tv_nsec += 100;
            p->record->at = replayed;
        } else clock_gettime(CLOCK_MONOTONIC, &p->record->at);
        p->record->at.tv_sec += p->record->later;
        p->record->passed = 1;
        pthread_cond_broadcast(&progress);
        pthread_mutex_unlock(&delayed);
        break;
    case WAIT:
        pthread_mutex_lock(&delayed);
        while (p->record != NULL && !p->record->passed) pthread_cond_wait(&progress, &delayed);
        pthread_mutex_unlock(&delayed);
        break;
    case CHILD:
        if (!replay) clock_gettime(CLOCK_MONOTONIC, &replayed);
        for (const struct op *c = p->child; c != NULL; c = c->next) carry_out(c, 1, stream);
        break;
    }
}

static struct op *duplicate(const struct op *p) {
    struct op *first = NULL, **last = &first;
    for (; p != NULL; p = p->next) {
        struct op *q = malloc(sizeof *q);
        *q = *p;
        q->next = NULL;
        if (p->argc > 0) {
            q->args = malloc((size_t)p->argc * sizeof *q->args);
            memcpy(q->args, p->args, (size_t)p->argc * sizeof *q->args);
        }
        q->child = duplicate(p->child);
        *last = q;
        last = &q->next;
    }
    return first;
}

static void *run_delayed(void *stream) {
    struct stream *s = stream;
    unsigned seed = (unsigned)s->o.id + (unsigned)getpid();
    for (;;) {
        pthread_mutex_lock(&delayed);
        while (s->todo == NULL && !s->gone) pthread_cond_wait(&s->more, &delayed);
        struct op *p = s->todo;
        if (p == NULL) break;
        if ((s->todo = p->next) == NULL) s->last = &s->todo;
        pthread_mutex_unlock(&delayed);
        long most = setting("FAKECUDA_DELAY", 0);
        if (most > 0) usleep((unsigned)(rand_r(&seed) % most));
        carry_out(p, 0, s->o.id);
        pthread_mutex_lock(&delayed);
        s->pending--;
        pthread_cond_broadcast(&progress);
        pthread_mutex_unlock(&delayed);
    }
    pthread_mutex_unlock(&delayed);
    return NULL;
}

// not_ready is what a query answers that comes too early. Who asks and asks leaves its core to
// those whom it waits for.
static int not_ready(void) {
    static __thread unsigned asked;
    if (++asked % 2 != 0) sched_yield();
    else usleep(20);
    return NOT_READY;
}

static struct record *last_record(struct event *e) {
    pthread_mutex_lock(&delayed);
    struct record *k = e->last;
    pthread_mutex_unlock(&delayed);
    return k;
}
static int idle(struct stream *s) {
    pthread_mutex_lock(&delayed);
    int r = s->pending == 0;
    pthread_mutex_unlock(&delayed);
    return r;
}
static void await_stream(struct stream *s) {
    pthread_mutex_lock(&delayed);
    while (s->pending > 0) pthread_cond_wait(&progress, &delayed);
    pthread_mutex_unlock(&delayed);
}
static void await_device(struct context *c) {
    pthread_mutex_lock(&mutex);
    struct stream *s = streams;
    pthread_mutex_unlock(&mutex);
    for (; s != NULL; s = s->next)
        if (s->o.ctx == c) await_stream(s);
}

// submit carries p out, now or on the stream's thread, or records it if s captures.
static int submit(struct stream *s, const struct op *p) {
    struct capture *c = s->capture;
    if (c == NULL && s->delayed) {
        struct op *q = duplicate(p);
        pthread_mutex_lock(&delayed);
        *s->last = q;
        s->last = &q->next;
        s->pending++;
        pthread_cond_signal(&s->more);
        pthread_mutex_unlock(&delayed);
        return OK;
    }
    if (c == NULL) {
        carry_out(p, 0, s->o.id);
        return OK;
    }
    if (c->invalid) return CAPTURE_INVALIDATED;
    struct op *q = duplicate(p);
    pthread_mutex_lock(&mutex);
    *(c->ops.n > 0 ? c->ops.last : &c->ops.first) = q;
    c->ops.last = &q->next;
    c->ops.n++;
    q->after = s->ends;
    s->seq++;
    s->ends = (struct ends){{q}, 1};
    pthread_mutex_unlock(&mutex);
    return OK;
}
