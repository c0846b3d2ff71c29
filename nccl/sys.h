// The calls of sys.go: the part of NCCL's interface that the package uses, as a table of entry
// points that package dl fills, and one C function for each call from Go. All is static: the file
// is included once.

#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, IN_PROGRESS = 7, CLOSED = INT_MIN, UNDEF = INT_MIN };

#ifdef __GLIBC__
// One heap for all threads, from the start of the process. Otherwise glibc gives each thread one of
// its own that keeps the memory of a communicator, 43 MB with NCCL 2.28 and 4 ranks, and Go makes
// each communicator on another thread: measured as 700 MB more after 80 splits from 16 threads in
// turn. MALLOC_ARENA_MAX or GLIBC_TUNABLES of the environment stay.
__attribute__((constructor)) static void one_heap(void) {
    const char *max = getenv("MALLOC_ARENA_MAX");
    if ((max == NULL || max[0] == 0) && getenv("GLIBC_TUNABLES") == NULL) mallopt(M_ARENA_MAX, 1);
}
#endif

struct id {
    char bytes[128];
};

// config is ncclConfig_t as of 2.29. Each version appended fields, and reads no more bytes than
// both sides know. netName is copied by NCCL (init.cc, envConfigOverride), commName is not.
struct config {
    size_t size;
    unsigned int magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;                                       // 2.17
    int trafficClass;                                     // 2.26, in what was padding
    const char *commName;                                 // 2.27
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs;  // 2.27
    int nChannelsPerNetPeer, nvlinkCentricSched;          // 2.28
    int graphUsageMode, numRmaCtx;                        // 2.29
};

// The fields have the names of nccl.h without "nccl".
struct {
    int (*GetVersion)(int *);
    int (*GetUniqueId)(struct id *);
    const char *(*GetLastError)(void *);
    int (*CommInitRankConfig)(void **, int, struct id, int, struct config *);
    int (*CommSplit)(void *, int, int, void **, struct config *);
    int (*CommFinalize)(void *);
    int (*CommDestroy)(void *);
    int (*CommAbort)(void *);
    int (*CommGetAsyncError)(void *, int *);
    int (*CommCount)(void *, int *);
    int (*CommUserRank)(void *, int *);
    int (*MemAlloc)(void **, size_t);
    int (*MemFree)(void *);
    int (*CommRegister)(void *, void *, size_t, void **);
    int (*CommDeregister)(void *, void *);
    int (*CommWindowRegister)(void *, void *, size_t, void **, int);
    int (*CommWindowDeregister)(void *, void *);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int (*AllReduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*Reduce)(const void *, void *, size_t, int, int, int, void *, void *);
    int (*Broadcast)(const void *, void *, size_t, int, int, void *, void *);
    int (*AllGather)(const void *, void *, size_t, int, void *, void *);
    int (*ReduceScatter)(const void *, void *, size_t, int, int, void *, void *);
    int (*AlltoAll)(const void *, void *, size_t, int, void *, void *);
    int (*Gather)(const void *, void *, size_t, int, int, void *, void *);
    int (*Scatter)(const void *, void *, size_t, int, int, void *, void *);
    int (*Send)(const void *, size_t, int, int, void *, void *);
    int (*Recv)(void *, size_t, int, int, void *, void *);
} nccl;

// link is all that a call needs of its communicator. It lies in Go memory and so holds addresses as
// integers.
struct link {
    uintptr_t comm;           // 0 when closed
    uintptr_t enter, context; // cuda.Bind
    int32_t rank, size;
    int32_t nonblocking;
    int32_t stop; // of a non-blocking communicator: no call waits any longer
    int32_t busy; // and the calls under way
};

// A status is 0, NCCL's result, CLOSED, or minus the CUresult of making the context current.
static int enter(const struct link *l) { return -((int (*)(void *))l->enter)((void *)l->context); }

static inline void *comm_of(struct link *l) { return (void *)__atomic_load_n(&l->comm, __ATOMIC_ACQUIRE); }

// Between begin and finish a non-blocking communicator is not freed. finish waits until its work on
// a thread of its own is done: only then is a collective in the stream. A blocking one has neither
// cost.
static int begin(struct link *l, void **comm) {
    if (l->nonblocking) __atomic_add_fetch(&l->busy, 1, __ATOMIC_SEQ_CST);
    *comm = comm_of(l);
    return *comm ? enter(l) : CLOSED;
}
static int finish(struct link *l, void *comm, int status) {
    if (!l->nonblocking) return status;
    while (status == IN_PROGRESS) {
        if (__atomic_load_n(&l->stop, __ATOMIC_ACQUIRE)) {
            status = CLOSED;
            break;
        }
        int now, s = nccl.CommGetAsyncError(comm, &now);
        status = s != SUCCESS ? s : now;
        if (status == IN_PROGRESS) sched_yield();
    }
    __atomic_sub_fetch(&l->busy, 1, __ATOMIC_SEQ_CST);
    return status;
}

