// A test double of libcuda.so.1: the part of the driver API that package cuda binds, in host memory
// and without a GPU.
//
// Device memory is malloc'd and holds 0xA5 at first. Streams run their commands at once, in the
// order of the calls, so every event is done once it is recorded. With FAKECUDA_DELAY each has a
// thread of its own, and they run beside each other and the host. The thread that runs the stream
// calls host functions. Kernels are noted, and run if FAKECUDA_KERNELS has them. A handle of memory
// for other processes needs FAKECUDA_SHARED. A capture records its operations, and launching the
// graph carries them out.
//
// As the driver does, it refuses calls without a current context or with the context of another
// device, handles that have been destroyed, copies past the end of an allocation, calls that a
// capture does not allow, and a capture's end on another thread.
//
// It reads from the environment, at every call, so that a test may change it:
//   FAKECUDA_LOG           a file; every call but cuCtxGetCurrent, cuGetErrorName and
//                          cuGetErrorString is a line in it, "cuMemAlloc_v2 bytes=64 p=0x... = 0".
//                          %p in the name is the process id. Handles are numbered by kind.
//                          "replay cuLaunchKernel ..." is an operation of a launched graph.
//   FAKECUDA_FAIL          "cuMemAlloc_v2=2,cuLaunchKernel=700@3": the status of every call, or of
//                          the third from now on
//   FAKECUDA_DEVICES       number of devices, 1
//   FAKECUDA_VERSION       the version of cuDriverGetVersion, 13000
//   FAKECUDA_MEMORY        bytes of memory that each device pretends to have, 1 GiB
//   FAKECUDA_UNTOUCHED     if set, managed memory counts as free until it is used, as in the driver
//   FAKECUDA_COMPUTE_MODE  the device attribute, 0
//   FAKECUDA_MAJOR         the device attribute, 9: the compute capability is 9.0
//   FAKECUDA_MIG           if set, devices are parts of GPUs
//   FAKECUDA_DELAY         if set, at the creation of a stream: it is asynchronous, and each of its
//                          operations begins up to as many microseconds late, at random
//   FAKECUDA_LATE          every second record in a graph says that it is so many seconds later
//   FAKECUDA_SLOW          a record in a graph takes so many seconds
//   FAKECUDA_SHARED        if set, device memory is made so that other processes can map it
//   FAKECUDA_PEERS         "0": no device reaches the memory of another; "2": it does, without
//                          native atomic operations
//   FAKECUDA_KERNELS       a shared library; a launch of kernel k calls its emulate_k(const
//                          uint64_t *args, const unsigned dims[6]), if there is one. A struct
//                          among the arguments is the address of a copy.
// The sizes of a kernel's parameters are those in the cubin, which it reads; for other images they
// are not known. A symbol x is left out by -Dx=absent_x. An image that starts with "BAD" does not
// load. A function whose name starts with "absent" is not found, and one with "old" was compiled
// for sm_80.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fakecuda_state.h"

// Start, errors.

int cuInit(unsigned flags) {
    int status = injected("cuInit");
    if (status == OK && device_count() == 0) status = 100;
    if (status == OK) initialised = 1;
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS"); // the driver reads it here, and not later
    note("cuInit flags=%u queues=%s = %d", flags, queues ? queues : "", status);
    return status;
}
int cuDriverGetVersion(int *v) {
    int status = injected("cuDriverGetVersion");
    *v = (int)setting("FAKECUDA_VERSION", 13000);
    note("cuDriverGetVersion version=%d = %d", *v, status);
    return status;
}
// The driver's names are the header's; a test must be able to tell them from the table of the
// package.
int cuGetErrorName(int r, const char **out) {
    *out = r == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *out != NULL ? OK : INVALID_VALUE;
}
int cuGetErrorString(int r, const char **out) {
    *out = r == OUT_OF_MEMORY ? "out of memory" : r == INVALID_VALUE ? "invalid argument" : NULL;
    return *out != NULL ? OK : INVALID_VALUE;
}

// Devices.

