// The calls of sys.go: MPI with types and operations by number, and with a flag for the in-place
// forms. Averages and 16-bit floats, which MPI lacks, are added. Each is one call, since a call
// from Go to C costs more than most of these lines. All is static: the file is included once.

#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../internal/elem/arith.h"
#include "calls.h"

// Both tables are in the order of package elem. The 16-bit floats move as integers and are reduced
// as MPI_FLOAT.
static const MPI_Datatype types[] = {MPI_INT8_T,  MPI_UINT8_T,  MPI_INT32_T,  MPI_UINT32_T, MPI_INT64_T,
                                     MPI_UINT64_T, MPI_UINT16_T, MPI_UINT16_T, MPI_FLOAT,    MPI_DOUBLE,
                                     MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX};
static const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_SUM /* an average is divided afterwards */,
    MPI_BAND, MPI_BOR, MPI_BXOR};

// Operations of our own, for those of MPI's that depend on the library, or on the place in the
// array. In a minimum it decides whether a NaN wins. Open MPI 4.1 makes sums of 8-bit integers with
// saturation if it has vectors, and elsewhere wraps round. A product of complex numbers is Go's,
// not C's, which has rules of its own for infinities.
enum { LEAST, MOST, SUM8, PRODUCT, OWN_OPS };
static MPI_Op own_ops[OWN_OPS];
static void floats(void *in, void *inout, int n, MPI_Datatype t, int op) {
    fold(inout, in, inout, n, t == MPI_FLOAT ? F32 : F64, op);
}
static void least(void *in, void *inout, int *n, MPI_Datatype *t) { floats(in, inout, *n, *t, MIN); }
static void most(void *in, void *inout, int *n, MPI_Datatype *t) { floats(in, inout, *n, *t, MAX); }
static void sum8(void *in, void *inout, int *n, MPI_Datatype *t) {
    (void)t;
    fold(inout, in, inout, *n, U8, 0);
}
static void product(void *in, void *inout, int *n, MPI_Datatype *t) {
    fold(inout, in, inout, *n, *t == MPI_C_FLOAT_COMPLEX ? C64 : C128, 1);
}
static int make_ops(void) {
    MPI_User_function *const made[] = {[LEAST] = least, [MOST] = most, [SUM8] = sum8, [PRODUCT] = product};
    for (int i = 0; i < OWN_OPS; i++) {
        int rc = MPI_Op_create(made[i], 1, &own_ops[i]);
        if (rc != MPI_SUCCESS) return rc;
    }
    return MPI_SUCCESS;
}
static int free_ops(void) {
    int first = MPI_SUCCESS;
    for (int i = 0; i < OWN_OPS; i++) {
        int rc = MPI_Op_free(&own_ops[i]);
        if (first == MPI_SUCCESS) first = rc;
    }
    return first;
}
static inline MPI_Op operation(int op, int t) {
    if (t >= F16 && (op == MIN || op == MAX)) return own_ops[op == MIN ? LEAST : MOST];
    if (t >= C64 && op == 1) return own_ops[PRODUCT];
    return t <= U8 && ops[op] == MPI_SUM ? own_ops[SUM8] : ops[op];
}

// The application's messages have their type as tag, and a receiver takes any: so it sees a message
// of another type. Other tags, in comm.go, are no types.
enum { TAG_USER = 0 };
static inline int tag_to(int tag, int t) { return tag == TAG_USER ? t : tag; }
static inline int tag_from(int tag) { return tag == TAG_USER ? MPI_ANY_TAG : tag; }

// MPI refuses a null address even for no elements.
static char nothing[16];
static inline void *some(const void *p) { return p ? (void *)p : nothing; }

