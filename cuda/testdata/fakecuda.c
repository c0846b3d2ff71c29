// A test double of libcuda.so.1: the part of the driver API that package cuda binds, in host memory and without a GPU.
//
// Device memory is malloc'd and holds 0xA5 at first. Streams run what they are given at once, in the order of the calls, so
// every event is done once it is recorded; with FAKECUDA_DELAY each has a thread of its own, and they run beside each other
// and the host. Host functions are called by the thread that runs the stream. Kernels are noted, and run where
// FAKECUDA_KERNELS has them. A handle of memory for other processes needs FAKECUDA_SHARED.
// A capture records its operations, and launching the graph carries them out. As the driver does, it refuses calls without a
// current context or with the context of another device, handles that have been destroyed, copies past the end of an
// allocation, what a capture does not allow, and a capture's end on another thread.
//
// What it reads from the environment, at every call, so that a test may change it:
//   FAKECUDA_LOG           a file; every call but cuCtxGetCurrent, cuGetErrorName and cuGetErrorString is a line in it,
//                          "cuMemAlloc_v2 bytes=64 p=0x... = 0". %p in the name is the process id. Handles are numbered by kind.
//                          "replay cuLaunchKernel ..." is an operation of a graph that is carried out.
//   FAKECUDA_FAIL          "cuMemAlloc_v2=2,cuLaunchKernel=700@3": the status of every call, or of the third from now on
//   FAKECUDA_DEVICES       number of devices, 1
//   FAKECUDA_VERSION       what cuDriverGetVersion says, 13000
//   FAKECUDA_MEMORY        bytes of memory that each device pretends to have, 1 GiB
//   FAKECUDA_UNTOUCHED     if set, managed memory counts as free, as the driver has it until it is used
//   FAKECUDA_COMPUTE_MODE  the device attribute, 0
//   FAKECUDA_MAJOR         the device attribute, 9: the compute capability is 9.0
//   FAKECUDA_MIG           if set, devices are parts of GPUs
//   FAKECUDA_DELAY         if set, at the creation of a stream: it is asynchronous, and each of its operations begins up to as
//                          many microseconds late, at random
//   FAKECUDA_SHARED        if set, device memory is made so that other processes can map it
//   FAKECUDA_PEERS         "0": no device reaches the memory of another; "2": it does, without native atomic operations
//   FAKECUDA_KERNELS       a shared library; a launch of kernel k calls its emulate_k(const uint64_t *args, const unsigned
//                          dims[6]), where there is one. A struct among the arguments is the address of a copy.
// The sizes of a kernel's parameters are those in the cubin, which it reads; of other images they are not known.
// A symbol x is left out by -Dx=absent_x. An image that starts with "BAD" does not load, a function whose name starts
// with "absent" is not found, and one with "old" was compiled for sm_80.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_PTX = 218,
    PEER_UNSUPPORTED = 217, PEER_ENABLED = 704, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908, UPDATE_FAILURE = 910,
};
enum { MAX_DEVICES = 16, MAX_PARAMS = 1024 };

typedef uint64_t device_ptr;

// Nothing below is ever freed but the memory of cuMemFree and cuMemFreeHost: a stale handle is recognised as one.
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
};
struct ops { struct op *first, **last; int n; };

struct capture { struct ops ops; struct stream *origin; int mode, invalid, over; pthread_t thread; struct capture *next; };
struct stream {
    struct object o;
    int flags, priority;
    struct capture *capture;
    long seq, merged;
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
    struct record *last; // NULL before the first
};
// record is one record of an event. A stream waits for the one that was the last when it was told to wait, whatever becomes of
// the event: streams may pass later records first.
struct record {
    int passed;
    int64_t later;      // seconds that the clock of events had been put on when it was recorded
    struct timespec at; // when it was passed
};
struct graph { struct object o; struct ops ops; };
struct params { char kernel[256]; int n; int size[64]; struct params *next; };
struct module { struct object o; struct params *kernels; };
struct function { struct object o; char name[256]; struct module *module; int max_shared, local; };
// What a block is: device memory, pinned host memory, host memory of others that is pinned, device memory of another process.
enum { DEVICE_MEMORY, PINNED, REGISTERED, FOREIGN };
struct block { uintptr_t p; size_t bytes; int kind, file, managed; struct context *ctx; struct block *next; };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
// Of delayed streams: their operations, and the records of events.
static pthread_mutex_t delayed = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static struct context contexts[MAX_DEVICES];
static struct block *blocks;
static struct stream *streams;
static struct capture *captures;
static int initialised, ids[KINDS];
static __thread struct context *current;

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
#define BEGIN(call)                                                                                                                \
    const char *const name = call;                                                                                                 \
    int status = injected(name);                                                                                                   \
    if (status == OK && !initialised) status = NOT_INITIALIZED;                                                                    \
    if (status != OK) {                                                                                                            \
        note("%s = %d", name, status);                                                                                             \
        return status;                                                                                                             \
    }
#define FAIL_IF(condition, r)                                                                                                      \
    do {                                                                                                                           \
        if (condition) {                                                                                                           \
            note("%s = %d", name, r);                                                                                              \
            return r;                                                                                                              \
        }                                                                                                                          \
    } while (0)
