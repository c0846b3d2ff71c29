// A test double of libnccl: it logs every call with its arguments, moves what one rank alone can
// move, and fails as it is told. Only a build with -DMOVES communicates.
//
//   FAKENCCL_LOG      file that a line per call is appended to: thread, function, arguments
//   FAKENCCL_FAIL     "ncclAllReduce=2@3,async=6": the third call of ncclAllReduce returns 2, every
//                     ncclCommGetAsyncError gives 6
//   FAKENCCL_HANG     a function that does not come back, or stays in progress, while the file
//                     $FAKENCCL_LOG.hang exists
//   FAKENCCL_VERSION  the version of ncclGetVersion, and of the ncclConfig_t that is read (22803)
//   FAKENCCL_JOIN     a number: ncclCommInitRankConfig returns when so many ranks of this process
//                     have called it
//   FAKENCCL_CHILD    "1/3": rank and size of communicators that are split off (the parent's)
//   FAKENCCL_HEAPS    file that ncclCommDestroy writes the state of the process's heaps to, as
//                     malloc_info has it
//
// A function is left out by -Dncclx=absent_ncclx, as testkit.WithoutSymbols gives it.

#define _GNU_SOURCE
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef MOVES
#include "fakenccl_moves.h"
#endif

enum { OK = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7, UNDEF = INT_MIN };

typedef struct { char b[128]; } id_t_;
typedef struct comm {
    int serial, rank, size, blocking, pending, finalized; // pending: polls until an operation is done
    const char *doing;
    struct moves *moves; // with MOVES
} comm;
typedef struct config {
    size_t size;
    unsigned int magic, version;
    int blocking, cga, min, max;
    const char *net;
    int splitShare, trafficClass;
    const char *name;
    int collnet, policy, shrinkShare, nvls, perPeer, sched, graphs, rma;
} config;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[256];
static __thread int depth, group_status;
static __thread comm *group_comm;

static void line(const char *name, const char *format, ...) {
    const char *path = getenv("FAKENCCL_LOG");
    if (!path) return;
    pthread_mutex_lock(&lock);
    FILE *f = fopen(path, "a");
    if (f) {
        va_list ap;
        va_start(ap, format);
        fprintf(f, "%d %s", (int)gettid(), name);
        vfprintf(f, format, ap);
        va_end(ap);
        fputc('\n', f);
        fclose(f);
    }
    pthread_mutex_unlock(&lock);
}

// told returns the status that FAKENCCL_FAIL has for this call of name.
static int told(const char *name) {
    static struct { char name[48]; int calls; } seen[64];
    int nth = 0, status = OK;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 64; i++) {
        if (seen[i].name[0] == 0) snprintf(seen[i].name, sizeof seen[i].name, "%s", name);
        if (strcmp(seen[i].name, name) == 0) {
            nth = ++seen[i].calls;
            break;
        }
    }
    const char *p = getenv("FAKENCCL_FAIL");
    size_t n = strlen(name);
    for (; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        if (strncmp(p, name, n) != 0 || p[n] != '=') continue;
        char *end;
        int s = (int)strtol(p + n + 1, &end, 10);
        if (*end != '@' || atoi(end + 1) == nth) status = s;
    }
    if (status != OK) snprintf(last, sizeof last, "fake: %s was told to fail", name);
    pthread_mutex_unlock(&lock);
    return status;
}

static int hangs(const char *name) {
    const char *h = getenv("FAKENCCL_HANG"), *log = getenv("FAKENCCL_LOG");
    char path[4096];
    if (!h || !log || !name || strcmp(h, name) != 0) return 0;
    snprintf(path, sizeof path, "%s.hang", log);
    return access(path, F_OK) == 0;
}

// done is the end of a communicator's function: a blocking one waits for it, another leaves it in
// progress.
static int done(comm *c, const char *name, int status) {
    if (status != OK) {
        if (depth > 0 && group_status == OK) group_status = status;
        return status;
    }
    if (depth > 0) {
        group_comm = c;
        return OK;
    }
    if (c->blocking) {
        while (hangs(name)) usleep(500);
        return OK;
    }
    c->doing = name;
    c->pending = 3;
    return IN_PROGRESS;
}