// scratch returns memory for the call at hand. MPI is entered by one thread at a time, so one piece
// serves all calls.
static void *scratch_mem;
static size_t scratch_size;
static void *scratch(size_t bytes) {
    if (bytes > scratch_size) {
        free(scratch_mem);
        scratch_mem = malloc(bytes);
        scratch_size = scratch_mem ? bytes : 0;
    }
    return scratch_mem;
}
static void free_scratch(void) {
    free(scratch_mem);
    scratch_mem = NULL;
    scratch_size = 0;
}
// trim frees scratch that is larger than most calls need.
static void trim(void) {
    if (scratch_size > (64 << 20)) free_scratch();
}

// widen copies n 16-bit floats to scratch as float32. It returns NULL if there is no memory.
static float *widen(const void *src, int64_t n, int t) {
    float *f = scratch((size_t)n * sizeof(float));
    if (f) t == F16 ? widen_f16(f, src, n) : widen_bf16(f, src, n);
    return f;
}

static int barrier(MPI_Comm c) { return MPI_Barrier(c); }

static int allreduce(MPI_Comm c, uintptr_t to, uintptr_t from, int n, int t, int op, int size) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    if (half(t)) {
        float *f = widen(src, n, t);
        if (!f) return MPI_ERR_NO_MEM;
        int rc = MPI_Allreduce(MPI_IN_PLACE, f, n, MPI_FLOAT, operation(op, t), c);
        if (rc == MPI_SUCCESS) finish_half(dst, f, n, t, op, size);
        return rc;
    }
    int rc = MPI_Allreduce(src == dst ? MPI_IN_PLACE : src, dst, n, types[t], operation(op, t), c);
    if (op == AVG && rc == MPI_SUCCESS) divide(dst, n, t, size);
    return rc;
}

static int reduce(MPI_Comm c, uintptr_t to, uintptr_t from, int n, int t, int op, int root, int rank, int size) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    if (half(t)) {
        float *f = widen(src, n, t);
        if (!f) return MPI_ERR_NO_MEM;
        if (rank != root) return MPI_Reduce(f, NULL, n, MPI_FLOAT, operation(op, t), root, c);
        int rc = MPI_Reduce(MPI_IN_PLACE, f, n, MPI_FLOAT, operation(op, t), root, c);
        if (rc == MPI_SUCCESS) finish_half(dst, f, n, t, op, size);
        return rc;
    }
    if (rank != root) return MPI_Reduce(src, NULL, n, types[t], operation(op, t), root, c);
    int rc = MPI_Reduce(src == dst ? MPI_IN_PLACE : src, dst, n, types[t], operation(op, t), root, c);
    if (op == AVG && rc == MPI_SUCCESS) divide(dst, n, t, size);
    return rc;
}

// An exclusive scan leaves rank 0's memory as it is.
static int scan(MPI_Comm c, uintptr_t to, uintptr_t from, int n, int t, int op, int exclusive, int rank) {
    int (*call)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm) = exclusive ? MPI_Exscan : MPI_Scan;
    void *dst = (void *)to;
    const void *src = (const void *)from;
    if (!half(t)) return call(src == dst ? MPI_IN_PLACE : src, dst, n, types[t], operation(op, t), c);
    float *f = widen(src, n, t);
    if (!f) return MPI_ERR_NO_MEM;
    int rc = call(MPI_IN_PLACE, f, n, MPI_FLOAT, operation(op, t), c);
    if (rc == MPI_SUCCESS && !(exclusive && rank == 0)) finish_half(dst, f, n, t, op, 1);
    return rc;
}

static int bcast(MPI_Comm c, uintptr_t buf, int n, int t, int root) {
    return MPI_Bcast((void *)buf, n, types[t], root, c);
}

static int allgather(MPI_Comm c, uintptr_t to, uintptr_t from, int n, int t, int in_place) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    return MPI_Allgather(in_place ? MPI_IN_PLACE : src, n, types[t], dst, n, types[t], c);
}

