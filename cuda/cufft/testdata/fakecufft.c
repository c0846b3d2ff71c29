// A test double of libcufft: one plan, which transforms complex floats in one dimension by the sum
// that defines it, at once. Like the library it refuses a transform without the memory that it
// asked for. FAKECUFFT_FAIL names a call that fails.
#include <complex.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static long long size, arrays;
static void *area, *stream;
static int planned, automatic = 1;

static int fails(const char *name) {
    const char *f = getenv("FAKECUFFT_FAIL");
    return f && !strcmp(f, name) ? 6 : 0;
}

int cufftCreate(int *plan) { return *plan = 7, fails("cufftCreate"); }
int cufftDestroy(int plan) { return planned = 0, plan == 7 ? 0 : 1; }
int cufftSetAutoAllocation(int plan, int on) { return automatic = on, plan == 7 ? 0 : 1; }
int cufftMakePlanMany64(int plan, int rank, long long *n, long long *in, long long is, long long id,
    long long *out, long long os, long long od, int type, long long batch, size_t *work) {
    (void)is, (void)id, (void)os, (void)od;
    if (plan != 7 || rank != 1 || in || out || type != 0x29) return 4;
    size = n[0], arrays = batch, *work = 64, planned = 1, area = NULL;
    return fails("cufftMakePlanMany64");
}
int cufftSetWorkArea(int plan, void *work) { return area = work, plan == 7 ? 0 : 1; }
int cufftSetStream(int plan, void *s) { return stream = s, plan == 7 ? 0 : 1; }
int cufftExecC2C(int plan, float complex *in, float complex *out, int direction) {
    if (plan != 7 || !planned || !stream) return 1;
    if (!automatic && !area) return 13;
    float complex *copy = malloc(sizeof *in * size * arrays);
    memcpy(copy, in, sizeof *in * size * arrays);
    for (long long a = 0; a < arrays; a++) {
        for (long long k = 0; k < size; k++) {
            double complex sum = 0;
            for (long long j = 0; j < size; j++)
                sum += copy[a * size + j] * cexp(direction * 2 * M_PI * I * (j * k) / size);
            out[a * size + k] = sum;
        }
    }
    free(copy);
    return fails("cufftExecC2C");
}
int cufftExecZ2Z(int plan, void *in, void *out, int direction) {
    return (void)plan, (void)in, (void)out, (void)direction, 16;
}
int cufftExecR2C(int plan, void *in, void *out) { return (void)plan, (void)in, (void)out, 16; }
int cufftExecC2R(int plan, void *in, void *out) { return (void)plan, (void)in, (void)out, 16; }
int cufftExecD2Z(int plan, void *in, void *out) { return (void)plan, (void)in, (void)out, 16; }
#ifndef WITHOUT_Z2D
int cufftExecZ2D(int plan, void *in, void *out) { return (void)plan, (void)in, (void)out, 16; }
#endif