static int version(void) {
    const char *v = getenv("FAKENCCL_VERSION");
    return v ? atoi(v) : 22803;
}

static int serials;
static comm *new_comm(int rank, int size, const config *cfg) {
    comm *c = calloc(1, sizeof *c);
    c->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_SEQ_CST);
    c->rank = rank;
    c->size = size;
    c->blocking = cfg->blocking != 0;
    return c;
}

// read_config takes this version's part of a config, as NCCL does.
static int read_config(const config *in, config *out, char *text, size_t n) {
    size_t own = version() >= 22900 ? sizeof *out : version() >= 22800 ? offsetof(config, graphs) : version() >= 22700
        ? offsetof(config, perPeer) : offsetof(config, name);
    memset(out, 0, sizeof *out);
    out->trafficClass = out->collnet = out->policy = out->shrinkShare = out->nvls = out->perPeer = out->sched =
        out->graphs = out->rma = UNDEF;
    memcpy(out, in, in->size < own ? in->size : own);
    int w = snprintf(text, n, " size=%zu version=%u", in->size, in->version);
#define SHOW(f, key) \
    if (out->f != UNDEF) w += snprintf(text + w, n - w, " " key "=%d", out->f)
    SHOW(blocking, "blocking");
    SHOW(cga, "cgaClusterSize");
    SHOW(min, "minCTAs");
    SHOW(max, "maxCTAs");
    if (out->net) w += snprintf(text + w, n - w, " netName=%s", out->net);
    SHOW(splitShare, "splitShare");
    SHOW(trafficClass, "trafficClass");
    if (out->name) w += snprintf(text + w, n - w, " commName=%s", out->name);
    SHOW(collnet, "collnetEnable");
    SHOW(policy, "CTAPolicy");
    SHOW(shrinkShare, "shrinkShare");
    SHOW(nvls, "nvlsCTAs");
    SHOW(perPeer, "nChannelsPerNetPeer");
    SHOW(sched, "nvlinkCentricSched");
    SHOW(graphs, "graphUsageMode");
    SHOW(rma, "numRmaCtx");
    return in->magic == 0xcafebeef && (out->min == UNDEF || out->min <= out->max) ? OK : INVALID_ARGUMENT;
}

int ncclGetVersion(int *v) {
    *v = version();
    return told("ncclGetVersion");
}
int ncclGetUniqueId(id_t_ *id) {
    line("ncclGetUniqueId", "");
    for (int i = 0; i < 128; i++) id->b[i] = (char)(i + 1);
    return told("ncclGetUniqueId");
}
const char *ncclGetLastError(comm *c) {
    (void)c;
    return last;
}

// join waits for the other ranks of this process, as NCCL does for all.
static void join(void) {
    static int come;
    const char *n = getenv("FAKENCCL_JOIN");
    __atomic_add_fetch(&come, 1, __ATOMIC_SEQ_CST);
    while (n && __atomic_load_n(&come, __ATOMIC_SEQ_CST) < atoi(n)) usleep(500);
}

int ncclCommInitRankConfig(comm **out, int size, id_t_ id, int rank, config *in) {
    config cfg;
    char text[512];
    int status = read_config(in, &cfg, text, sizeof text);
    line("ncclCommInitRankConfig", " size=%d rank=%d id=%d..%d%s", size, rank, (signed char)id.b[0],
        (signed char)id.b[127], text);
    if (status == OK) status = told("ncclCommInitRankConfig");
    if (status != OK) return status;
    join();
    comm *c = new_comm(rank, size, &cfg);
#ifdef MOVES
    c->moves = enter(rank, size);
#endif
    if (!c->blocking) *out = c;
    status = done(c, "ncclCommInitRankConfig", OK);
    *out = c;
    return status;
}

static int child(comm *c, const char *name, comm **out, config *in, const char *args, int none) {
    config cfg = {.blocking = c->blocking};
    char text[512] = "";
    int rank = c->rank, size = c->size, status = in ? read_config(in, &cfg, text, sizeof text) : OK;
    line(name, " comm=%d%s%s", c->serial, args, text);
    if (status == OK) status = told(name);
    if (status != OK) return status;
    const char *is = getenv("FAKENCCL_CHILD");
    if (is) sscanf(is, "%d/%d", &rank, &size);
    comm *made = none ? NULL : new_comm(rank, size, &cfg);
    status = done(c, name, OK);
    *out = made;
    return status;
}
int ncclCommSplit(comm *c, int color, int key, comm **out, config *cfg) {
    char args[64];
    snprintf(args, sizeof args, " color=%d key=%d", color, key);
    return child(c, "ncclCommSplit", out, cfg, args, color == -1);
}