#define RETURN(format, ...)                                                                                                        \
    do {                                                                                                                           \
        note("%s " format " = 0", name, ##__VA_ARGS__);                                                                            \
        return OK;                                                                                                                 \
    } while (0)
#define NEED_CONTEXT FAIL_IF(current == NULL || current->refs == 0, INVALID_CONTEXT)

static int valid(const void *p, int kind) {
    const struct object *o = p;
    return o != NULL && o->kind == kind && o->alive;
}
static int id_of(const void *p) { return p != NULL ? ((const struct object *)p)->id : 0; }
#define NEED(p, kind)                                                                                                              \
    FAIL_IF(!valid(p, kind), INVALID_HANDLE);                                                                                      \
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

// forbidden says whether a capture in progress does not allow the calling thread a call that may wait or allocate; such a
// call makes the capture invalid.
static int forbidden(void) {
    int found = 0;
    pthread_mutex_lock(&mutex);
    for (struct capture *c = captures; c != NULL; c = c->next)
        if (!c->over && (c->mode == 0 || (c->mode == 1 && pthread_equal(c->thread, pthread_self())))) c->invalid = found = 1;
    pthread_mutex_unlock(&mutex);
    return found;
}
#define UNSAFE FAIL_IF(forbidden(), CAPTURE_UNSUPPORTED)

// fits says whether n bytes at p stay in the allocation that p lies in; memory that is not ours may be anything.
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
        at += (size_t)snprintf(args + at, sizeof args - at, "%s0x%llx", i > 0 ? "," : "", (unsigned long long)k->args[i]);
    char cluster[64] = "";
    if (k->cluster[0] != 0) snprintf(cluster, sizeof cluster, " cluster=%u,%u,%u", k->cluster[0], k->cluster[1], k->cluster[2]);
    note("%scuLaunchKernel%s function=%s grid=%u,%u,%u block=%u,%u,%u%s%s shared=%u stream=%d args=%s = 0", prefix,
         k->early || k->cluster[0] != 0 ? "Ex" : "", k->kernel->name, k->dims[0], k->dims[1], k->dims[2], k->dims[3], k->dims[4], k->dims[5],
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
        break;
    case WAIT_VALUE:
        while ((int32_t)(__atomic_load_n((uint32_t *)p->dst, __ATOMIC_ACQUIRE) - p->v) < 0) sched_yield();
        break;
    case WRITE_VALUE: __atomic_store_n((uint32_t *)p->dst, p->v, __ATOMIC_RELEASE); break;
    case RECORD:
        pthread_mutex_lock(&delayed);
        clock_gettime(CLOCK_MONOTONIC, &p->record->at);
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

// submit carries p out, now or on the stream's thread, or records it where s captures.
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
    s->seq++;
    pthread_mutex_unlock(&mutex);
    return OK;
}

// Start, errors.

int cuInit(unsigned flags) {
    int status = injected("cuInit");
    if (status == OK && device_count() == 0) status = 100;
    if (status == OK) initialised = 1;
    note("cuInit flags=%u = %d", flags, status);
    return status;
}
int cuDriverGetVersion(int *v) {
    int status = injected("cuDriverGetVersion");
    *v = (int)setting("FAKECUDA_VERSION", 13000);
    note("cuDriverGetVersion version=%d = %d", *v, status);
    return status;
}
// The driver's names are the header's; a test must be able to tell them from the table of the package.
int cuGetErrorName(int r, const char **out) {
    *out = r == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *out != NULL ? OK : INVALID_VALUE;
}
int cuGetErrorString(int r, const char **out) {
    *out = r == OUT_OF_MEMORY ? "out of memory" : r == INVALID_VALUE ? "invalid argument" : NULL;
    return *out != NULL ? OK : INVALID_VALUE;
}

// Devices.

int cuDeviceGetCount(int *n) {
    BEGIN("cuDeviceGetCount");
    *n = device_count();
    RETURN("n=%d", *n);
}
int cuDeviceGet(int *device, int index) {
    BEGIN("cuDeviceGet");
    FAIL_IF(index < 0 || index >= device_count(), INVALID_DEVICE);
    *device = index;
    RETURN("index=%d", index);
}
int cuDeviceGetName(char *out, int n, int device) {
    BEGIN("cuDeviceGetName");
    snprintf(out, (size_t)n, "Fake GPU");
    RETURN("device=%d", device);
}
static void uuid_bytes(unsigned char *out, int device, int part) {
    for (int i = 0; i < 16; i++) out[i] = (unsigned char)(16 * i + i);
    out[15] = (unsigned char)device;
    out[14] = (unsigned char)part;
}
int cuDeviceGetUuid(void *out, int device) {
    BEGIN("cuDeviceGetUuid");
    uuid_bytes(out, device, 0);
    RETURN("device=%d", device);
}
int cuDeviceGetUuid_v2(void *out, int device) {
    BEGIN("cuDeviceGetUuid_v2");
    uuid_bytes(out, device, getenv("FAKECUDA_MIG") != NULL);
    RETURN("device=%d", device);
}
int cuDeviceGetAttribute(int *v, int attribute, int device) {
    BEGIN("cuDeviceGetAttribute");
    switch (attribute) {
    case 16: *v = 132; break;
    case 20: *v = (int)setting("FAKECUDA_COMPUTE_MODE", 0); break;
    case 75: *v = (int)setting("FAKECUDA_MAJOR", 9); break;
    case 76: *v = 0; break;
    case 97: *v = 227 << 10; break;
    default: FAIL_IF(1, INVALID_VALUE);
    }
    RETURN("device=%d attribute=%d", device, attribute);
}
static size_t memory(void) { return (size_t)setting("FAKECUDA_MEMORY", 1 << 30); }
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    BEGIN("cuDeviceTotalMem_v2");
    *bytes = memory();
    RETURN("device=%d", device);
}
int cuDeviceGetPCIBusId(char *out, int n, int device) {
    BEGIN("cuDeviceGetPCIBusId");
    snprintf(out, (size_t)n, "0000:%02X:00.0", 0x3a + device);
    RETURN("device=%d", device);
}

// Contexts.

