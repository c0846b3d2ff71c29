// The calls of sys.go: one trampoline for each use of the driver. It makes the device's context
// current on the calling thread first: goroutines move between threads, and the context belongs to
// the thread. All is static, because a file with exported Go functions is compiled twice; only the
// copy that Go calls has a filled table of symbols.

#include <string.h>
#include <time.h>

#include "symbols.h"

enum { OK = 0, INVALID_VALUE = 1, NOT_READY = 600 };

// A status is a CUresult, with one of these added if not the call itself failed but a step before
// it.
enum { FROM_GET_CURRENT = 1 << 16, FROM_SET_CURRENT = 2 << 16 };

static inline int enter(uintptr_t context) {
    void *now = NULL;
    int r = cu.CtxGetCurrent(&now);
    if (r != OK) return FROM_GET_CURRENT | r;
    if (now == (void *)context) return OK;
    r = cu.CtxSetCurrent((void *)context);
    return r == OK ? OK : FROM_SET_CURRENT | r;
}

#define ENTER(context)                     \
    do {                                   \
        int entered = enter(context);      \
        if (entered != OK) return entered; \
    } while (0)

// bind_context is enter for the trampolines of other packages: a plain CUresult.
static int bind_context(void *context) { return enter((uintptr_t)context) & 0xffff; }
static void *bind_address(void) { return (void *)bind_context; }

// made is a status and the handle or address that the call gave.
struct made { int status; void *p; };
// number is a status and the number that the call gave.
struct number { int status; int64_t n; };
struct pair { int status; int64_t a, b; };

static int init(void) { return cu.Init(0); }
static struct number driver_version(void) {
    int v = 0, r = cu.DriverGetVersion(&v);
    return (struct number){r, v};
}
static const char *error_name(int r) {
    const char *s = NULL;
    return cu.GetErrorName != NULL && cu.GetErrorName(r, &s) == OK ? s : NULL;
}
static const char *error_string(int r) {
    const char *s = NULL;
    return cu.GetErrorString != NULL && cu.GetErrorString(r, &s) == OK ? s : NULL;
}

// Devices. These need no context.

static struct number device_count(void) {
    int n = 0, r = cu.DeviceGetCount(&n);
    return (struct number){r, n};
}
static struct number device_get(int index) {
    int d = 0, r = cu.DeviceGet(&d, index);
    return (struct number){r, d};
}
static int device_name(int device, char *out, int n) { return cu.DeviceGetName(out, n, device); }
static int device_pci(int device, char *out, int n) { return cu.DeviceGetPCIBusId(out, n, device); }
static int device_uuid(int device, uuid *out) { return cu.DeviceGetUuid_v2(out, device); }
// physical_uuid is the UUID of the whole GPU, also if device is a part of it.
static int physical_uuid(int device, uuid *out) {
    return cu.DeviceGetUuid != NULL ? cu.DeviceGetUuid(out, device) : cu.DeviceGetUuid_v2(out, device);
}
static struct number device_attribute(int device, int attribute) {
    int v = 0, r = cu.DeviceGetAttribute(&v, attribute, device);
    return (struct number){r, v};
}
static struct number device_memory(int device) {
    size_t n = 0;
    int r = cu.DeviceTotalMem(&n, device);
    return (struct number){r, (int64_t)n};
}
static struct made context_retain(int device) {
    void *c = NULL;
    int r = cu.DevicePrimaryCtxRetain(&c, device);
    return (struct made){r, c};
}
// context_release leaves the calling thread without a context that is gone.
static int context_release(uintptr_t context, int device) {
    void *now = NULL;
    if (cu.CtxGetCurrent(&now) == OK && now == (void *)context) {
        int r = cu.CtxSetCurrent(NULL);
        if (r != OK) return FROM_SET_CURRENT | r;
    }
    return cu.DevicePrimaryCtxRelease(device);
}
static int context_synchronize(uintptr_t context) {
    ENTER(context);
    return cu.CtxSynchronize();
}
static struct pair stream_priorities(uintptr_t context) {
    int least = 0, greatest = 0, r = enter(context);
    if (r == OK) r = cu.CtxGetStreamPriorityRange(&least, &greatest);
    return (struct pair){r, least, greatest};
}

