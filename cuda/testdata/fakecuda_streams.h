// The streams of the double of the driver, and their commands. fakecuda.c includes it.

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
#define MEMSET(symbol, word, bits)                                                                             \
    int symbol(device_ptr dst, word v, size_t n, void *stream) {                                               \
        BEGIN("cuMemsetD" bits "Async");                                                                       \
        NEED_CONTEXT;                                                                                          \
        NEED(stream, STREAM);                                                                                  \
        FAIL_IF(!fits(dst, n * sizeof v) || dst % sizeof v != 0, INVALID_VALUE);                               \
        int r = submit(stream, &(struct op){.type = FILL, .dst = dst, .v = v, .n = n, .size = (int)sizeof v}); \
        FAIL_IF(r != OK, r);                                                                                   \
        RETURN("dst=0x%zx v=0x%x n=%zu stream=%d", (size_t)dst, (unsigned)v, n, id_of(stream));                \
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
    if (s->delayed && (pthread_cond_init(&s->more, NULL) != 0 || pthread_create(&thread, NULL, run_delayed, s) != 0 ||
        pthread_detach(thread) != 0)) abort();
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
// still is a call that waits for a stream or asks for it: a capture does not allow that.
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
    FAIL_IF(!idle(stream), not_ready());
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
            s->ends.n = 0;
        }
        for (int i = 0; i < e->ends.n; i++) {
            int known = 0;
            for (int k = 0; k < s->ends.n; k++) known |= s->ends.of[k] == e->ends.of[i];
            if (!known && s->ends.n < MOST_ENDS) s->ends.of[s->ends.n++] = e->ends.of[i];
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
    s->ends.n = 0;
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
    // ends the capture all the same, as driver 580 does
    int wrong_thread = c->mode != 2 && !pthread_equal(c->thread, pthread_self());
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
int cuStreamGetCaptureInfo_v2(void *stream, int *state, uint64_t *id, void **graph, void *const **nodes, size_t *n) {
    BEGIN("cuStreamGetCaptureInfo_v2");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    FAIL_IF(id != NULL || graph != NULL, INVALID_VALUE);
    struct stream *s = stream;
    *state = s->capture == NULL ? 0 : s->capture->invalid ? 2 : 1;
    *nodes = (void *const *)s->ends.of;
    *n = (size_t)(s->capture == NULL ? 0 : s->ends.n);
    RETURN("stream=%d state=%d nodes=%zu", id_of(stream), *state, *n);
}
int cuLaunchHostFunc(void *stream, void (*fn)(void *), void *arg) {
    BEGIN("cuLaunchHostFunc");
    NEED_CONTEXT;
    NEED(stream, STREAM);
    note("%s stream=%d = 0", name, id_of(stream)); // before fn, which may lead to further calls
    return submit(stream, &(struct op){.type = HOST, .fn = fn, .arg = arg});
}

#define VALUE(symbol, kind)                                                            \
    int symbol(void *stream, device_ptr p, uint32_t v, unsigned flags) {               \
        BEGIN(#symbol);                                                                \
        NEED_CONTEXT;                                                                  \
        NEED(stream, STREAM);                                                          \
        FAIL_IF(!fits(p, sizeof v) || p % sizeof v != 0 || flags != 0, INVALID_VALUE); \
        int r = submit(stream, &(struct op){.type = kind, .dst = p, .v = v});          \
        FAIL_IF(r != OK, r);                                                           \
        RETURN("p=0x%zx v=%u stream=%d", (size_t)p, v, id_of(stream));                 \
    }
VALUE(cuStreamWaitValue32_v2, WAIT_VALUE)
VALUE(cuStreamWriteValue32_v2, WRITE_VALUE)

// The driver knows from the kernel how many parameters there are; here a null pointer must follow
// the last.
static int launch(const char *call, int early, const unsigned *cluster, void *function, unsigned gx, unsigned gy,
    unsigned gz, unsigned bx, unsigned by,
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
    // more than there are: the words of a struct at the end
    for (int i = 0; known != NULL && i < n && n == known->n; i++) {
        if ((size_t)known->size[i] > sizeof args[i]) { // a struct: kernels get the address of a copy
            void *copy = malloc((size_t)known->size[i]);
            memcpy(copy, params[i], (size_t)known->size[i]);
            args[i] = (uintptr_t)copy;
        }
    }
    struct op op = {.type = KERNEL, .kernel = f, .dims = {gx, gy, gz, bx, by, bz}, .shared = shared, .early = early,
        .argc = n, .args = args};
    if (cluster != NULL) {
        FAIL_IF(cluster[0] == 0 || gx % cluster[0] != 0 || gy % cluster[1] != 0 || gz % cluster[2] != 0, INVALID_VALUE);
        memcpy(op.cluster, cluster, sizeof op.cluster);
    }
    struct stream *s = stream;
    // as drivers do: local memory grows when the device is idle
    if ((size_t)f->local > current->stack && s->capture == NULL) {
        await_device(current);
        current->stack = (size_t)f->local;
    }
    if (s->capture != NULL) log_kernel("", &op, s->o.id); // else carry_out does
    int r = submit(s, &op);
    FAIL_IF(r != OK, r);
    return OK;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, void *stream, void **params, void **extra) {
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

// It knows CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, set, and
// CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION.
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
    return launch("cuLaunchKernelEx", early, cluster, function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
        c->blockDimY, c->blockDimZ, c->sharedMemBytes, c->hStream, params, extra);
}

// The driver's encoding of a map is not known. Here it is the address and the dimensions, after the
// driver's checks: alignment, the sizes of tensor, strides and box, and that a box's rows fit the
// swizzle.
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *at, const uint64_t *sizes, const uint64_t *strides,
    const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
    static const unsigned width[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    BEGIN("cuTensorMapEncodeTiled");
    NEED_CONTEXT;
    FAIL_IF((uintptr_t)map % 64 != 0 || (uintptr_t)at % 16 != 0, INVALID_VALUE);
    FAIL_IF(type < 0 || type > 9 || rank < 1 || rank > 5 || interleave != 0 || swizzle < 0 || swizzle > 3,
        INVALID_VALUE);
    FAIL_IF(promotion != 3 || fill != 0, INVALID_VALUE);
    for (unsigned i = 0; i < rank; i++) {
        FAIL_IF(sizes[i] == 0 || sizes[i] > 1ull << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1, INVALID_VALUE);
        FAIL_IF(i > 0 && (strides[i - 1] % 16 != 0 || strides[i - 1] >= 1ull << 40), INVALID_VALUE);
    }
    FAIL_IF(box[0] * width[type] % 16 != 0 || (swizzle != 0 && box[0] * width[type] > 16u << swizzle), INVALID_VALUE);
    uint64_t *words = memset(map, 0, 128);
    *words++ = (uintptr_t)at;
    *words++ = rank;
    for (unsigned i = 0; i < rank; i++) *words++ = sizes[i];
    RETURN("type=%d rank=%u sizes=%zu,%zu stride=%zu box=%u,%u swizzle=%d", type, rank, (size_t)sizes[0],
        rank > 1 ? (size_t)sizes[1] : 1,
           rank > 1 ? (size_t)strides[0] : 0, box[0], rank > 1 ? box[1] : 1, swizzle);
}