// In place MPI leaves the result at the front of the input. Here it belongs into the rank's own
// block, as in NCCL, so it goes through scratch.
static int reduce_scatter(MPI_Comm c, uintptr_t to, uintptr_t from, int n, int t, int op, int size, int in_place) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    int rc;
    if (half(t)) {
        float *f = widen(src, (int64_t)n * size, t);
        if (!f) return MPI_ERR_NO_MEM;
        rc = MPI_Reduce_scatter_block(MPI_IN_PLACE, f, n, MPI_FLOAT, operation(op, t), c);
        if (rc == MPI_SUCCESS) finish_half(dst, f, n, t, op, size);
        return rc;
    }
    size_t bytes = (size_t)n * sizes[t];
    void *out = in_place ? scratch(bytes) : dst;
    if (!out) return MPI_ERR_NO_MEM;
    rc = MPI_Reduce_scatter_block(src, out, n, types[t], operation(op, t), c);
    if (rc != MPI_SUCCESS) return rc;
    if (op == AVG) divide(out, n, t, size);
    if (in_place) {
        memcpy(dst, out, bytes);
        trim();
    }
    return rc;
}
static int reduce_scatterv(MPI_Comm c, uintptr_t to, uintptr_t from, const int *counts, int total, int t, int op,
    int rank, int size, int in_place) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    int rc, n = counts[rank];
    if (half(t)) {
        float *f = widen(src, total, t);
        if (!f) return MPI_ERR_NO_MEM;
        rc = MPI_Reduce_scatter(MPI_IN_PLACE, f, counts, MPI_FLOAT, operation(op, t), c);
        if (rc == MPI_SUCCESS) finish_half(dst, f, n, t, op, size);
        return rc;
    }
    size_t bytes = (size_t)n * sizes[t];
    void *out = in_place ? scratch(bytes + 1) : some(dst);
    if (!out) return MPI_ERR_NO_MEM;
    rc = MPI_Reduce_scatter(src, out, counts, types[t], operation(op, t), c);
    if (rc != MPI_SUCCESS) return rc;
    if (op == AVG) divide(out, n, t, size);
    if (in_place) {
        memcpy(some(dst), out, bytes);
        trim();
    }
    return rc;
}

static int alltoall(MPI_Comm c, uintptr_t to, uintptr_t from, int n, int t) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    return MPI_Alltoall(src == dst ? MPI_IN_PLACE : src, n, types[t], dst, n, types[t], c);
}
static int gather(MPI_Comm c, uintptr_t to, uintptr_t from, int n, int t, int root, int in_place) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    return MPI_Gather(in_place ? MPI_IN_PLACE : src, n, types[t], dst, n, types[t], root, c);
}
static int scatter(MPI_Comm c, uintptr_t to, uintptr_t from, int n, int t, int root, int in_place) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    return MPI_Scatter(src, n, types[t], in_place ? MPI_IN_PLACE : dst, n, types[t], root, c);
}
static int allgatherv(MPI_Comm c, uintptr_t to, uintptr_t from, const int *counts, const int *displs, int t,
    int rank, int in_place) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    return MPI_Allgatherv(in_place ? MPI_IN_PLACE : some(src), counts[rank], types[t], dst, counts,
        displs, types[t], c);
}
static int gatherv(MPI_Comm c, uintptr_t to, uintptr_t from, const int *counts, const int *displs, int t, int root,
    int rank, int in_place) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    return MPI_Gatherv(in_place ? MPI_IN_PLACE : some(src), counts[rank], types[t], some(dst), counts, displs,
        types[t], root, c);
}
static int scatterv(MPI_Comm c, uintptr_t to, uintptr_t from, const int *counts, const int *displs, int t, int root,
    int rank, int in_place) {
    void *dst = (void *)to;
    const void *src = (const void *)from;
    return MPI_Scatterv(some(src), counts, displs, types[t], in_place ? MPI_IN_PLACE : some(dst), counts[rank],
        types[t], root, c);
}

// limit is the most elements that MPI counts in one message, since its counts are int. Tests lower
// it.
static int64_t limit = INT32_MAX;
static int64_t limit_messages(int64_t n) {
    int64_t before = limit;
    limit = n;
    return before;
}