// Memory.

static struct pair mem_info(uintptr_t context) {
    size_t free = 0, total = 0;
    int r = enter(context);
    if (r == OK) r = cu.MemGetInfo(&free, &total);
    return (struct pair){r, (int64_t)free, (int64_t)total};
}
static struct made mem_alloc(uintptr_t context, size_t bytes) {
    device_ptr p = 0;
    int r = enter(context);
    if (r == OK) r = cu.MemAlloc(&p, bytes);
    return (struct made){r, (void *)(uintptr_t)p};
}
static struct made mem_alloc_managed(uintptr_t context, size_t bytes) {
    enum { ATTACH_GLOBAL = 1 };
    device_ptr p = 0;
    int r = enter(context);
    if (r == OK) r = cu.MemAllocManaged(&p, bytes, ATTACH_GLOBAL);
    return (struct made){r, (void *)(uintptr_t)p};
}
static int has_prefetch(void) { return cu.MemPrefetchAsync != NULL; }
static int prefetch(uintptr_t context, uintptr_t stream, uintptr_t p, size_t bytes, int type, int id) {
    ENTER(context);
    return cu.MemPrefetchAsync(p, bytes, (mem_location){type, id}, 0, (void *)stream);
}
static int has_advise(void) { return cu.MemAdvise != NULL; }
static int advise(uintptr_t context, uintptr_t p, size_t bytes, int advice, int type, int id) {
    ENTER(context);
    return cu.MemAdvise(p, bytes, advice, (mem_location){type, id});
}
static int mem_free(uintptr_t context, uintptr_t p) {
    ENTER(context);
    return cu.MemFree(p);
}
static struct made mem_host_alloc(uintptr_t context, size_t bytes) {
    enum { PORTABLE = 1, DEVICE_MAP = 2 };
    void *p = NULL;
    int r = enter(context);
    if (r == OK) r = cu.MemHostAlloc(&p, bytes, PORTABLE | DEVICE_MAP);
    return (struct made){r, p};
}
static int mem_free_host(uintptr_t context, uintptr_t p) {
    ENTER(context);
    return cu.MemFreeHost((void *)p);
}
static int host_register(uintptr_t context, uintptr_t p, size_t bytes) {
    enum { PORTABLE = 1, DEVICE_MAP = 2 };
    ENTER(context);
    return cu.MemHostRegister((void *)p, bytes, PORTABLE | DEVICE_MAP);
}
static int host_unregister(uintptr_t context, uintptr_t p) {
    ENTER(context);
    return cu.MemHostUnregister((void *)p);
}
static struct pair address_range(uintptr_t context, uintptr_t p) {
    device_ptr base = 0;
    size_t bytes = 0;
    int r = enter(context);
    if (r == OK) r = cu.MemGetAddressRange(&base, &bytes, p);
    return (struct pair){r, (int64_t)base, (int64_t)bytes};
}
static int ipc_get(uintptr_t context, uintptr_t p, ipc_handle *out) {
    ENTER(context);
    return cu.IpcGetMemHandle(out, p);
}
static struct made ipc_open(uintptr_t context, const ipc_handle *h) {
    enum { LAZY_ENABLE_PEER_ACCESS = 1 };
    device_ptr p = 0;
    int r = enter(context);
    if (r == OK) r = cu.IpcOpenMemHandle(&p, *h, LAZY_ENABLE_PEER_ACCESS);
    return (struct made){r, (void *)(uintptr_t)p};
}
static int ipc_close(uintptr_t context, uintptr_t p) {
    ENTER(context);
    return cu.IpcCloseMemHandle(p);
}
static struct number can_access_peer(int device, int peer) {
    int can = 0, r = cu.DeviceCanAccessPeer(&can, device, peer);
    return (struct number){r, can};
}
static int enable_peer(uintptr_t context, uintptr_t peer) {
    enum { ALREADY_ENABLED = 704 };
    ENTER(context);
    int r = cu.CtxEnablePeerAccess((void *)peer, 0);
    return r == ALREADY_ENABLED ? OK : r;
}
static struct number native_atomics(int device, int peer) {
    enum { NATIVE_ATOMIC_SUPPORTED = 3 };
    int native = 0, r = cu.DeviceGetP2PAttribute(&native, NATIVE_ATOMIC_SUPPORTED, device, peer);
    return (struct number){r, native};
}
static int copy(uintptr_t context, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t bytes) {
    ENTER(context);
    return cu.MemcpyAsync(dst, src, bytes, (void *)stream);
}
static int fill(uintptr_t context, uintptr_t stream, uintptr_t dst, int size, uint32_t v, size_t n) {
    ENTER(context);
    switch (size) {
    case 1: return cu.MemsetD8Async(dst, (unsigned char)v, n, (void *)stream);
    case 2: return cu.MemsetD16Async(dst, (unsigned short)v, n, (void *)stream);
    default: return cu.MemsetD32Async(dst, v, n, (void *)stream);
    }
}

