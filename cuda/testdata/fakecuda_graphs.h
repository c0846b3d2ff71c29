// The events, graphs and kernels of the double of the driver. fakecuda.c includes it.

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
    e->ends = s->ends;
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
    FAIL_IF(!passed(event, 0), not_ready());
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
    FAIL_IF(!passed((struct event *)from, 0) || !passed((struct event *)to, 0), not_ready());
    struct timespec x = last_record((struct event *)from)->at, y = last_record((struct event *)to)->at;
    *ms = (float)((double)(y.tv_sec - x.tv_sec) * 1e3 + (double)(y.tv_nsec - x.tv_nsec) * 1e-6);
    RETURN("from=%d to=%d", a->o.id, b->o.id);
}
int cuEventElapsedTime(float *ms, void *from, void *to) { return elapsed("cuEventElapsedTime", ms, from, to); }
int cuEventElapsedTime_v2(float *ms, void *from, void *to) { return elapsed("cuEventElapsedTime_v2", ms, from, to); }

// Graphs.

static int waits_for(const struct op *p, const struct op *q) {
    for (int i = 0; i < p->after.n; i++)
        if (p->after.of[i] == q) return 1;
    return 0;
}
// followers gives in list, which may be NULL, what waits for q, or for nothing where that is NULL.
static size_t followers(const struct op *first, const struct op *q, struct op **list) {
    size_t n = 0;
    for (const struct op *p = first; p != NULL; p = p->next)
        if (q == NULL ? p->after.n == 0 : waits_for(p, q)) {
            if (list != NULL) list[n] = (struct op *)p;
            n++;
        }
    return n;
}
// ordered says whether each operation comes behind those that it waits for.
static int ordered(const struct graph *g) {
    for (const struct op *p = g->ops.first; p != NULL; p = p->next)
        for (const struct op *q = p; q != NULL; q = q->next)
            if (waits_for(p, q)) return 0;
    return 1;
}
// put_off puts records of a graph, which has been duplicated as p, to its end, the last first. The
// driver has no haste with a record beside the others' way: none waits for it, but others wait for
// what it waits for.
static struct op *put_off(const struct graph *g, struct op *p) {
    struct op *first = NULL, **last = &first, *late = NULL, *next;
    int records = 0;
    for (const struct op *q = g->ops.first; q != NULL; q = q->next, p = next) {
        next = p->next;
        int beside = 0;
        if (q->type == RECORD) {
            p->odd = records++ % 2;
            for (int i = 0; i < q->after.n; i++) beside |= followers(g->ops.first, q->after.of[i], NULL) > 1;
            beside &= followers(g->ops.first, q, NULL) == 0;
        }
        if (beside) {
            p->next = late;
            late = p;
        } else {
            *last = p;
            last = &p->next;
        }
    }
    *last = late;
    return first;
}
int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags) {
    BEGIN("cuGraphInstantiateWithFlags");
    NEED_CONTEXT;
    FAIL_IF(!valid(graph, GRAPH), INVALID_HANDLE);
    struct graph *g = graph, *x = object(sizeof *x, EXEC);
    FAIL_IF(!ordered(g), INVALID_VALUE);
    x->ops.first = put_off(g, duplicate(g->ops.first));
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
int cuGraphGetRootNodes(void *graph, void **nodes, size_t *n) {
    BEGIN("cuGraphGetRootNodes");
    FAIL_IF(!valid(graph, GRAPH), INVALID_HANDLE);
    *n = followers(((struct graph *)graph)->ops.first, NULL, (struct op **)nodes);
    RETURN("graph=%d nodes=%zu", id_of(graph), *n);
}
// A node's followers come behind it in the list of the graph. An edge to a kernel that starts early
// has data.
int cuGraphNodeGetDependentNodes_v2(void *node, void **nodes, unsigned char (*edges)[8], size_t *n) {
    BEGIN("cuGraphNodeGetDependentNodes_v2");
    const struct op *q = node;
    *n = followers(q->next, q, (struct op **)nodes);
    for (size_t i = 0; nodes != NULL && i < *n; i++) {
        int early = q->type == KERNEL && ((struct op *)nodes[i])->early;
        FAIL_IF(early && edges == NULL, LOSSY_QUERY);
        if (edges != NULL) memset(edges[i], early, sizeof edges[i]);
    }
    RETURN("nodes=%zu", *n);
}
// In the list of a graph's operations the record comes right behind the last of those that it waits
// for.
int cuGraphAddEventRecordNode(void **out, void *graph, void *const *after, size_t n, void *event) {
    BEGIN("cuGraphAddEventRecordNode");
    NEED_CONTEXT;
    NEED(event, EVENT);
    FAIL_IF(!valid(graph, GRAPH), INVALID_HANDLE);
    FAIL_IF(n > MOST_ENDS, INVALID_VALUE);
    struct graph *g = graph;
    struct event *e = event;
    struct op **at = &g->ops.first, *q = calloc(1, sizeof *q);
    for (struct op **p = &g->ops.first; *p != NULL; p = &(*p)->next)
        for (size_t i = 0; i < n; i++)
            if (*p == after[i]) {
                at = &(*p)->next;
                q->after.of[q->after.n++] = after[i];
            }
    FAIL_IF((size_t)q->after.n != n, INVALID_VALUE);
    q->type = RECORD;
    q->record = e->last = calloc(1, sizeof *q->record);
    q->next = *at;
    *at = q;
    if (q->next == NULL) g->ops.last = &q->next;
    g->ops.n++;
    e->recorded = 1;
    *out = q;
    RETURN("graph=%d event=%d after=%zu", id_of(graph), id_of(event), n);
}
int cuGraphAddDependencies_v2(void *graph, void *const *from, void *const *to, const void *edges, size_t n) {
    BEGIN("cuGraphAddDependencies_v2");
    FAIL_IF(!valid(graph, GRAPH), INVALID_HANDLE);
    FAIL_IF(edges != NULL, INVALID_VALUE);
    for (size_t i = 0; i < n; i++) {
        struct op *p = to[i];
        FAIL_IF(waits_for(p, from[i]) || p->after.n == MOST_ENDS, INVALID_VALUE);
        p->after.of[p->after.n++] = from[i];
    }
    RETURN("graph=%d n=%zu", id_of(graph), n);
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
int cuGraphExecDestroy(void *exec) {
    BEGIN("cuGraphExecDestroy");
    FAIL_IF(!valid(exec, EXEC), INVALID_HANDLE);
    destroy(exec);
    RETURN("exec=%d", id_of(exec));
}

// Code.

// params_of are the parameters of the kernels in a cubin: an ELF file with a section
// .nv.info.KERNEL for each kernel. The section is a list of attributes of 4 bytes (format,
// attribute, length), with length more bytes if the format is 4. Attribute 0x17 is a parameter: its
// number in bytes 4 and 5, its offset in 6 and 7, its size in bytes in the upper 14 bits of the
// last word. Source: cuobjdump -elf of a cubin of NVRTC 11.8.
static struct params *params_of(const char *image) {
    const Elf64_Ehdr *h = (const void *)image;
    if (memcmp(image, ELFMAG, SELFMAG) != 0 || image[EI_CLASS] != ELFCLASS64) return NULL;
    const Elf64_Shdr *sections = (const void *)(image + h->e_shoff);
    const char *names = image + sections[h->e_shstrndx].sh_offset, prefix[] = ".nv.info.";
    struct params *all = NULL;
    for (int i = 0; i < h->e_shnum; i++) {
        const char *name = names + sections[i].sh_name, *at = image + sections[i].sh_offset,
            *end = at + sections[i].sh_size;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0) continue;
        struct params *p = calloc(1, sizeof *p);
        snprintf(p->kernel, sizeof p->kernel, "%s", name + sizeof prefix - 1);
        for (; at < end; at += 4) {
            uint16_t length, number, offset;
            uint32_t word;
            memcpy(&length, at + 2, sizeof length);
            if (at[0] != 4) continue;
            if (at[1] == 0x17) {
                memcpy(&number, at + 8, sizeof number);
                memcpy(&offset, at + 10, sizeof offset);
                memcpy(&word, at + 12, sizeof word);
                if (number >= sizeof p->size / sizeof p->size[0]) abort();
                p->size[number] = (int)(word >> 18);
                p->offset[number] = offset;
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
            if (options[i] == 5 && options[i + 1] == 6)
                snprintf(values[i], (size_t)values[i + 1], "ptxas fatal   : bad image\n");
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
    // the first as NVRTC 11.8 compiles it for sm_90
    f->local = strcmp(function, "peer_all_reduce") == 0 ? 1184 : strncmp(function, "deep", 4) == 0 ? 4000 : 0;
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
    *offset = (size_t)p->offset[i];
    *size = (size_t)p->size[i];
    RETURN("function=%s i=%zu", f->name, i);
}
// Source: cuda.h, CUfunction_attribute.
enum { MAX_THREADS = 0, LOCAL_BYTES = 3, REGISTERS = 4, PTX_VERSION = 5, MAX_DYNAMIC_SHARED = 8 };

int cuFuncGetAttribute(int *v, int attribute, void *function) {
    BEGIN("cuFuncGetAttribute");
    NEED_CONTEXT;
    NEED(function, FUNCTION);
    struct function *f = function;
    switch (attribute) {
    case MAX_THREADS: *v = 1024; break;
    case LOCAL_BYTES: *v = f->local; break;
    case REGISTERS: *v = 32; break;
    case PTX_VERSION: *v = strncmp(f->name, "old", 3) == 0 ? 80 : 90; break;
    case MAX_DYNAMIC_SHARED: *v = f->max_shared; break;
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