int ncclCommFinalize(comm *c) {
    line("ncclCommFinalize", " comm=%d", c->serial);
    if (c->finalized++) return INVALID_ARGUMENT;
    return done(c, "ncclCommFinalize", told("ncclCommFinalize"));
}
int ncclCommDestroy(comm *c) {
    line("ncclCommDestroy", " comm=%d", c->serial);
    int status = told("ncclCommDestroy");
    FILE *heaps = getenv("FAKENCCL_HEAPS") ? fopen(getenv("FAKENCCL_HEAPS"), "w") : NULL;
    if (heaps) {
        malloc_info(0, heaps);
        fclose(heaps);
    }
    free(c);
    return status;
}
int ncclCommAbort(comm *c) {
    line("ncclCommAbort", " comm=%d", c->serial);
    int status = told("ncclCommAbort");
    free(c);
    return status;
}
int ncclCommGetAsyncError(comm *c, int *error) {
    int status = told("ncclCommGetAsyncError");
    *error = told("async");
    if (*error == OK && (c->pending > 0 || hangs(c->doing))) {
        *error = IN_PROGRESS;
        if (c->pending > 0) c->pending--;
    } else {
        c->doing = NULL;
    }
    return status;
}
int ncclCommCount(comm *c, int *n) {
    *n = c->size;
    return told("ncclCommCount");
}
int ncclCommUserRank(comm *c, int *rank) {
    *rank = c->rank;
    return told("ncclCommUserRank");
}

int ncclMemAlloc(void **p, size_t bytes) {
    line("ncclMemAlloc", " bytes=%zu", bytes);
    int status = told("ncclMemAlloc");
    if (status == OK && posix_memalign(p, 4096, bytes) != 0) status = 1;
    return status;
}
int ncclMemFree(void *p) {
    line("ncclMemFree", " p=%p", p);
    free(p);
    return told("ncclMemFree");
}
int ncclCommRegister(comm *c, void *p, size_t bytes, void **handle) {
    line("ncclCommRegister", " comm=%d p=%p bytes=%zu", c->serial, p, bytes);
    *handle = (char *)p + 1;
    return told("ncclCommRegister");
}
int ncclCommDeregister(comm *c, void *handle) {
    line("ncclCommDeregister", " comm=%d handle=%p", c->serial, handle);
    return told("ncclCommDeregister");
}
int ncclCommWindowRegister(comm *c, void *p, size_t bytes, void **win, int flags) {
    line("ncclCommWindowRegister", " comm=%d p=%p bytes=%zu flags=%d", c->serial, p, bytes, flags);
    int status = told("ncclCommWindowRegister");
    if (p && bytes) *win = (char *)p + 2; // as NCCL, which leaves win alone where it makes none
    return done(c, "ncclCommWindowRegister", status);
}
int ncclCommWindowDeregister(comm *c, void *win) {
    line("ncclCommWindowDeregister", " comm=%d win=%p", c->serial, win);
    return told("ncclCommWindowDeregister");
}

