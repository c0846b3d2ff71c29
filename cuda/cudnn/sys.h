// The calls of cuDNN for sys.go. All is static: the file is included once. Every call makes the
// device's context current first. If the driver fails at that, its status is returned as a negative
// number.

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int (*enter_fn)(void *context);

struct {
    size_t (*version)(void);
    void (*last_error)(char *message, size_t size);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*desc_create)(int type, void **desc);
    int (*desc_destroy)(void *desc);
    int (*set)(void *desc, int name, int type, int64_t n, const void *values);
    int (*get)(const void *desc, int name, int type, int64_t n, int64_t *got, void *values);
    int (*finalize)(void *desc);
    int (*execute)(void *handle, void *plan, void *pack);
} dnn;

// outcome is a status, its call, and the library's own words. The words belong to the thread, and
// the caller may be on another one when it reads the status. It frees them.
struct outcome {
    int code;
    const char *what;
    char *detail;
};

static inline struct outcome outcome(int code, const char *what) {
    struct outcome o = {code, what, NULL};
    if (code > 0) {
        o.detail = calloc(1, 2048);
        if (o.detail) dnn.last_error(o.detail, 2047);
    }
    return o;
}

// handle is a cudnnHandle_t with its device.
struct handle {
    enter_fn enter;
    void *context;
    void *h;
};

#define ENTER(h)                                                       \
    do {                                                               \
        int rc = (h)->enter((h)->context);                             \
        if (rc) return (struct outcome){-rc, "cuCtxSetCurrent", NULL}; \
    } while (0)

static size_t version(void) { return dnn.version(); }

static struct outcome handle_create(struct handle *h) {
    ENTER(h);
    return outcome(dnn.create(&h->h), "cudnnCreate");
}
static struct outcome handle_destroy(struct handle *h) {
    ENTER(h);
    return outcome(dnn.destroy(h->h), "cudnnDestroy");
}
static struct outcome desc_create(struct handle *h, int type, void **desc) {
    ENTER(h);
    return outcome(dnn.desc_create(type, desc), "cudnnBackendCreateDescriptor");
}
static struct outcome desc_destroy(struct handle *h, void *desc) {
    ENTER(h);
    return outcome(dnn.desc_destroy(desc), "cudnnBackendDestroyDescriptor");
}
static struct outcome desc_set(struct handle *h, void *desc, int name, int type, int64_t n, const void *values) {
    ENTER(h);
    return outcome(dnn.set(desc, name, type, n, values), "cudnnBackendSetAttribute");
}
static struct outcome desc_get(struct handle *h, void *desc, int name, int type, int64_t n, int64_t *got,
    void *values) {
    ENTER(h);
    return outcome(dnn.get(desc, name, type, n, got, values), "cudnnBackendGetAttribute");
}
static struct outcome desc_finalize(struct handle *h, void *desc) {
    ENTER(h);
    return outcome(dnn.finalize(desc), "cudnnBackendFinalize");
}

// Numbers of cudnn_graph.h.
enum { VARIANT_PACK = 16, UNIQUE_IDS = 1000, DATA_POINTERS = 1001, WORKSPACE = 1003, TYPE_INT64 = 3,
    TYPE_VOID_PTR = 6 };

// plan is all that a run of an execution plan needs beside the addresses of its operands. The
// operands come first. The scalars, which the library reads from host memory, follow them.
enum { MOST_OPERANDS = 12, MOST_SCALARS = 4, MOST = MOST_OPERANDS + MOST_SCALARS };

struct plan {
    struct handle *handle;
    void *plan;
    int operands, scalars;
    int64_t uids[MOST];
    float values[MOST_SCALARS];
};

// operands are addresses as numbers: cgo looks up every pointer that it passes.
struct operands {
    uintptr_t p[MOST_OPERANDS];
};

// run enqueues a plan.
static struct outcome run(uintptr_t plan, uintptr_t stream, struct operands operands, uintptr_t workspace) {
    struct plan *p = (struct plan *)plan;
    void *pack = NULL, *at[MOST], *work = (void *)workspace;
    int n = p->operands + p->scalars, rc;
    struct outcome o;
    ENTER(p->handle);
    for (int i = 0; i < p->operands; i++) at[i] = (void *)operands.p[i];
    for (int i = 0; i < p->scalars; i++) at[p->operands + i] = &p->values[i];
    o = outcome(dnn.set_stream(p->handle->h, (void *)stream), "cudnnSetStream");
    if (!o.code) o = outcome(dnn.desc_create(VARIANT_PACK, &pack), "cudnnBackendCreateDescriptor");
    if (!o.code) o = outcome(dnn.set(pack, DATA_POINTERS, TYPE_VOID_PTR, n, at), "cudnnBackendSetAttribute");
    if (!o.code) o = outcome(dnn.set(pack, UNIQUE_IDS, TYPE_INT64, n, p->uids), "cudnnBackendSetAttribute");
    if (!o.code) o = outcome(dnn.set(pack, WORKSPACE, TYPE_VOID_PTR, 1, &work), "cudnnBackendSetAttribute");
    if (!o.code) o = outcome(dnn.finalize(pack), "cudnnBackendFinalize");
    if (!o.code) o = outcome(dnn.execute(p->handle->h, p->plan, pack), "cudnnBackendExecute");
    if (!pack) return o;
    rc = dnn.desc_destroy(pack);
    return o.code ? o : outcome(rc, "cudnnBackendDestroyDescriptor");
}