// Streams.

static struct made stream_create(uintptr_t context, int priority) {
    enum { NON_BLOCKING = 1 };
    void *s = NULL;
    int r = enter(context);
    if (r == OK) r = cu.StreamCreateWithPriority(&s, NON_BLOCKING, priority);
    return (struct made){r, s};
}
static int stream_destroy(uintptr_t context, uintptr_t stream) {
    ENTER(context);
    return cu.StreamDestroy((void *)stream);
}
static int stream_query(uintptr_t context, uintptr_t stream) {
    ENTER(context);
    return cu.StreamQuery((void *)stream);
}
static int stream_synchronize(uintptr_t context, uintptr_t stream) {
    ENTER(context);
    return cu.StreamSynchronize((void *)stream);
}
static int stream_wait(uintptr_t context, uintptr_t stream, uintptr_t event) {
    ENTER(context);
    return cu.StreamWaitEvent((void *)stream, (void *)event, 0);
}
static int wait_value(uintptr_t context, uintptr_t stream, uintptr_t p, uint32_t v) {
    enum { GREATER_OR_EQUAL = 0 };
    ENTER(context);
    return cu.StreamWaitValue32((void *)stream, p, v, GREATER_OR_EQUAL);
}
static int write_value(uintptr_t context, uintptr_t stream, uintptr_t p, uint32_t v) {
    enum { AFTER_EARLIER_WRITES = 0 };
    ENTER(context);
    return cu.StreamWriteValue32((void *)stream, p, v, AFTER_EARLIER_WRITES);
}
static int begin_capture(uintptr_t context, uintptr_t stream, int mode) {
    ENTER(context);
    return cu.StreamBeginCapture((void *)stream, mode);
}
static struct made end_capture(uintptr_t context, uintptr_t stream) {
    void *g = NULL;
    int r = enter(context);
    if (r == OK) r = cu.StreamEndCapture((void *)stream, &g);
    return (struct made){r, g};
}
static struct number is_capturing(uintptr_t context, uintptr_t stream) {
    int state = 0, r = enter(context);
    if (r == OK) r = cu.StreamIsCapturing((void *)stream, &state);
    return (struct number){r, state};
}

// capture_ends gives in ends the nodes that the next command on a captured stream depends on, and
// their number.
static struct number capture_ends(uintptr_t context, uintptr_t stream, uintptr_t *ends, size_t room) {
    enum { NOT_SUPPORTED = 801, CAPTURING = 1 };
    int state = 0, r = enter(context);
    void *const *nodes = NULL;
    size_t n = 0;
    if (r != OK) return (struct number){r, 0};
    if (cu.StreamGetCaptureInfo == NULL) return (struct number){NOT_SUPPORTED, 0};
    r = cu.StreamGetCaptureInfo((void *)stream, &state, NULL, NULL, &nodes, &n);
    if (r == OK && (state != CAPTURING || n > room)) r = INVALID_VALUE;
    for (size_t i = 0; r == OK && i < n; i++) ends[i] = (uintptr_t)nodes[i];
    return (struct number){r, (int64_t)n};
}