int cuDevicePrimaryCtxRetain(void **out, int device) {
    BEGIN("cuDevicePrimaryCtxRetain");
    FAIL_IF(device < 0 || device >= device_count(), INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    contexts[device].device = device;
    if (contexts[device].refs++ == 0) contexts[device].stack = 1024;
    pthread_mutex_unlock(&mutex);
    *out = &contexts[device];
    RETURN("device=%d", device);
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN("cuDevicePrimaryCtxRelease_v2");
    struct context *c = &contexts[device];
    FAIL_IF(c->refs == 0, INVALID_CONTEXT);
    pthread_mutex_lock(&mutex);
    if (--c->refs == 0) c->reaches = 0;
    pthread_mutex_unlock(&mutex);
    const int *n = c->live;
    RETURN("device=%d refs=%d streams=%d events=%d graphs=%d execs=%d modules=%d bytes=%zu", device, c->refs, n[STREAM], n[EVENT],
           n[GRAPH], n[EXEC], n[MODULE], c->used);
}
int cuCtxGetCurrent(void **out) {
    int status = injected("cuCtxGetCurrent");
    *out = current;
    return status;
}
int cuCtxSetCurrent(void *c) {
    BEGIN("cuCtxSetCurrent");
    FAIL_IF(c != NULL && ((struct context *)c)->refs == 0, INVALID_CONTEXT);
    current = c;
    RETURN("device=%d thread=%d", current != NULL ? current->device : -1, (int)gettid());
}
int cuCtxSynchronize(void) {
    BEGIN("cuCtxSynchronize");
    NEED_CONTEXT;
    UNSAFE;
    await_device(current);
    RETURN("device=%d", current->device);
}
int cuCtxGetLimit(size_t *v, int limit) {
    BEGIN("cuCtxGetLimit");
    NEED_CONTEXT;
    FAIL_IF(limit != 0, INVALID_VALUE);
    *v = current->stack;
    RETURN("limit=%d", limit);
}
int cuCtxSetLimit(int limit, size_t v) {
    BEGIN("cuCtxSetLimit");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(limit != 0, INVALID_VALUE);
    await_device(current);
    current->stack = v;
    RETURN("limit=%d v=%zu", limit, v);
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    BEGIN("cuCtxGetStreamPriorityRange");
    NEED_CONTEXT;
    *least = 0;
    *greatest = -5;
    RETURN("device=%d", current->device);
}

// Memory.

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    BEGIN("cuMemGetInfo_v2");
    NEED_CONTEXT;
    *total = memory();
    size_t used = current->used;
    pthread_mutex_lock(&mutex);
    for (struct block *b = blocks; b != NULL && setting("FAKECUDA_UNTOUCHED", 0) != 0; b = b->next)
        if (b->managed && b->ctx == current) used -= b->bytes;
    pthread_mutex_unlock(&mutex);
    *free = *total > used ? *total - used : 0;
    RETURN("free=%zu total=%zu", *free, *total);
}
// add notes a block. The caller holds the mutex.
static void add(void *p, size_t bytes, int kind, int file) {
    struct block *b = malloc(sizeof *b);
    *b = (struct block){(uintptr_t)p, bytes, kind, file, 0, current, blocks};
    blocks = b;
}
static struct block *block_at(uintptr_t p, int kind) {
    struct block *b = blocks;
    while (b != NULL && (b->p != p || b->kind != kind)) b = b->next;
    return b;
}
// allocate returns 0 where the device has no more memory. Host memory counts for no device.
static uintptr_t allocate(size_t bytes, int kind) {
    void *p = NULL;
    int file = -1;
    pthread_mutex_lock(&mutex);
    int room = kind == PINNED || (bytes <= memory() && current->used <= memory() - bytes);
    if (room && kind == DEVICE_MEMORY && setting("FAKECUDA_SHARED", 0) != 0) {
        file = memfd_create("fakecuda", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)bytes) != 0) abort();
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (p == MAP_FAILED) abort();
    } else if (!room || posix_memalign(&p, 512, bytes) != 0) {
        pthread_mutex_unlock(&mutex);
        return 0;
    }
    memset(p, 0xA5, bytes < (1 << 20) ? bytes : (1 << 20));
    add(p, bytes, kind, file);
    if (kind == DEVICE_MEMORY) current->used += bytes;
    pthread_mutex_unlock(&mutex);
    return (uintptr_t)p;
}
// release forgets a block; as the driver does, it waits for the device.
static int release(uintptr_t p, int kind) {
    await_device(current);
    pthread_mutex_lock(&mutex);
    struct block *b = block_at(p, kind);
    if (b == NULL) {
        pthread_mutex_unlock(&mutex);
        return INVALID_VALUE;
    }
    struct block **at = &blocks;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    if (kind == DEVICE_MEMORY) b->ctx->used -= b->bytes;
    pthread_mutex_unlock(&mutex);
    if (b->file >= 0 || kind == FOREIGN) munmap((void *)p, b->bytes);
    else if (kind != REGISTERED) free((void *)p);
    if (b->file >= 0) close(b->file);
    free(b);
    return OK;
}
int cuMemAlloc_v2(device_ptr *out, size_t bytes) {
    BEGIN("cuMemAlloc_v2");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(bytes == 0, INVALID_VALUE);
    uintptr_t p = allocate(bytes, DEVICE_MEMORY);
    FAIL_IF(p == 0, OUT_OF_MEMORY);
    *out = p;
    RETURN("bytes=%zu p=0x%zx device=%d", bytes, p, current->device);
}
int cuMemAllocManaged(device_ptr *out, size_t bytes, unsigned flags) {
    BEGIN("cuMemAllocManaged");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(bytes == 0 || flags != 1, INVALID_VALUE);
    uintptr_t p = allocate(bytes, DEVICE_MEMORY);
    FAIL_IF(p == 0, OUT_OF_MEMORY);
    pthread_mutex_lock(&mutex);
    block_at(p, DEVICE_MEMORY)->managed = 1;
    pthread_mutex_unlock(&mutex);
    *out = p;
    RETURN("bytes=%zu p=0x%zx device=%d", bytes, p, current->device);
}
// A place of managed memory, as the header's CUmemLocation has it.
typedef struct { int type, id; } location;
enum { AT_DEVICE = 1, AT_HOST = 2 };
static int no_place(location at) { return at.type == AT_DEVICE ? at.id < 0 || at.id >= device_count() : at.type != AT_HOST; }
static int is_managed(uintptr_t p, size_t n) {
    int found = 0;
    pthread_mutex_lock(&mutex);
    for (struct block *b = blocks; b != NULL; b = b->next)
        if (b->managed && p >= b->p && p < b->p + b->bytes) found = n > 0 && n <= b->p + b->bytes - p;
    pthread_mutex_unlock(&mutex);
    return found;
}
static int still(struct stream *s);
int cuMemPrefetchAsync_v2(device_ptr p, size_t bytes, location to, unsigned flags, void *stream) {
    BEGIN("cuMemPrefetchAsync_v2");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    FAIL_IF(flags != 0 || !is_managed(p, bytes), INVALID_VALUE);
    FAIL_IF(no_place(to), INVALID_DEVICE);
    int r = still(stream); // no node of a graph is a prefetch
    FAIL_IF(r != OK, r);
    RETURN("p=0x%zx bytes=%zu to=%d:%d stream=%d", (size_t)p, bytes, to.type, to.id, id_of(stream));
}
int cuMemAdvise_v2(device_ptr p, size_t bytes, int advice, location of) {
    BEGIN("cuMemAdvise_v2");
    NEED_CONTEXT;
    FAIL_IF(advice < 1 || advice > 6 || !is_managed(p, bytes), INVALID_VALUE);
    FAIL_IF(no_place(of), INVALID_DEVICE);
    RETURN("p=0x%zx bytes=%zu advice=%d of=%d:%d", (size_t)p, bytes, advice, of.type, of.id);
}
int cuMemFree_v2(device_ptr p) {
    BEGIN("cuMemFree_v2");
    NEED_CONTEXT;
    UNSAFE;
    int r = release(p, DEVICE_MEMORY);
    FAIL_IF(r != OK, r);
    RETURN("p=0x%zx", (size_t)p);
}
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    BEGIN("cuMemHostAlloc");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(bytes == 0, INVALID_VALUE);
    uintptr_t p = allocate(bytes, PINNED);
    FAIL_IF(p == 0, OUT_OF_MEMORY);
    *out = (void *)p;
    RETURN("bytes=%zu flags=%u p=0x%zx", bytes, flags, p);
}
int cuMemFreeHost(void *p) {
    BEGIN("cuMemFreeHost");
    NEED_CONTEXT;
    UNSAFE;
    int r = release((uintptr_t)p, PINNED);
    FAIL_IF(r != OK, r);
    RETURN("p=0x%zx", (size_t)p);
}
int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
    BEGIN("cuMemHostRegister_v2");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(p == NULL || bytes == 0, INVALID_VALUE);
    pthread_mutex_lock(&mutex);
    int known = block_at((uintptr_t)p, REGISTERED) != NULL;
    if (!known) add(p, bytes, REGISTERED, -1);
    pthread_mutex_unlock(&mutex);
    FAIL_IF(known, ALREADY_REGISTERED);
    RETURN("bytes=%zu flags=%u", bytes, flags);
}
int cuMemHostUnregister(void *p) {
    BEGIN("cuMemHostUnregister");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(release((uintptr_t)p, REGISTERED) != OK, NOT_REGISTERED);
    RETURN("p=%p", p);
}
int cuMemGetAddressRange_v2(device_ptr *base, size_t *bytes, device_ptr p) {
    BEGIN("cuMemGetAddressRange_v2");
    NEED_CONTEXT;
    int found = 0;
    pthread_mutex_lock(&mutex);
    for (struct block *b = blocks; b != NULL && !found; b = b->next) {
        found = b->kind == DEVICE_MEMORY && p >= b->p && p < b->p + b->bytes;
        if (found) *base = b->p, *bytes = b->bytes;
    }
    pthread_mutex_unlock(&mutex);
    FAIL_IF(!found, NOT_FOUND);
    RETURN("p=0x%zx", (size_t)p);
}