int cuDeviceGetCount(int *n) {
    BEGIN("cuDeviceGetCount");
    *n = device_count();
    RETURN("n=%d", *n);
}
int cuDeviceGet(int *device, int index) {
    BEGIN("cuDeviceGet");
    FAIL_IF(index < 0 || index >= device_count(), INVALID_DEVICE);
    *device = index;
    RETURN("index=%d", index);
}
int cuDeviceGetName(char *out, int n, int device) {
    BEGIN("cuDeviceGetName");
    const char *gpu = getenv("FAKECUDA_NAME");
    snprintf(out, (size_t)n, "%s", gpu ? gpu : "Fake GPU");
    RETURN("device=%d", device);
}
static void uuid_bytes(unsigned char *out, int device, int part) {
    for (int i = 0; i < 16; i++) out[i] = (unsigned char)(16 * i + i);
    out[15] = (unsigned char)device;
    out[14] = (unsigned char)part;
}
int cuDeviceGetUuid(void *out, int device) {
    BEGIN("cuDeviceGetUuid");
    uuid_bytes(out, device, 0);
    RETURN("device=%d", device);
}
int cuDeviceGetUuid_v2(void *out, int device) {
    BEGIN("cuDeviceGetUuid_v2");
    uuid_bytes(out, device, getenv("FAKECUDA_MIG") != NULL);
    RETURN("device=%d", device);
}
// Source: cuda.h, CUdevice_attribute.
enum { MULTIPROCESSOR_COUNT = 16, COMPUTE_MODE = 20, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76,
    MAX_SHARED_OPTIN = 97 };

int cuDeviceGetAttribute(int *v, int attribute, int device) {
    BEGIN("cuDeviceGetAttribute");
    switch (attribute) {
    case MULTIPROCESSOR_COUNT: *v = 132; break;
    case COMPUTE_MODE: *v = (int)setting("FAKECUDA_COMPUTE_MODE", 0); break;
    case CAPABILITY_MAJOR: *v = (int)setting("FAKECUDA_MAJOR", 9); break;
    case CAPABILITY_MINOR: *v = 0; break;
    case MAX_SHARED_OPTIN: *v = 227 << 10; break;
    default: FAIL_IF(1, INVALID_VALUE);
    }
    RETURN("device=%d attribute=%d", device, attribute);
}
static size_t memory(void) { return (size_t)setting("FAKECUDA_MEMORY", 1 << 30); }
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    BEGIN("cuDeviceTotalMem_v2");
    *bytes = memory();
    RETURN("device=%d", device);
}
int cuDeviceGetPCIBusId(char *out, int n, int device) {
    BEGIN("cuDeviceGetPCIBusId");
    snprintf(out, (size_t)n, "0000:%02X:00.0", 0x3a + device);
    RETURN("device=%d", device);
}

// Contexts.

int cuDevicePrimaryCtxRetain(void **out, int device) {
    BEGIN("cuDevicePrimaryCtxRetain");
    FAIL_IF(device < 0 || device >= device_count(), INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    contexts[device].device = device;
    if (contexts[device].refs++ == 0) contexts[device].stack = 1024;
    pthread_mutex_unlock(&mutex);
    *out = &contexts[device];
    RETURN("device=%d", device);
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN("cuDevicePrimaryCtxRelease_v2");
    struct context *c = &contexts[device];
    FAIL_IF(c->refs == 0, INVALID_CONTEXT);
    pthread_mutex_lock(&mutex);
    if (--c->refs == 0) c->reaches = 0;
    pthread_mutex_unlock(&mutex);
    const int *n = c->live;
    RETURN("device=%d refs=%d streams=%d events=%d graphs=%d execs=%d modules=%d bytes=%zu", device, c->refs,
        n[STREAM], n[EVENT], n[GRAPH], n[EXEC], n[MODULE], c->used);
}
int cuCtxGetCurrent(void **out) {
    int status = injected("cuCtxGetCurrent");
    *out = current;
    return status;
}
int cuCtxSetCurrent(void *c) {
    BEGIN("cuCtxSetCurrent");
    FAIL_IF(c != NULL && ((struct context *)c)->refs == 0, INVALID_CONTEXT);
    current = c;
    RETURN("device=%d thread=%d", current != NULL ? current->device : -1, (int)gettid());
}
int cuCtxSynchronize(void) {
    BEGIN("cuCtxSynchronize");
    NEED_CONTEXT;
    UNSAFE;
    await_device(current);
    RETURN("device=%d", current->device);
}
int cuCtxGetLimit(size_t *v, int limit) {
    BEGIN("cuCtxGetLimit");
    NEED_CONTEXT;
    FAIL_IF(limit != 0, INVALID_VALUE);
    *v = current->stack;
    RETURN("limit=%d", limit);
}
int cuCtxSetLimit(int limit, size_t v) {
    BEGIN("cuCtxSetLimit");
    NEED_CONTEXT;
    UNSAFE;
    FAIL_IF(limit != 0, INVALID_VALUE);
    await_device(current);
    current->stack = v;
    RETURN("limit=%d v=%zu", limit, v);
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    BEGIN("cuCtxGetStreamPriorityRange");
    NEED_CONTEXT;
    *least = 0;
    *greatest = -5;
    RETURN("device=%d", current->device);
}

#include "fakecuda_memory.h"
#include "fakecuda_streams.h"
#include "fakecuda_graphs.h"
