// The calls of MPI and of the host for device buffers. Included once, by sys.go, after sys.h.

#include <dlfcn.h>
#include <sched.h>

// Whether the library says that it takes device memory; -1 if it does not know the question.
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
// alloc_kinds copies the kinds of memory that MPI takes, as MPI 4.1 lists them, and says whether
// there is a list.
static int alloc_kinds(char *out, int n) {
    MPI_Info info;
    int there = 0;
    if (MPI_Comm_get_info(MPI_COMM_WORLD, &info) != MPI_SUCCESS) return 0;
    if (MPI_Info_get(info, "mpi_memory_alloc_kinds", n - 1, out, &there) != MPI_SUCCESS) there = 0;
    (void)MPI_Info_free(&info);
    return there;
}

// pump lets MPI progress, and then whoever shares the core run, for some nanoseconds or 0.
static int pump(MPI_Comm c, long ns) {
    int rc = progress(c);
    if (ns > 0) nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    else sched_yield();
    return rc;
}
static void spin(int n) { while (n-- > 0) relax(); }

// A chunk is some bytes of a message. start_chunk begins to send or receive it. test_chunk sets
// index to 1 if that is over, else to 0.
static int start_chunk(MPI_Comm c, uintptr_t buf, int bytes, int peer, int tag, int recv, MPI_Request *req) {
    return recv ? MPI_Irecv((void *)buf, bytes, MPI_BYTE, peer, tag, c, req)
                : MPI_Isend((void *)buf, bytes, MPI_BYTE, peer, tag, c, req);
}
static struct outcome test_chunk(MPI_Request *req) {
    struct outcome o = {MPI_SUCCESS, 0, 0};
    o.code = MPI_Test(req, &o.index, MPI_STATUS_IGNORE);
    return o;
}