// message is n elements as a count and a datatype. Above limit elements one of a made datatype
// stands for all of them.
struct message { int count; MPI_Datatype type; int made; };
static int make_message(struct message *m, int64_t n, int t) {
    *m = (struct message){(int)n, types[t], 0};
    if (n <= limit) return MPI_SUCCESS;
    int rc, lengths[2] = {1, (int)(n % limit)};
    MPI_Aint at[2] = {0, (MPI_Aint)(n - n % limit) * sizes[t]};
    MPI_Datatype block, part[2] = {MPI_DATATYPE_NULL, types[t]};
    if ((rc = MPI_Type_contiguous((int)limit, types[t], &block)) != MPI_SUCCESS) return rc;
    rc = MPI_Type_contiguous((int)(n / limit), block, &part[0]);
    int rc2 = MPI_Type_free(&block);
    if (rc != MPI_SUCCESS || (rc = rc2) != MPI_SUCCESS) return rc;
    rc = MPI_Type_create_struct(2, lengths, at, part, &m->type);
    rc2 = MPI_Type_free(&part[0]);
    if (rc != MPI_SUCCESS || (rc = rc2) != MPI_SUCCESS) return rc;
    m->count = 1;
    m->made = 1;
    return MPI_Type_commit(&m->type);
}
// free_message may be called before the message has arrived: MPI keeps the datatype while it is in
// use.
static int free_message(struct message *m, int rc) {
    if (!m->made) return rc;
    int rc2 = MPI_Type_free(&m->type);
    return rc != MPI_SUCCESS ? rc : rc2;
}

// received is how long the message was, by its status; -1 if that does not say. After a truncation
// some libraries do not.
static int64_t received(const MPI_Status *s) {
    MPI_Count bytes;
    return MPI_Get_elements_x(s, MPI_BYTE, &bytes) == MPI_SUCCESS ? (int64_t)bytes : -1;
}

// arrived is the content of a message with a tag, of which elements of type t were expected.
static int64_t arrived(const MPI_Status *s, int tag, int t) {
    int64_t bytes = received(s);
    return bytes < 0 ? -1 : content(bytes, s->MPI_TAG < 0 || s->MPI_TAG == tag_to(tag, t) ? t : s->MPI_TAG);
}

static int send_message(MPI_Comm c, uintptr_t from, int64_t n, int t, int to, int tag) {
    const void *src = (const void *)from;
    if (n <= limit) return MPI_Send(some(src), (int)n, types[t], to, tag_to(tag, t), c);
    struct message m;
    int rc = make_message(&m, n, t);
    if (rc == MPI_SUCCESS) rc = MPI_Send(src, m.count, m.type, to, tag_to(tag, t), c);
    return free_message(&m, rc);
}
static struct outcome recv_message(MPI_Comm c, uintptr_t to, int64_t n, int t, int from, int tag) {
    void *dst = (void *)to;
    struct message m;
    MPI_Status s = {.MPI_TAG = MPI_ANY_TAG};
    if (n <= limit) {
        int got, rc = MPI_Recv(some(dst), (int)n, types[t], from, tag_from(tag), c, &s);
        // The usual case in the fastest way.
        if (rc == MPI_SUCCESS && s.MPI_TAG == tag_to(tag, t) && MPI_Get_count(&s, types[t], &got) == MPI_SUCCESS &&
            got == n)
            return (struct outcome){rc, 0, content(n * sizes[t], t)};
        return (struct outcome){rc, 0, arrived(&s, tag, t)};
    }
    struct outcome o = {make_message(&m, n, t), 0, -1};
    if (o.code == MPI_SUCCESS) {
        o.code = MPI_Recv(some(dst), m.count, m.type, from, tag_from(tag), c, &s);
        o.got = arrived(&s, tag, t);
    }
    o.code = free_message(&m, o.code);
    return o;
}
static struct outcome sendrecv(MPI_Comm c, void *dst, int64_t rn, int from, const void *src, int64_t sn, int to,
    int t, int tag) {
    struct message r, s = {0};
    MPI_Status st = {.MPI_TAG = MPI_ANY_TAG};
    struct outcome o = {make_message(&r, rn, t), 0, -1};
    if (o.code == MPI_SUCCESS) o.code = make_message(&s, sn, t);
    if (o.code == MPI_SUCCESS) {
        o.code = MPI_Sendrecv(some(src), s.count, s.type, to, tag_to(tag, t), some(dst), r.count, r.type, from,
            tag_from(tag), c, &st);
        o.got = arrived(&st, tag, t);
    }
    o.code = free_message(&s, free_message(&r, o.code));
    return o;
}
static int swap(MPI_Comm c, void *buf, int n, int t, int peer, int tag) {
    return MPI_Sendrecv_replace(buf, n, types[t], peer, tag, peer, tag, c, MPI_STATUS_IGNORE);
}