#define WITH_COMM(l, call)                  \
    void *comm;                             \
    int status = begin(l, &comm);           \
    if (status == SUCCESS) status = (call); \
    return finish(l, comm, status)

// Collectives. The kinds are in the order of Kind; GROUP_* name the functions around them.
enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SEND, RECV,
    GROUP_START, GROUP_END };

struct call {
    uintptr_t dst, src;
    uint64_t n;
    int32_t kind, type, op, peer; // type and op are NCCL's
};

// outcome says which of the calls failed, and in which function; index is -1 outside them.
struct outcome {
    int32_t status, kind, index;
};

static const int8_t type_sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

// exchange is AlltoAll, Gather or Scatter for an NCCL that has none of its own (before 2.28), as
// NCCL 2.28 does it: sends and receives in a group (enqueue.cc, taskAppend). They send nothing at
// all if n is 0.
static int exchange(const struct link *l, void *comm, const struct call *c, void *stream, int32_t *kind) {
    size_t block = c->n * type_sizes[c->type];
    int sends = c->kind != SCATTER || c->peer == l->rank, recvs = c->kind != GATHER || c->peer == l->rank;
    if (c->n == 0) return SUCCESS;
    *kind = GROUP_START;
    int status = nccl.GroupStart();
    if (status != SUCCESS) return status;
    for (int r = 0; r < l->size && status == SUCCESS; r++) {
        if (sends && (c->kind != GATHER || r == c->peer)) {
            *kind = SEND;
            status = nccl.Send((char *)c->src + (c->kind == GATHER ? 0 : r * block), c->n, c->type, r, comm, stream);
        }
        if (status == SUCCESS && recvs && (c->kind != SCATTER || r == c->peer)) {
            *kind = RECV;
            status = nccl.Recv((char *)c->dst + (c->kind == SCATTER ? 0 : r * block), c->n, c->type, r, comm, stream);
        }
    }
    int end = nccl.GroupEnd(); // also after a failure, which it then returns again: nothing has been launched
    if (status == SUCCESS) {
        *kind = GROUP_END;
        status = end;
    }
    return status;
}

static int run_call(const struct link *l, void *comm, const struct call *c, void *stream, int32_t *kind) {
    void *dst = (void *)c->dst;
    const void *src = (const void *)c->src;
    *kind = c->kind;
    switch (c->kind) {
    case ALL_REDUCE: return nccl.AllReduce(src, dst, c->n, c->type, c->op, comm, stream);
    case REDUCE: return nccl.Reduce(src, dst, c->n, c->type, c->op, c->peer, comm, stream);
    case BROADCAST: return nccl.Broadcast(src, dst, c->n, c->type, c->peer, comm, stream);
    case ALL_GATHER: return nccl.AllGather(src, dst, c->n, c->type, comm, stream);
    case REDUCE_SCATTER: return nccl.ReduceScatter(src, dst, c->n, c->type, c->op, comm, stream);
    case SEND: return nccl.Send(src, c->n, c->type, c->peer, comm, stream);
    case RECV: return nccl.Recv(dst, c->n, c->type, c->peer, comm, stream);
    case ALL_TO_ALL:
        if (nccl.AlltoAll) return nccl.AlltoAll(src, dst, c->n, c->type, comm, stream);
        break;
    case GATHER:
        if (nccl.Gather) return nccl.Gather(src, dst, c->n, c->type, c->peer, comm, stream);
        break;
    case SCATTER:
        if (nccl.Scatter) return nccl.Scatter(src, dst, c->n, c->type, c->peer, comm, stream);
        break;
    }
    return exchange(l, comm, c, stream, kind);
}

// run_calls issues the calls, more than one of them as a group.
static struct outcome run_calls(struct link *l, uintptr_t stream, const struct call *calls, int n) {
    struct outcome o = {SUCCESS, calls[0].kind, -1};
    void *comm;
    o.status = begin(l, &comm);
    if (o.status == SUCCESS && n > 1) {
        o.kind = GROUP_START;
        o.status = nccl.GroupStart();
    }
    if (o.status == SUCCESS) {
        for (int i = 0; i < n && (o.status == SUCCESS || o.status == IN_PROGRESS); i++) {
            o.index = i;
            o.status = run_call(l, comm, &calls[i], (void *)stream, &o.kind);
        }
        if (n > 1) { // also after a failure, which it then returns again: nothing has been launched
            int end = nccl.GroupEnd();
            if (o.status == SUCCESS || o.status == IN_PROGRESS) o = (struct outcome){end, GROUP_END, -1};
        }
    }
    o.status = finish(l, comm, o.status);
    return o;
}