// Memory of other processes. A handle names the file behind an allocation.

typedef struct { long process, file; size_t bytes; int device; char rest[64 - 2 * sizeof(long) - sizeof(size_t) - sizeof(int)]; } handle;

static int peers(void) { return setting("FAKECUDA_PEERS", 1) != 0; }

int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    BEGIN("cuDeviceCanAccessPeer");
    FAIL_IF(device < 0 || peer < 0 || device >= device_count() || peer >= device_count(), INVALID_DEVICE);
    *can = device != peer && peers();
    RETURN("device=%d peer=%d", device, peer);
}
int cuCtxEnablePeerAccess(void *context, unsigned flags) {
    BEGIN("cuCtxEnablePeerAccess");
    NEED_CONTEXT;
    struct context *other = context;
    FAIL_IF(other == NULL || other == current || other->refs == 0 || flags != 0, INVALID_CONTEXT);
    FAIL_IF(!peers(), PEER_UNSUPPORTED);
    FAIL_IF(current->reaches >> other->device & 1, PEER_ENABLED);
    current->reaches |= 1u << other->device;
    RETURN("device=%d peer=%d", current->device, other->device);
}
int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
    BEGIN("cuDeviceGetP2PAttribute");
    FAIL_IF(device < 0 || peer < 0 || device >= device_count() || peer >= device_count() || device == peer, INVALID_DEVICE);
    FAIL_IF(attribute != 3, INVALID_VALUE); // CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    *value = setting("FAKECUDA_PEERS", 1) == 1;
    RETURN("attribute=%d device=%d peer=%d", attribute, device, peer);
}
int cuIpcGetMemHandle(handle *out, device_ptr p) {
    BEGIN("cuIpcGetMemHandle");
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    struct block *b = blocks;
    while (b != NULL && (b->kind != DEVICE_MEMORY || p < b->p || p >= b->p + b->bytes)) b = b->next;
    handle h = {getpid(), b != NULL ? b->file : -1, b != NULL ? b->bytes : 0, current->device, {0}};
    pthread_mutex_unlock(&mutex);
    FAIL_IF(h.file < 0, INVALID_VALUE);
    *out = h;
    RETURN("p=0x%zx", (size_t)p);
}
int cuIpcOpenMemHandle_v2(device_ptr *out, handle h, unsigned flags) {
    BEGIN("cuIpcOpenMemHandle_v2");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(flags != 1 || h.process == getpid(), INVALID_CONTEXT); // not one's own
    FAIL_IF(h.device >= device_count(), INVALID_DEVICE);
    FAIL_IF(h.device != current->device && !peers(), PEER_UNSUPPORTED);
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", h.process, h.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    FAIL_IF(file < 0, INVALID_HANDLE);
    void *p = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    FAIL_IF(p == MAP_FAILED, INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    add(p, h.bytes, FOREIGN, -1);
    pthread_mutex_unlock(&mutex);
    *out = (uintptr_t)p;
    RETURN("bytes=%zu", h.bytes);
}
int cuIpcCloseMemHandle(device_ptr p) {
    BEGIN("cuIpcCloseMemHandle");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(release(p, FOREIGN) != OK, INVALID_VALUE);
    RETURN("p=0x%zx", (size_t)p);
}

// Operations on streams.

int cuMemcpyAsync(device_ptr dst, device_ptr src, size_t n, void *stream) {
    BEGIN("cuMemcpyAsync");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    FAIL_IF(!fits(dst, n) || !fits(src, n), INVALID_VALUE);
    int r = submit(stream, &(struct op){.type = COPY, .dst = dst, .src = src, .n = n});
    FAIL_IF(r != OK, r);
    RETURN("dst=0x%zx src=0x%zx bytes=%zu stream=%d", (size_t)dst, (size_t)src, n, id_of(stream));
}
#define MEMSET(symbol, word, bits)                                                                                                  \
    int symbol(device_ptr dst, word v, size_t n, void *stream) {                                                                   \
        BEGIN("cuMemsetD" bits "Async");                                                                                           \
        NEED_CONTEXT;                                                                                                              \
        NEED(stream, STREAM);                                                                                                      \
        FAIL_IF(!fits(dst, n * sizeof v) || dst % sizeof v != 0, INVALID_VALUE);                                                   \
        int r = submit(stream, &(struct op){.type = FILL, .dst = dst, .v = v, .n = n, .size = (int)sizeof v});                      \
        FAIL_IF(r != OK, r);                                                                                                       \
        RETURN("dst=0x%zx v=0x%x n=%zu stream=%d", (size_t)dst, (unsigned)v, n, id_of(stream));                                    \
    }
MEMSET(cuMemsetD8Async, unsigned char, "8")
MEMSET(cuMemsetD16Async, unsigned short, "16")
MEMSET(cuMemsetD32Async, unsigned, "32")

// Streams.

int cuStreamCreateWithPriority(void **out, unsigned flags, int priority) {
    BEGIN("cuStreamCreateWithPriority");
    NEED_CONTEXT;
    struct stream *s = object(sizeof *s, STREAM);
    s->flags = (int)flags;
    s->priority = priority;
    s->last = &s->todo;
    s->delayed = getenv("FAKECUDA_DELAY") != NULL;
    pthread_t thread;
    if (s->delayed && (pthread_cond_init(&s->more, NULL) != 0 || pthread_create(&thread, NULL, run_delayed, s) != 0 || pthread_detach(thread) != 0)) abort();
    pthread_mutex_lock(&mutex);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&mutex);
    *out = s;
    RETURN("stream=%d flags=%u priority=%d", s->o.id, flags, priority);
}
int cuStreamDestroy_v2(void *stream) {
    BEGIN("cuStreamDestroy_v2");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    destroy(stream);
    struct stream *s = stream;
    pthread_mutex_lock(&delayed);
    s->gone = 1;
    if (s->delayed) pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&delayed);
    RETURN("stream=%d", id_of(stream));
}
// still is what waits for a stream or asks for it: a capture does not allow that.
static int still(struct stream *s) {
    if (s->capture == NULL) return OK;
    s->capture->invalid = 1;
    return CAPTURE_UNSUPPORTED;
}
int cuStreamQuery(void *stream) {
    BEGIN("cuStreamQuery");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    int r = still(stream);
    FAIL_IF(r != OK, r);
    FAIL_IF(!idle(stream), NOT_READY);
    RETURN("stream=%d", id_of(stream));
}
int cuStreamSynchronize(void *stream) {
    BEGIN("cuStreamSynchronize");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    int r = still(stream);
    FAIL_IF(r != OK, r);
    await_stream(stream);
    RETURN("stream=%d", id_of(stream));
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    BEGIN("cuStreamWaitEvent");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    FAIL_IF(!valid(event, EVENT), INVALID_HANDLE);
    struct stream *s = stream;
    struct event *e = event;
    struct capture *c = e->capture;
    if (c != NULL && c->over) c = NULL;
    FAIL_IF(c == NULL && s->capture != NULL && e->recorded, 905); // work from outside the capture
    FAIL_IF(c != NULL && s->capture != NULL && c != s->capture, CAPTURE_MERGE);
    if (c != NULL) {
        pthread_mutex_lock(&mutex);
        if (s->capture == NULL) {
            s->capture = c;
            s->seq = 1; // a stream that has joined must come back
            s->merged = 0;
        }
        if (e->stream != s && e->stream->merged < e->seq) e->stream->merged = e->seq;
        pthread_mutex_unlock(&mutex);
    } else if (s->capture == NULL) {
        submit(s, &(struct op){.type = WAIT, .record = last_record(e)});
    }
    RETURN("stream=%d event=%d flags=%u", id_of(stream), id_of(event), flags);
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    BEGIN("cuStreamBeginCapture_v2");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    struct stream *s = stream;
    FAIL_IF(s->capture != NULL, 401);
    struct capture *c = calloc(1, sizeof *c);
    c->origin = s;
    c->mode = mode;
    c->thread = pthread_self();
    pthread_mutex_lock(&mutex);
    c->next = captures;
    captures = c;
    s->capture = c;
    s->seq = s->merged = 0;
    pthread_mutex_unlock(&mutex);
    RETURN("stream=%d mode=%d", id_of(stream), mode);
}
int cuStreamEndCapture(void *stream, void **out) {
    BEGIN("cuStreamEndCapture");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    struct stream *s = stream;
    struct capture *c = s->capture;
    FAIL_IF(c == NULL, 401);
    FAIL_IF(c->origin != s, CAPTURE_UNMATCHED);
    int wrong_thread = c->mode != 2 && !pthread_equal(c->thread, pthread_self()); // ends the capture all the same, as driver 580 does
    int unjoined = 0;
    pthread_mutex_lock(&mutex);
    for (struct stream *j = streams; j != NULL; j = j->next) {
        if (j->capture != c) continue;
        if (j != s && j->merged < j->seq) unjoined = 1;
        j->capture = NULL;
    }
    c->over = 1;
    for (struct capture **at = &captures; *at != NULL; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    pthread_mutex_unlock(&mutex);
    *out = NULL;
    FAIL_IF(wrong_thread, CAPTURE_WRONG_THREAD);
    FAIL_IF(c->invalid, CAPTURE_INVALIDATED);
    FAIL_IF(unjoined, CAPTURE_UNJOINED);
    struct graph *g = object(sizeof *g, GRAPH);
    g->ops = c->ops;
    *out = g;
    RETURN("stream=%d graph=%d nodes=%d", id_of(stream), g->o.id, g->ops.n);
}
int cuStreamIsCapturing(void *stream, int *state) {
    BEGIN("cuStreamIsCapturing");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    struct capture *c = ((struct stream *)stream)->capture;
    *state = c == NULL ? 0 : c->invalid ? 2 : 1;
    RETURN("stream=%d state=%d", id_of(stream), *state);
}
int cuLaunchHostFunc(void *stream, void (*fn)(void *), void *arg) {
    BEGIN("cuLaunchHostFunc");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    note("%s stream=%d = 0", name, id_of(stream)); // before fn, which may lead to further calls
    return submit(stream, &(struct op){.type = HOST, .fn = fn, .arg = arg});
}

#define VALUE(symbol, kind)                                                                                                        \
    int symbol(void *stream, device_ptr p, uint32_t v, unsigned flags) {                                                           \
        BEGIN(#symbol);                                                                                                            \
        NEED_CONTEXT;                                                                                                              \
        NEED(stream, STREAM);                                                                                                      \
        FAIL_IF(!fits(p, sizeof v) || p % sizeof v != 0 || flags != 0, INVALID_VALUE);                                             \
        int r = submit(stream, &(struct op){.type = kind, .dst = p, .v = v});                                                      \
        FAIL_IF(r != OK, r);                                                                                                       \
        RETURN("p=0x%zx v=%u stream=%d", (size_t)p, v, id_of(stream));                                                             \
    }
VALUE(cuStreamWaitValue32_v2, WAIT_VALUE)
VALUE(cuStreamWriteValue32_v2, WRITE_VALUE)

// The driver knows from the kernel how many parameters there are; here a null pointer must follow the last.
static int launch(const char *call, int early, const unsigned *cluster, void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    BEGIN(call);
    NEED_CONTEXT;
    NEED(stream, STREAM);
    NEED(function, FUNCTION);
    struct function *f = function;
    FAIL_IF(extra != NULL || params == NULL, INVALID_VALUE);
    FAIL_IF(gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535, INVALID_VALUE);
    FAIL_IF(bx == 0 || by == 0 || bz == 0 || (uint64_t)bx * by * bz > 1024, INVALID_VALUE);
    FAIL_IF((int)shared > f->max_shared, INVALID_VALUE);
    uint64_t args[MAX_PARAMS];
    int n = 0;
    for (; params[n] != NULL; n++) {
        FAIL_IF(n == MAX_PARAMS, INVALID_VALUE);
        memcpy(&args[n], params[n], sizeof args[n]);
    }
    struct params *known = f->module->kernels;
    while (known != NULL && strcmp(known->kernel, f->name) != 0) known = known->next;
    for (int i = 0; known != NULL && i < n && n == known->n; i++) { // more than there are: the words of a struct at the end
        if ((size_t)known->size[i] > sizeof args[i]) { // a struct: kernels get the address of a copy
            void *copy = malloc((size_t)known->size[i]);
            memcpy(copy, params[i], (size_t)known->size[i]);
            args[i] = (uintptr_t)copy;
        }
    }
    struct op op = {.type = KERNEL, .kernel = f, .dims = {gx, gy, gz, bx, by, bz}, .shared = shared, .early = early, .argc = n, .args = args};
    if (cluster != NULL) {
        FAIL_IF(cluster[0] == 0 || gx % cluster[0] != 0 || gy % cluster[1] != 0 || gz % cluster[2] != 0, INVALID_VALUE);
        memcpy(op.cluster, cluster, sizeof op.cluster);
    }
    struct stream *s = stream;
    if ((size_t)f->local > current->stack && s->capture == NULL) { // as drivers do: local memory grows when the device is idle
        await_device(current);
        current->stack = (size_t)f->local;
    }
    if (s->capture != NULL) log_kernel("", &op, s->o.id); // else carry_out does
    int r = submit(s, &op);
    FAIL_IF(r != OK, r);
    return OK;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
    return launch("cuLaunchKernel", 0, NULL, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

// As cuda.h lays them out.
struct launch_attribute { int id; char pad[4]; union { char bytes[64]; uint64_t aligned; int number; } value; };
struct launch_config {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void *hStream;
    struct launch_attribute *attrs;
    unsigned numAttrs;
};
_Static_assert(sizeof(struct launch_attribute) == 72 && sizeof(struct launch_config) == 56, "not those of cuda.h");

// It knows CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, set, and CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION.
int cuLaunchKernelEx(const struct launch_config *c, void *function, void **params, void **extra) {
    int early = 0;
    const unsigned *cluster = NULL;
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == 6 && c->attrs[i].value.number == 1) {
            early = 1;
        } else if (c->attrs[i].id == 4) {
            cluster = (const unsigned *)&c->attrs[i].value.aligned;
        } else {
            note("cuLaunchKernelEx = %d", INVALID_VALUE);
            return INVALID_VALUE;
        }
    }
    return launch("cuLaunchKernelEx", early, cluster, function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                  c->sharedMemBytes, c->hStream, params, extra);
}

// Events.

int cuEventCreate(void **out, unsigned flags) {
    BEGIN("cuEventCreate");
    NEED_CONTEXT;
    struct event *e = object(sizeof *e, EVENT);
    e->flags = (int)flags;
    *out = e;
    RETURN("event=%d flags=%u", e->o.id, flags);
}
int cuEventDestroy_v2(void *event) {
    BEGIN("cuEventDestroy_v2");
    NEED_CONTEXT;
    FAIL_IF(!valid(event, EVENT), INVALID_HANDLE);
    destroy(event);
    RETURN("event=%d", id_of(event));
}
// fakeSeconds lets time pass on the clock of events, for doubles of libraries whose work takes some: no machine is so busy
// that its own delays look like seconds.
static int64_t passed_by;
void fakeSeconds(int n) { __atomic_fetch_add(&passed_by, n, __ATOMIC_RELAXED); }

int cuEventRecord(void *event, void *stream) {
    BEGIN("cuEventRecord");
    NEED_CONTEXT;
    NEED(event, EVENT);
    NEED(stream, STREAM);
    struct event *e = event;
    struct stream *s = stream;
    e->capture = s->capture;
    e->stream = s;
    e->seq = s->seq;
    if (s->capture == NULL) {
        e->recorded = 1;
        struct record *k = calloc(1, sizeof *k);
        k->later = __atomic_load_n(&passed_by, __ATOMIC_RELAXED);
        pthread_mutex_lock(&delayed);
        e->last = k;
        pthread_mutex_unlock(&delayed);
        submit(s, &(struct op){.type = RECORD, .record = k});
    }
    RETURN("event=%d stream=%d", id_of(event), id_of(stream));
}
// passed says whether the last record has been passed, or waits for that.
static int passed(struct event *e, int wait) {
    pthread_mutex_lock(&delayed);
    struct record *k = e->last;
    while (wait && k != NULL && !k->passed) pthread_cond_wait(&progress, &delayed);
    int r = k == NULL || k->passed;
    pthread_mutex_unlock(&delayed);
    return r;
}
static int in_capture(const struct event *e) { return e->capture != NULL && !e->capture->over; }
int cuEventQuery(void *event) {
    BEGIN("cuEventQuery");
    NEED_CONTEXT;
    FAIL_IF(!valid(event, EVENT), INVALID_HANDLE);
    FAIL_IF(in_capture(event), CAPTURED_EVENT);
    UNSAFE;
    FAIL_IF(!passed(event, 0), NOT_READY);
    RETURN("event=%d", id_of(event));
}
int cuEventSynchronize(void *event) {
    BEGIN("cuEventSynchronize");
    NEED_CONTEXT;
    FAIL_IF(!valid(event, EVENT), INVALID_HANDLE);
    FAIL_IF(in_capture(event), CAPTURED_EVENT);
    UNSAFE;
    passed(event, 1);
    RETURN("event=%d", id_of(event));
}
static int elapsed(const char *name, float *ms, void *from, void *to) {
    int status = injected(name);
    FAIL_IF(status != OK, status);
    NEED_CONTEXT;
    FAIL_IF(!valid(from, EVENT) || !valid(to, EVENT), INVALID_HANDLE);
    const struct event *a = from, *b = to;
    FAIL_IF(!a->recorded || !b->recorded || ((a->flags | b->flags) & 2) != 0, INVALID_HANDLE);
    FAIL_IF(!passed((struct event *)from, 0) || !passed((struct event *)to, 0), NOT_READY);
    struct timespec x = last_record((struct event *)from)->at, y = last_record((struct event *)to)->at;
    *ms = (float)((double)(y.tv_sec - x.tv_sec) * 1e3 + (double)(y.tv_nsec - x.tv_nsec) * 1e-6);
    RETURN("from=%d to=%d", a->o.id, b->o.id);
}
int cuEventElapsedTime(float *ms, void *from, void *to) { return elapsed("cuEventElapsedTime", ms, from, to); }
int cuEventElapsedTime_v2(float *ms, void *from, void *to) { return elapsed("cuEventElapsedTime_v2", ms, from, to); }

// Graphs.

int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags) {
    BEGIN("cuGraphInstantiateWithFlags");
    NEED_CONTEXT;
    FAIL_IF(!valid(graph, GRAPH), INVALID_HANDLE);
    struct graph *g = graph, *x = object(sizeof *x, EXEC);
    x->ops.first = duplicate(g->ops.first);
    x->ops.n = g->ops.n;
    *out = x;
    RETURN("graph=%d exec=%d flags=%llu", id_of(graph), x->o.id, flags);
}
int cuGraphGetNodes(void *graph, void **nodes, size_t *n) {
    BEGIN("cuGraphGetNodes");
    FAIL_IF(!valid(graph, GRAPH), INVALID_HANDLE);
    FAIL_IF(nodes != NULL, INVALID_VALUE);
    *n = (size_t)((struct graph *)graph)->ops.n;
    RETURN("graph=%d nodes=%zu", id_of(graph), *n);
}
int cuGraphDestroy(void *graph) {
    BEGIN("cuGraphDestroy");
    FAIL_IF(!valid(graph, GRAPH), INVALID_HANDLE);
    destroy(graph);
    RETURN("graph=%d", id_of(graph));
}
int cuGraphLaunch(void *exec, void *stream) {
    BEGIN("cuGraphLaunch");
    NEED_CONTEXT;
    NEED(exec, EXEC);
    NEED(stream, STREAM);
    note("%s exec=%d stream=%d = 0", name, id_of(exec), id_of(stream));
    return submit(stream, &(struct op){.type = CHILD, .child = ((struct graph *)exec)->ops.first});
}
int cuGraphExecUpdate_v2(void *exec, void *graph, void *info) {
    BEGIN("cuGraphExecUpdate_v2");
    FAIL_IF(!valid(exec, EXEC) || !valid(graph, GRAPH), INVALID_HANDLE);
    struct graph *x = exec, *g = graph;
    int *change = info;
    *change = x->ops.n != g->ops.n ? 2 : 0;
    for (struct op *a = x->ops.first, *b = g->ops.first; *change == 0 && a != NULL; a = a->next, b = b->next)
        if (a->type != b->type) *change = 3;
    FAIL_IF(*change != 0, UPDATE_FAILURE);
    x->ops.first = duplicate(g->ops.first);
    RETURN("exec=%d graph=%d", id_of(exec), id_of(graph));
}
int cuGraphExecDestroy(void *exec) {
    BEGIN("cuGraphExecDestroy");
    FAIL_IF(!valid(exec, EXEC), INVALID_HANDLE);
    destroy(exec);
    RETURN("exec=%d", id_of(exec));
}

// Code.

// params_of are the parameters of the kernels in a cubin: an ELF file with a section .nv.info.KERNEL for each kernel, a list of
// attributes of 4 bytes (format, attribute, length), with as many more bytes as their length where the format is 4. Attribute
// 0x17 is a parameter: its number in bytes 4 and 5, its size in bytes in the upper 14 bits of the last word.
// Source: cuobjdump -elf of a cubin of NVRTC 11.8.
static struct params *params_of(const char *image) {
    const Elf64_Ehdr *h = (const void *)image;
    if (memcmp(image, ELFMAG, SELFMAG) != 0 || image[EI_CLASS] != ELFCLASS64) return NULL;
    const Elf64_Shdr *sections = (const void *)(image + h->e_shoff);
    const char *names = image + sections[h->e_shstrndx].sh_offset, prefix[] = ".nv.info.";
    struct params *all = NULL;
    for (int i = 0; i < h->e_shnum; i++) {
        const char *name = names + sections[i].sh_name, *at = image + sections[i].sh_offset, *end = at + sections[i].sh_size;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0) continue;
        struct params *p = calloc(1, sizeof *p);
        snprintf(p->kernel, sizeof p->kernel, "%s", name + sizeof prefix - 1);
        for (; at < end; at += 4) {
            uint16_t length, number;
            uint32_t word;
            memcpy(&length, at + 2, sizeof length);
            if (at[0] != 4) continue;
            if (at[1] == 0x17) {
                memcpy(&number, at + 8, sizeof number);
                memcpy(&word, at + 12, sizeof word);
                if (number >= sizeof p->size / sizeof p->size[0]) abort();
                p->size[number] = (int)(word >> 18);
                if (p->n <= number) p->n = number + 1;
            }
            at += length;
        }
        p->next = all;
        all = p;
    }
    return all;
}