// progress lets MPI deliver messages. It receives none.
static int progress(MPI_Comm c) {
    int there;
    return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, c, &there, MPI_STATUS_IGNORE);
}

// MPI's errors come as codes; by default they end the job.
static int errors_return(MPI_Comm *c, int rc) {
    return rc == MPI_SUCCESS && *c != MPI_COMM_NULL ? MPI_Comm_set_errhandler(*c, MPI_ERRORS_RETURN) : rc;
}
static int dup_comm(MPI_Comm c, MPI_Comm *out) { return errors_return(out, MPI_Comm_dup(c, out)); }
static int dup_world(MPI_Comm *out) { return dup_comm(MPI_COMM_WORLD, out); }
static int split(MPI_Comm c, int color, int key, MPI_Comm *out) {
    return errors_return(out, MPI_Comm_split(c, color < 0 ? MPI_UNDEFINED : color, key, out));
}
static int split_shared(MPI_Comm c, int key, MPI_Comm *out) {
    return errors_return(out, MPI_Comm_split_type(c, MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, out));
}
static int is_null(MPI_Comm c) { return c == MPI_COMM_NULL; }

// After MPI_Finalize, which another thread may have called, there is nothing to abort.
static void abort_job(MPI_Comm comm, int code) {
    int finalized;
    if (MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) MPI_Abort(comm, code);
}

// Signals whose handlers stay Go's: those that become panics, the one that preempts goroutines, and
// those that programs listen for. MPI's transports set handlers of their own, and so do libraries
// that hwloc loads for it (OpenCL, and LLVM with that). These end the process or do nothing.
static const int kept[] = {SIGSEGV, SIGBUS, SIGFPE, SIGURG, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
enum { KEPT = sizeof kept / sizeof kept[0] };
static struct sigaction handlers[KEPT];

// While MPI starts, a page of shared memory that cannot be had ends the process with one line. Go
// would print all its goroutines, in every process. Another kind of fault goes to Go's handler when
// it comes again.
static struct { char text[512]; int rank; struct sigaction before; } no_room;
static void on_no_room(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        sigaction(sig, &no_room.before, NULL);
        return;
    }
    // Rank 0 speaks, or the next that finds it: its exit ends the others, by signals that wake them before.
    for (struct timespec left = {.tv_sec = 3 * (no_room.rank < 2 ? no_room.rank : 2)}; nanosleep(&left, &left) != 0;) {}
    ssize_t n = write(STDERR_FILENO, no_room.text, strlen(no_room.text));
    _exit(n < 0 ? 2 : 1);
}

static void keep_handlers(int rank) {
    for (int i = 0; i < KEPT; i++) sigaction(kept[i], NULL, &handlers[i]);
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    no_room.rank = rank;
    snprintf(no_room.text, sizeof no_room.text,
        "MPI cannot start: there is no room for the memory that its processes share (SIGBUS): "
             "/dev/shm, or where else MPI has it, is full; rank %d (host %s, pid %d)\n", rank, host, (int)getpid());
    struct sigaction a = {.sa_sigaction = on_no_room, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGBUS, &a, &no_room.before);
}
static void restore_handlers(void) { for (int i = 0; i < KEPT; i++) sigaction(kept[i], &handlers[i], NULL); }
