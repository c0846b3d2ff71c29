// Common parts of this module's C loops: versions of a function for each level of x86-64, an
// exponential that is vectorised in them, and sums of columns. Files of other packages include it
// by its path from theirs. go build does not notice a change of it there: touch those files too, or
// build with -a.
#ifndef LOCKSTEP_LOOPS_H
#define LOCKSTEP_LOOPS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h> // defines __GLIBC__
#include <string.h>

// Loops with sqrtf are vectorised only if it need not set errno.
float sqrtf(float) __attribute__((const));

// CLONES compiles a function for each level and lets the loader choose, so that one binary runs on
// every x86-64. It names levels, not single instruction sets as vec.c does: exp_ needs integers of
// the vector's width, which only the levels have. WIDE is for the widest level alone, if HAS_WIDE
// says that the processor has it. NARROW is for the others.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define WIDE __attribute__((target("arch=x86-64-v4")))
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define NARROW __attribute__((target_clones("arch=x86-64-v3", "default")))
#define HAS_WIDE __builtin_cpu_supports("x86-64-v4")
#else
#define WIDE
#define CLONES
#define NARROW
#define HAS_WIDE 0
#endif

// Without this GCC does not inline into the versions for other levels.
#define INLINE static inline __attribute__((always_inline))

INLINE long min_l(long a, long b) { return a < b ? a : b; }

// exp_ is e^x within 1.5 ulp on [-87, 88]; beyond it is the value at the nearer end. It is 2^n e^r
// with |r| <= ln(2)/2, and e^r is a minimax polynomial (Cephes, expf).
INLINE float exp_(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer, in the low bits
    union { float f; uint32_t i; } n = {.f = x * 1.44269504f + magic};
    float f = n.f - magic;
    float r = x - f * 0.693359375f;
    r = r + f * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    n.i = (n.i + 127) << 23; // the bits of magic leave at the top
    return p * n.f;
}

// Sums of columns go by strips that stay in the first cache, and by runs of rows. So the error of a
// sum grows with the run and the number of runs, not with the number of rows.
enum { STRIP = 256, RUN = 64 };

// column_sums sets sum[j], or adds to it, for each column j from lo to hi of x, whose rows are ld
// elements apart.
INLINE void column_sums(float *sum, const float *x, long ld, long rows, int accumulate, long lo, long hi) {
    for (long s = lo; s < hi; s += STRIP) {
        long w = min_l(STRIP, hi - s);
        float *restrict out = sum + s;
        if (!accumulate) memset(out, 0, w * sizeof *out);
        for (long i0 = 0; i0 < rows; i0 += RUN) {
            float part[STRIP] = {0};
            for (long i = i0; i < min_l(i0 + RUN, rows); i++) {
                const float *xi = x + i * ld + s;
                for (long j = 0; j < w; j++) part[j] += xi[j];
            }
            for (long j = 0; j < w; j++) out[j] += part[j];
        }
    }
}

#endif
