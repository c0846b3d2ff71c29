// A test double of libnvidia-ml.so.1: one device, GPU-11111111-2222-3333-4444-555555555555, whose
// facts are made up.
//
// FAKENVML_FAIL="nvmlDeviceGetName=3,..." is the status of every call of that function. A symbol x
// is left out by -Dx=absent_x. Calls between nvmlInit_v2 and nvmlShutdown only; the other ones are
// ERROR_UNINITIALIZED.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef unsigned long long u64;
static int users;
static int the_device;

static int fate(const char *fn) {
    const char *list = getenv("FAKENVML_FAIL");
    size_t n = strlen(fn);
    for (const char *at = list; at && (at = strstr(at, fn)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && at[n] == '=') return atoi(at + n + 1);
    return users > 0 ? OK : UNINITIALIZED;
}
#define BEGIN(...)                       \
    int rc = fate(__func__);             \
    if (rc != OK) return rc;             \
    if (0 __VA_ARGS__) return INVALID_ARGUMENT

int nvmlInit_v2(void) {
    users++;
    int rc = fate(__func__);
    if (rc != OK) users--;
    return rc;
}
int nvmlShutdown(void) {
    BEGIN();
    users--;
    return OK;
}
const char *nvmlErrorString(int r) {
    static char text[32];
    snprintf(text, sizeof text, "status %d", r);
    return text;
}
int nvmlSystemGetDriverVersion(char *v, unsigned n) {
    BEGIN();
    snprintf(v, n, "580.1.2");
    return OK;
}
int nvmlSystemGetCudaDriverVersion(int *v) {
    BEGIN();
    *v = 13000;
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **d) {
    BEGIN();
    if (strcmp(uuid, "GPU-11111111-2222-3333-4444-555555555555") != 0) return NOT_FOUND;
    *d = &the_device;
    return OK;
}
#define DEVICE BEGIN(|| d != &the_device)
int nvmlDeviceGetName(void *d, char *v, unsigned n) {
    DEVICE;
    snprintf(v, n, "NVIDIA Double");
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *d, u64 m[3]) { // total, free, used
    DEVICE;
    m[0] = 1000, m[1] = 600, m[2] = 400;
    return OK;
}
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *d, struct memory_v2 *m) {
    DEVICE;
    if (m->version != (sizeof *m | 2u << 24)) return INVALID_ARGUMENT;
    m->total = 1000, m->reserved = 100, m->free = 600, m->used = 300;
    return OK;
}
int nvmlDeviceGetComputeMode(void *d, int *v) {
    DEVICE;
    *v = 3;
    return OK;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *d, struct pci *v) {
    DEVICE;
    memset(v, 0, sizeof *v);
    v->domain = 1, v->bus = 0x1b, v->device = 3;
    return OK;
}
int nvmlDeviceGetMemoryAffinity(void *d, unsigned n, unsigned long *set, int scope) {
    DEVICE;
    if (n < 1 || scope != 0) return INVALID_ARGUMENT;
    set[0] = 1ul << 5;
    return OK;
}
int nvmlDeviceGetCpuAffinity(void *d, unsigned n, unsigned long *set) {
    DEVICE;
    if (n < 2) return INSUFFICIENT_SIZE;
    set[0] = 1ul << 2 | 1ul << 63, set[1] = 1;
    return OK;
}
int nvmlDeviceGetNvLinkState(void *d, unsigned link, int *active) {
    DEVICE;
    if (link >= 6) return INVALID_ARGUMENT;
    *active = link != 2;
    return OK;
}
struct process { unsigned pid; u64 bytes; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *p) {
    DEVICE;
    unsigned room = *n;
    *n = 2;
    if (room < 2) return INSUFFICIENT_SIZE;
    p[0] = (struct process){101, 4096, ~0u, ~0u};
    p[1] = (struct process){102, ~0ull, ~0u, ~0u};
    return OK;
}
// The first form, of drivers before 470.
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, void *p) {
    DEVICE;
    (void)p;
    *n = 0;
    return OK;
}
int nvmlDeviceGetClockInfo(void *d, int what, unsigned *mhz) { // of graphics, multiprocessors, memory
    DEVICE;
    if (what != 1 && what != 2) return INVALID_ARGUMENT;
    *mhz = what == 1 ? 1200 : 3201;
    return OK;
}
int nvmlDeviceGetMaxClockInfo(void *d, int what, unsigned *mhz) {
    DEVICE;
    if (what != 1) return INVALID_ARGUMENT;
    *mhz = 1980;
    return OK;
}
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) {
    DEVICE;
    *mw = 650500;
    return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) {
    DEVICE;
    *mw = 700000;
    return OK;
}
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *celsius) {
    DEVICE;
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = 71;
    return OK;
}
struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *d, struct utilization *u) {
    DEVICE;
    u->gpu = 97, u->memory = 40;
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *d, u64 *bits) {
    DEVICE;
    *bits = 1 | 4 | 64; // idle, power limit, heat
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, u64 *bits) {
    DEVICE;
    *bits = 128; // power supply
    return OK;
}
