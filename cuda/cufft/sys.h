// The calls of cuFFT for sys.go. All is static: the file is included once. Every call below that
// does work makes the device's context current first. If the driver fails at that, its status is
// returned as a negative number.

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef int (*enter_fn)(void *context);
typedef int (*exec_fn)(int plan, void *in, void *out);
typedef int (*exec_way_fn)(int plan, void *in, void *out, int direction);

struct {
    int (*create)(int *plan);
    int (*destroy)(int plan);
    int (*auto_allocation)(int plan, int on);
    int (*make)(int plan, int rank, long long *n, long long *in, long long in_stride, long long in_distance,
        long long *out,
                long long out_stride, long long out_distance, int type, long long batch, size_t *work);
    int (*work_area)(int plan, void *work);
    int (*stream)(int plan, void *stream);
    exec_way_fn c2c, z2z;
    exec_fn r2c, c2r, d2z, z2d;
} cufft;

enum { KIND_C2C = 0x29, KIND_R2C = 0x2a, KIND_C2R = 0x2c, KIND_Z2Z = 0x69, KIND_D2Z = 0x6a, KIND_Z2D = 0x6c };

struct plan {
    enter_fn enter;
    void *context;
    int h;
};

struct outcome {
    int code;
    const char *what;
};

static struct outcome plan_open(struct plan *p, int kind, int rank, long long *n, long long batch, size_t *work) {
    struct outcome o = {-p->enter(p->context), "cufftCreate"};
    if (o.code == 0) o.code = cufft.create(&p->h);
    if (o.code != 0) return o;
    o = (struct outcome){cufft.auto_allocation(p->h, 0), "cufftSetAutoAllocation"};
    if (o.code == 0) o = (struct outcome){cufft.make(p->h, rank, n, NULL, 1, 0, NULL, 1, 0, kind, batch, work),
        "cufftMakePlanMany64"};
    if (o.code != 0) cufft.destroy(p->h);
    return o;
}

static int plan_close(struct plan *p) {
    int code = -p->enter(p->context);
    return code != 0 ? code : cufft.destroy(p->h);
}

static struct outcome plan_run(uintptr_t at, int kind, uintptr_t stream, uintptr_t dst, uintptr_t src, uintptr_t work,
    int direction, int tell) {
    struct plan *p = (struct plan *)at;
    void *in = (void *)src, *out = (void *)dst;
    struct outcome o = {-p->enter(p->context), "cufftSetWorkArea"};
    if (o.code == 0 && tell) o.code = cufft.work_area(p->h, (void *)work);
    if (o.code == 0) o = (struct outcome){cufft.stream(p->h, (void *)stream), "cufftSetStream"};
    if (o.code != 0) return o;
    switch (kind) {
    case KIND_C2C: return (struct outcome){cufft.c2c(p->h, in, out, direction), "cufftExecC2C"};
    case KIND_Z2Z: return (struct outcome){cufft.z2z(p->h, in, out, direction), "cufftExecZ2Z"};
    case KIND_R2C: return (struct outcome){cufft.r2c(p->h, in, out), "cufftExecR2C"};
    case KIND_C2R: return (struct outcome){cufft.c2r(p->h, in, out), "cufftExecC2R"};
    case KIND_D2Z: return (struct outcome){cufft.d2z(p->h, in, out), "cufftExecD2Z"};
    default: return (struct outcome){cufft.z2d(p->h, in, out), "cufftExecZ2D"};
    }
}
