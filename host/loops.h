// What the loops in C of this module share: versions of a function for each level of x86-64, and an exponential that is
// vectorised in them. Files of other packages include it by its path from theirs; go build does not notice a change of
// it there: touch those files, too, or build with -a.
#ifndef LOCKSTEP_LOOPS_H
#define LOCKSTEP_LOOPS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h> // defines __GLIBC__
#include <string.h>

// Loops with sqrtf are vectorised only where it need not set errno.
float sqrtf(float) __attribute__((const));

// CLONES compiles a function for each level and lets the loader choose, so that one binary runs on every x86-64. exp_
// works on integers of the vector's width, which the levels have and single instruction sets (see vec.c) have not.
// WIDE is for the widest level alone, where HAS_WIDE says that the processor has it, NARROW for the others.
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

// exp_ is e^x within 1.5 ulp on [-87, 88], and the value at the end beyond it:
// 2^n e^r with |r| <= ln(2)/2, e^r by a minimax polynomial (Cephes, expf).
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

#endif