// In the order of ncclDataType_t.
static const size_t width[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

// Messages of a rank to itself in a group.
static __thread struct { const void *p; size_t bytes; } sent[256];
static __thread int sends, recvs;

int ncclGroupStart(void) {
    line("ncclGroupStart", "");
    int status = told("ncclGroupStart");
    if (status == OK && depth++ == 0) {
        group_status = OK;
        group_comm = NULL;
        sends = recvs = 0;
    }
    return status;
}
int ncclGroupEnd(void) {
    line("ncclGroupEnd", "");
    int status = told("ncclGroupEnd");
    if (depth == 0) return INVALID_USAGE;
    if (--depth > 0) return status;
    if (group_status != OK) return group_status;
    if (status != OK || !group_comm) return status;
#ifdef MOVES
    carry_out();
#endif
    return done(group_comm, "ncclGroupEnd", OK);
}

static void copy(void *dst, size_t at, const void *src, size_t from, size_t bytes) {
    if (dst && src && bytes) memmove((char *)dst + at, (const char *)src + from, bytes);
}

static int collective(const char *name, const void *src, void *dst, size_t n, int type, int op, int peer, comm *c,
    void *stream) {
    line(name, " src=%p dst=%p n=%zu type=%d op=%d peer=%d comm=%d stream=%p", src, dst, n, type, op, peer,
        c->serial, stream);
    int status = told(name);
    if (status == OK && (type < 0 || type > 9 || peer < -1 || peer >= c->size)) status = INVALID_ARGUMENT;
    // nobody waited for the last one
    if (status == OK && depth == 0 && !c->blocking && c->doing) status = INVALID_USAGE;
#ifdef MOVES
    if (status == OK && c->moves) note_task(c->moves, name, src, dst, n, type, op, peer, depth);
#endif
    return done(c, name, status);
}
#define TOOK (!c->moves && (status == OK || status == IN_PROGRESS))

int ncclAllReduce(const void *src, void *dst, size_t n, int type, int op, comm *c, void *s) {
    int status = collective("ncclAllReduce", src, dst, n, type, op, -1, c, s);
    if (TOOK) copy(dst, 0, src, 0, n * width[type]);
    return status;
}
int ncclReduce(const void *src, void *dst, size_t n, int type, int op, int root, comm *c, void *s) {
    int status = collective("ncclReduce", src, dst, n, type, op, root, c, s);
    if (TOOK && root == c->rank) copy(dst, 0, src, 0, n * width[type]);
    return status;
}
int ncclBroadcast(const void *src, void *dst, size_t n, int type, int root, comm *c, void *s) {
    int status = collective("ncclBroadcast", src, dst, n, type, -1, root, c, s);
    if (TOOK && root == c->rank) copy(dst, 0, src, 0, n * width[type]);
    return status;
}
int ncclAllGather(const void *src, void *dst, size_t n, int type, comm *c, void *s) {
    int status = collective("ncclAllGather", src, dst, n, type, -1, -1, c, s);
    if (TOOK) copy(dst, c->rank * n * width[type], src, 0, n * width[type]);
    return status;
}
int ncclReduceScatter(const void *src, void *dst, size_t n, int type, int op, comm *c, void *s) {
    int status = collective("ncclReduceScatter", src, dst, n, type, op, -1, c, s);
    if (TOOK) copy(dst, 0, src, c->rank * n * width[type], n * width[type]);
    return status;
}
int ncclAlltoAll(const void *src, void *dst, size_t n, int type, comm *c, void *s) {
    int status = collective("ncclAlltoAll", src, dst, n, type, -1, -1, c, s);
    if (TOOK) copy(dst, c->rank * n * width[type], src, c->rank * n * width[type], n * width[type]);
    return status;
}
int ncclGather(const void *src, void *dst, size_t n, int type, int root, comm *c, void *s) {
    int status = collective("ncclGather", src, dst, n, type, -1, root, c, s);
    if (TOOK && root == c->rank) copy(dst, c->rank * n * width[type], src, 0, n * width[type]);
    return status;
}
int ncclScatter(const void *src, void *dst, size_t n, int type, int root, comm *c, void *s) {
    int status = collective("ncclScatter", src, dst, n, type, -1, root, c, s);
    if (TOOK && root == c->rank) copy(dst, 0, src, c->rank * n * width[type], n * width[type]);
    return status;
}
int ncclSend(const void *src, size_t n, int type, int peer, comm *c, void *s) {
    int status = collective("ncclSend", src, NULL, n, type, -1, peer, c, s);
    if (TOOK && peer == c->rank && depth > 0 && sends < 256) {
        sent[sends].p = src;
        sent[sends++].bytes = n * width[type];
    }
    return status;
}
int ncclRecv(void *dst, size_t n, int type, int peer, comm *c, void *s) {
    int status = collective("ncclRecv", NULL, dst, n, type, -1, peer, c, s);
    if (TOOK && peer == c->rank && recvs < sends) {
        copy(dst, 0, sent[recvs].p, 0, n * width[type] < sent[recvs].bytes ? n * width[type] : sent[recvs].bytes);
        recvs++;
    }
    return status;
}
