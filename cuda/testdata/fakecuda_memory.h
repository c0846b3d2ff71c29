// The memory of the double of the driver, that of other processes too. fakecuda.c includes it.

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
// allocate returns 0 if the device has no more memory. Host memory counts for no device.
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
static int no_place(location at) {
    return at.type == AT_DEVICE ? at.id < 0 || at.id >= device_count() : at.type != AT_HOST;
}
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

typedef struct { long process, file; size_t bytes; int device;
    char rest[64 - 2 * sizeof(long) - sizeof(size_t) - sizeof(int)]; } handle;

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
    FAIL_IF(device < 0 || peer < 0 || device >= device_count() || peer >= device_count() || device == peer,
        INVALID_DEVICE);
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
