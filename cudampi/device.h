// What device buffers need of MPI and of the host: included once, by sys.go, after board.h.

#include <dlfcn.h>

// What the library says about device memory: -1 where it does not know the question.
static int query_cuda_support(void) {
    void *self = dlopen(NULL, RTLD_LAZY);
    int (*f)(void) = self ? (int (*)(void))dlsym(self, "MPIX_Query_cuda_support") : NULL;
    return f ? f() != 0 : -1;
}
static int query_gpu_support(void) {
    enum { GPU_SUPPORT_CUDA = 0 }; // MPICH's MPIX_GPU_SUPPORT_CUDA
    void *self = dlopen(NULL, RTLD_LAZY);
    int yes = 0, (*f)(int, int *) = self ? (int (*)(int, int *))dlsym(self, "MPIX_GPU_query_support") : NULL;
    return f && f(GPU_SUPPORT_CUDA, &yes) == MPI_SUCCESS ? yes != 0 : -1;
}
// alloc_kinds copies the kinds of memory that MPI takes, as MPI 4.1 lists them, and says whether there is a list.
static int alloc_kinds(char *out, int n) {
    MPI_Info info;
    int there = 0;
    if (MPI_Comm_get_info(MPI_COMM_WORLD, &info) != MPI_SUCCESS) return 0;
    if (MPI_Info_get(info, "mpi_memory_alloc_kinds", n - 1, out, &there) != MPI_SUCCESS) there = 0;
    (void)MPI_Info_free(&info);
    return there;
}

// pump lets MPI progress, and others who share the core run.
static int pump(MPI_Comm c) {
    int there, rc = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, c, &there, MPI_STATUS_IGNORE);
    sched_yield();
    return rc;
}
static void spin(int n) { while (n-- > 0) relax(); }

// reduce_many sets dst to op over all sources, in their order, the 16-bit floats in float32 and rounded once. It needs no
// memory of its own, so several threads may work on parts.
static void reduce_many(uintptr_t to, const uintptr_t *from, int ranks, int64_t n, int t, int op) {
    enum { BLOCK = 2048 }; // elements that stay in the nearest cache
    float sum[BLOCK], wide[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int m = (int)(n - at < BLOCK ? n - at : BLOCK);
        size_t off = (size_t)at * sizes[t];
        char *dst = (char *)to + off;
        for (int r = 0; r < ranks; r++) {
            const char *src = (const char *)from[r] + off;
            if (half(t)) {
                float *f = r ? wide : sum;
                t == F16 ? widen_f16(f, (const void *)src, m) : widen_bf16(f, (const void *)src, m);
                if (r) fold(sum, sum, wide, m, 8, op);
            } else if (r == 1) {
                fold(dst, (const char *)from[0] + off, src, m, t, op);
            } else if (r > 1) {
                fold(dst, dst, src, m, t, op);
            }
        }
        if (half(t)) finish_half(dst, sum, m, t, op, ranks);
        else if (op == AVG) divide(dst, m, t, ranks);
    }
}

// A chunk of a message is bytes. start_chunk begins its sending or receiving, test_chunk says whether that is over, in
// index 1 or 0, and how much was received.
static int start_chunk(MPI_Comm c, uintptr_t buf, int bytes, int peer, int tag, int recv, MPI_Request *req) {
    return recv ? MPI_Irecv((void *)buf, bytes, MPI_BYTE, peer, tag, c, req)
                : MPI_Isend((void *)buf, bytes, MPI_BYTE, peer, tag, c, req);
}
static struct outcome test_chunk(MPI_Request *req) {
    MPI_Status s = {0};
    struct outcome o = {MPI_SUCCESS, 0, 0};
    o.code = MPI_Test(req, &o.index, &s);
    if (o.code == MPI_SUCCESS && o.index) o.got = received(&s);
    return o;
}