// MAX_ARGS bounds the array on the stack; CUDA's limit in bytes is reached earlier by all but the
// smallest types.
enum { MAX_ARGS = 1024 };

static int has_launch_ex(void) { return cu.LaunchKernelEx != NULL; }

// How a kernel is launched. cluster[0] is 0 for none.
struct shape { unsigned blocks[3], threads[3], cluster[3], shared; int early; };

// Argument i begins at word at[i], or is word i if at is NULL: at its low bytes, where a
// little-endian reader of any width looks.
static int launch(uintptr_t context, uintptr_t stream, uintptr_t function, struct shape g, uint64_t *words,
    uint32_t *at, int n) {
    enum { CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
    ENTER(context);
    if (n < 0 || n > MAX_ARGS) return INVALID_VALUE;
    void *params[n + 1];
    for (int i = 0; i < n; i++) params[i] = &words[at ? at[i] : i];
    params[n] = NULL;
    if (!g.early && !g.cluster[0]) {
        return cu.LaunchKernel((void *)function, g.blocks[0], g.blocks[1], g.blocks[2], g.threads[0],
            g.threads[1], g.threads[2], g.shared, (void *)stream, params, NULL);
    }
    launch_attribute attributes[2] = {{0}};
    unsigned count = 0;
    if (g.early) attributes[count++] = (launch_attribute){.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.on = 1};
    if (g.cluster[0]) {
        attributes[count] = (launch_attribute){.id = CLUSTER_DIMENSION};
        for (int i = 0; i < 3; i++) attributes[count].value.dim[i] = g.cluster[i];
        count++;
    }
    const launch_config config = {{g.blocks[0], g.blocks[1], g.blocks[2]}, {g.threads[0], g.threads[1], g.threads[2]},
                                  g.shared, (void *)stream, attributes, count};
    return cu.LaunchKernelEx(&config, (void *)function, params, NULL);
}

static int has_tensor_map(void) { return cu.TensorMapEncodeTiled != NULL; }

// A tensor in device memory: its first dimension is contiguous, strides are of the others.
struct tensor { int type, rank, swizzle; device_ptr at; uint64_t sizes[5], strides[4]; uint32_t box[5]; };

static int encode_tensor_map(uintptr_t context, struct tensor t, uint64_t *out) {
    enum { INTERLEAVE_NONE = 0, L2_PROMOTION_256B = 3, OOB_FILL_ZEROS = 0 };
    const uint32_t steps[5] = {1, 1, 1, 1, 1};
    _Alignas(64) uint64_t map[16];
    ENTER(context);
    int r = cu.TensorMapEncodeTiled(map, t.type, (uint32_t)t.rank, (void *)(uintptr_t)t.at, t.sizes,
        t.strides, t.box, steps, INTERLEAVE_NONE, t.swizzle, L2_PROMOTION_256B, OOB_FILL_ZEROS);
    if (r == OK) memcpy(out, map, sizeof map);
    return r;
}

// lockstep_cuda_host_func is in Go.
extern void lockstep_cuda_host_func(uintptr_t id);
static void run_host_func(void *id) { lockstep_cuda_host_func((uintptr_t)id); }
static int launch_host_func(uintptr_t context, uintptr_t stream, uintptr_t id) {
    ENTER(context);
    return cu.LaunchHostFunc((void *)stream, run_host_func, (void *)id);
}

// Events.

static struct made event_create(uintptr_t context, int timing) {
    enum { DEFAULT = 0, DISABLE_TIMING = 2 };
    void *e = NULL;
    int r = enter(context);
    if (r == OK) r = cu.EventCreate(&e, timing ? DEFAULT : DISABLE_TIMING);
    return (struct made){r, e};
}
static int event_destroy(uintptr_t context, uintptr_t event) {
    ENTER(context);
    return cu.EventDestroy((void *)event);
}
static int event_record(uintptr_t context, uintptr_t event, uintptr_t stream) {
    ENTER(context);
    return cu.EventRecord((void *)event, (void *)stream);
}
static int event_query(uintptr_t context, uintptr_t event) {
    ENTER(context);
    return cu.EventQuery((void *)event);
}
static int event_synchronize(uintptr_t context, uintptr_t event) {
    ENTER(context);
    return cu.EventSynchronize((void *)event);
}
static inline int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
static int event_spin(uintptr_t context, uintptr_t event, int64_t limit) {
    ENTER(context);
    int r = cu.EventQuery((void *)event);
    if (r != NOT_READY || limit <= 0) return r;
    for (int64_t start = nanoseconds(); r == NOT_READY && nanoseconds() - start < limit;) {
        relax();
        r = cu.EventQuery((void *)event);
    }
    return r;
}
struct elapsed { int status; float ms; };
static struct elapsed event_elapsed(uintptr_t context, uintptr_t from, uintptr_t to) {
    struct elapsed e = {enter(context), 0};
    if (e.status != OK) return e;
    e.status = (cu.EventElapsedTime_v2 != NULL ? cu.EventElapsedTime_v2 : cu.EventElapsedTime)(&e.ms,
        (void *)from, (void *)to);
    return e;
}

// Code.

static struct made module_load(uintptr_t context, const void *image, char *log, size_t log_bytes) {
    enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES = 6 };
    int options[] = {ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)log_bytes};
    void *m = NULL;
    int r = enter(context);
    if (r == OK) r = cu.ModuleLoadDataEx(&m, image, 2, options, values);
    return (struct made){r, m};
}
static int module_unload(uintptr_t context, uintptr_t module) {
    ENTER(context);
    return cu.ModuleUnload((void *)module);
}
static struct made module_function(uintptr_t context, uintptr_t module, const char *name) {
    void *f = NULL;
    int r = enter(context);
    if (r == OK) r = cu.ModuleGetFunction(&f, (void *)module, name);
    return (struct made){r, f};
}
static int has_func_load(void) { return cu.FuncLoad != NULL; }
static int func_load(uintptr_t context, uintptr_t function) {
    ENTER(context);
    return cu.FuncLoad((void *)function);
}
static struct number func_attribute(uintptr_t context, uintptr_t function, int attribute) {
    int v = 0, r = enter(context);
    if (r == OK) r = cu.FuncGetAttribute(&v, attribute, (void *)function);
    return (struct number){r, v};
}
static int has_param_info(void) { return cu.FuncGetParamInfo != NULL; }
// func_param is the offset and the size of parameter i; INVALID_VALUE if there is none.
static struct pair func_param(uintptr_t context, uintptr_t function, size_t i) {
    size_t offset = 0, size = 0;
    int r = enter(context);
    if (r == OK) r = cu.FuncGetParamInfo((void *)function, i, &offset, &size);
    return (struct pair){r, (int64_t)offset, (int64_t)size};
}
// raise_stack gives each thread of the device at least bytes of local memory.
static struct number raise_stack(uintptr_t context, size_t bytes) {
    enum { STACK_SIZE = 0 };
    size_t now = 0;
    int r = enter(context), set = 0;
    if (r == OK) r = cu.CtxGetLimit(&now, STACK_SIZE);
    if (r == OK && now < bytes) {
        set = 1;
        r = cu.CtxSetLimit(STACK_SIZE, bytes);
    }
    return (struct number){r, set};
}
static int func_set_attribute(uintptr_t context, uintptr_t function, int attribute, int v) {
    ENTER(context);
    return cu.FuncSetAttribute((void *)function, attribute, v);
}