int cuModuleLoadDataEx(void **out, const void *image, unsigned n, int *options, void **values) {
    BEGIN("cuModuleLoadDataEx");
    NEED_CONTEXT;
    UNSAFE;
    if (strncmp(image, "BAD", 3) == 0) {
        for (unsigned i = 0; i + 1 < n; i++)
            if (options[i] == 5 && options[i + 1] == 6) snprintf(values[i], (size_t)values[i + 1], "ptxas fatal   : bad image\n");
        FAIL_IF(1, INVALID_PTX);
    }
    struct module *m = object(sizeof *m, MODULE);
    m->kernels = params_of(image);
    *out = m;
    RETURN("module=%d", m->o.id);
}
int cuModuleUnload(void *module) {
    BEGIN("cuModuleUnload");
    NEED_CONTEXT;
    NEED(module, MODULE);
    destroy(module);
    RETURN("module=%d", id_of(module));
}
int cuModuleGetFunction(void **out, void *module, const char *function) {
    BEGIN("cuModuleGetFunction");
    NEED_CONTEXT;
    NEED(module, MODULE);
    FAIL_IF(strncmp(function, "absent", 6) == 0, NOT_FOUND);
    struct function *f = object(sizeof *f, FUNCTION);
    snprintf(f->name, sizeof f->name, "%s", function);
    f->module = module;
    f->max_shared = 48 << 10;
    f->local = strcmp(function, "peer_all_reduce") == 0 ? 1184 : strncmp(function, "deep", 4) == 0 ? 4000 : 0; // the first as NVRTC 11.8 compiles it for sm_90
    *out = f;
    RETURN("module=%d function=%s", id_of(module), f->name);
}
int cuFuncLoad(void *function) {
    BEGIN("cuFuncLoad");
    NEED_CONTEXT;
    NEED(function, FUNCTION);
    RETURN("function=%s", ((struct function *)function)->name);
}
int cuFuncGetParamInfo(void *function, size_t i, size_t *offset, size_t *size) {
    BEGIN("cuFuncGetParamInfo");
    NEED_CONTEXT;
    NEED(function, FUNCTION);
    struct function *f = function;
    struct params *p = f->module->kernels;
    while (p != NULL && strcmp(p->kernel, f->name) != 0) p = p->next;
    FAIL_IF(p == NULL, NOT_SUPPORTED);
    FAIL_IF(i >= (size_t)p->n, INVALID_VALUE);
    *offset = 0; // nobody asks
    *size = (size_t)p->size[i];
    RETURN("function=%s i=%zu", f->name, i);
}
int cuFuncGetAttribute(int *v, int attribute, void *function) {
    BEGIN("cuFuncGetAttribute");
    NEED_CONTEXT;
    NEED(function, FUNCTION);
    struct function *f = function;
    switch (attribute) {
    case 0: *v = 1024; break;
    case 3: *v = f->local; break;
    case 4: *v = 32; break;
    case 5: *v = strncmp(f->name, "old", 3) == 0 ? 80 : 90; break;
    case 8: *v = f->max_shared; break;
    default: FAIL_IF(1, INVALID_VALUE);
    }
    RETURN("function=%s attribute=%d", f->name, attribute);
}
int cuFuncSetAttribute(void *function, int attribute, int v) {
    BEGIN("cuFuncSetAttribute");
    NEED_CONTEXT;
    NEED(function, FUNCTION);
    struct function *f = function;
    FAIL_IF(attribute != 8 || v < 0 || v > 227 << 10, INVALID_VALUE);
    f->max_shared = v;
    RETURN("function=%s attribute=%d v=%d", f->name, attribute, v);
}