// Communicators.
static int get_version(int *v) { return nccl.GetVersion(v); }
static int get_id(struct id *id) { return nccl.GetUniqueId(id); }

static struct config make_config(int version) {
    struct config c = {
        .size = version >= 22900   ? sizeof(struct config)
                : version >= 22800 ? offsetof(struct config, graphUsageMode)
                : version >= 22700 ? offsetof(struct config, nChannelsPerNetPeer)
                                   : offsetof(struct config, commName),
        .magic = 0xcafebeef, .version = version < 22902 ? version : 22902,
        .blocking = UNDEF, .cgaClusterSize = UNDEF, .minCTAs = UNDEF, .maxCTAs = UNDEF, .splitShare = UNDEF,
        .trafficClass = UNDEF, .collnetEnable = UNDEF, .CTAPolicy = UNDEF, .shrinkShare = UNDEF, .nvlsCTAs = UNDEF,
        .nChannelsPerNetPeer = UNDEF, .nvlinkCentricSched = UNDEF, .graphUsageMode = UNDEF, .numRmaCtx = UNDEF,
    };
    return c;
}

static int init_rank(struct link *l, void **out, const struct id *id, struct config *config) {
    int status = enter(l);
    return status != SUCCESS ? status : nccl.CommInitRankConfig(out, l->size, *id, l->rank, config);
}
static int init_poll(struct link *l) {
    int now, status = nccl.CommGetAsyncError(comm_of(l), &now);
    return status != SUCCESS ? status : now;
}
static int split(struct link *l, int color, int key, void **out, struct config *config) {
    WITH_COMM(l, nccl.CommSplit(comm, color, key, out, config));
}
static int user_rank(struct link *l) { return nccl.CommUserRank(comm_of(l), &l->rank); }
static int count(struct link *l) { return nccl.CommCount(comm_of(l), &l->size); }
static int finalize(struct link *l) { WITH_COMM(l, nccl.CommFinalize(comm)); }
static int async_error(struct link *l, int *error) {
    void *comm = comm_of(l);
    return comm ? nccl.CommGetAsyncError(comm, error) : CLOSED;
}
static int destroy(struct link *l) {
    void *comm = (void *)__atomic_exchange_n(&l->comm, 0, __ATOMIC_ACQ_REL);
    if (!comm) return SUCCESS;
    int status = enter(l);
    return status != SUCCESS ? status : nccl.CommDestroy(comm);
}
// An abort has to end a call that hangs in a blocking communicator, so it cannot wait for that.
static int comm_abort(struct link *l) {
    void *comm = (void *)__atomic_exchange_n(&l->comm, 0, __ATOMIC_SEQ_CST);
    if (!comm) return SUCCESS;
    __atomic_store_n(&l->stop, 1, __ATOMIC_SEQ_CST);
    while (l->nonblocking && __atomic_load_n(&l->busy, __ATOMIC_SEQ_CST) != 0) sched_yield();
    int status = enter(l);
    return status != SUCCESS ? status : nccl.CommAbort(comm);
}
static const char *last_error(struct link *l) { return nccl.GetLastError(comm_of(l)); }

// Memory.
static int mem_alloc(struct link *l, void **p, size_t bytes) {
    int status = enter(l);
    return status != SUCCESS ? status : nccl.MemAlloc(p, bytes);
}
static int mem_free(struct link *l, void *p) {
    int status = enter(l);
    return status != SUCCESS ? status : nccl.MemFree(p);
}
static int reg(struct link *l, void *p, size_t bytes, void **handle) {
    WITH_COMM(l, nccl.CommRegister(comm, p, bytes, handle));
}
static int dereg(struct link *l, uintptr_t handle) { WITH_COMM(l, nccl.CommDeregister(comm, (void *)handle)); }
static int window(struct link *l, void *p, size_t bytes, void **handle) {
    WITH_COMM(l, nccl.CommWindowRegister(comm, p, bytes, handle, 1)); // NCCL_WIN_COLL_SYMMETRIC
}
static int close_window(struct link *l, uintptr_t handle) {
    WITH_COMM(l, nccl.CommWindowDeregister(comm, (void *)handle));
}
