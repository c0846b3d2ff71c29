// Arithmetic on elements in C. Packages cudampi and spmd/internal/shm include it by its path from
// theirs; go build does not notice a change of it there: touch their files with import "C", too, or
// build with -a.
#ifndef LOCKSTEP_ARITH_H
#define LOCKSTEP_ARITH_H

#include <stdint.h>
#include <stdlib.h> // defines __GLIBC__
#include <string.h>

// Types and operations are numbered as in package elem.
enum { U8 = 1, F16 = 6, BF16 = 7, F32 = 8, F64 = 9, C64 = 10, C128 = 11 };
enum { MIN = 2, MAX = 3, AVG = 4, AND = 5, OR = 6, XOR = 7 };
static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};

static inline int half(int t) { return t == F16 || t == BF16; }

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

// The conversions of package elem without branches, so that the compiler makes vectors of them.
static inline uint32_t f32_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float bits_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

static inline float f16_to_f32(uint16_t h) {
    // Shifted into place the exponent is 112 too small: a multiplication mends that, of subnormals too.
    float f = bits_f32((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;
    uint32_t u = f32_bits(f);
    u |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return bits_f32(u | (uint32_t)(h & 0x8000) << 16);
}
static inline uint16_t f32_to_f16(float f) {
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff, payload = a >> 13 & 0x3ff;
    uint32_t normal = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
    uint32_t subnormal = f32_bits(bits_f32(a) + 0.5f) - f32_bits(0.5f);
    uint32_t nan = 0x7c00 | payload | (payload == 0 ? 0x200 : 0);
    uint32_t r = a < (113u << 23) ? subnormal : normal;
    r = a >= (143u << 23) ? 0x7c00 : r;
    r = a > 0x7f800000u ? nan : r;
    return (uint16_t)(sign | r);
}
static inline uint16_t f32_to_bf16(float f) {
    uint32_t u = f32_bits(f), r = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000u ? (u >> 16 | 0x40) : r);
}
CLONES static void widen_f16(float *restrict d, const uint16_t *restrict s, int64_t n) {
    for (int64_t i = 0; i < n; i++) d[i] = f16_to_f32(s[i]);
}
CLONES static void widen_bf16(float *restrict d, const uint16_t *restrict s, int64_t n) {
    for (int64_t i = 0; i < n; i++) d[i] = bits_f32((uint32_t)s[i] << 16);
}
CLONES static void narrow_f16(uint16_t *restrict d, const float *restrict s, int64_t n) {
    for (int64_t i = 0; i < n; i++) d[i] = f32_to_f16(s[i]);
}
CLONES static void narrow_bf16(uint16_t *restrict d, const float *restrict s, int64_t n) {
    for (int64_t i = 0; i < n; i++) d[i] = f32_to_bf16(s[i]);
}

#define DIVIDE(T, W) { T *p = buf; for (int64_t i = 0; i < n; i++) p[i] = (T)(p[i] / (W)size); break; }
static void divide(void *buf, int64_t n, int t, int size) {
    if (t >= C64) n *= 2, t -= C64 - F32; // the parts
    switch (t) {
    case 0: DIVIDE(int8_t, int32_t)
    case 1: DIVIDE(uint8_t, uint32_t)
    case 2: DIVIDE(int32_t, int32_t)
    case 3: DIVIDE(uint32_t, uint32_t)
    case 4: DIVIDE(int64_t, int64_t)
    case 5: DIVIDE(uint64_t, uint64_t)
    case 8: DIVIDE(float, float)
    case 9: DIVIDE(double, double)
    }
}
// finish_half rounds what was reduced in float32, averaged first if need be.
static void finish_half(void *dst, float *f, int64_t n, int t, int op, int size) {
    if (op == AVG) divide(f, n, F32, size);
    t == F16 ? narrow_f16(dst, f, n) : narrow_bf16(dst, f, n);
}

// Min and max of floats: a NaN wins, and -0 is less than 0 (minimum and maximum of IEEE 754-2019). The two comparisons differ
// where the numbers are equal: zeros, of whose signs BOTH takes the right one. The result has one NaN, whichever went in:
// ranks may fold in different orders, and are to get the same bits.
#define EXTREME(NAME, T, U, LESS, BOTH, NOT_A_NUMBER) \
    static inline T NAME(T a, T b) { \
        T p = a LESS b ? a : b, q = b LESS a ? b : a; \
        U x, y; \
        memcpy(&x, &p, sizeof x); \
        memcpy(&y, &q, sizeof y); \
        x = __builtin_isunordered(a, b) ? NOT_A_NUMBER : x BOTH y; \
        memcpy(&p, &x, sizeof p); \
        return p; \
    }
EXTREME(min_f32, float, uint32_t, <, |, 0x7fc00000)
EXTREME(max_f32, float, uint32_t, >, &, 0x7fc00000)
EXTREME(min_f64, double, uint64_t, <, |, 0x7ff8000000000000)
EXTREME(max_f64, double, uint64_t, >, &, 0x7ff8000000000000)

#define FOLD(T, E) { T *d = dst; const T *p = x, *q = y; for (int i = 0; i < n; i++) { T a = p[i], b = q[i]; d[i] = (T)(E); } return; }
// Of complex numbers a sum is that of the parts, and a product what it is in Go: that of floats is made in double.
#define FOLD_COMPLEX(T) { \
    if (op != 1) { n *= 2; FOLD(T, a + b) } \
    T *d = dst; \
    const T *p = x, *q = y; \
    for (int i = 0; i < 2 * n; i += 2) { \
        double a = p[i], b = p[i + 1], c = q[i], e = q[i + 1]; \
        d[i] = (T)(a * c - b * e); \
        d[i + 1] = (T)(a * e + b * c); \
    } \
    return; \
}
#define FOLD_AS(T, U, LEAST, MOST) \
    switch (op) { case 1: FOLD(U, a * b) case 2: FOLD(T, LEAST) case 3: FOLD(T, MOST) default: FOLD(U, a + b) }
// Sums and products of integers wrap round, which in C only the unsigned types may.
#define FOLD_INT(T, U) \
    switch (op) { case AND: FOLD(T, a & b) case OR: FOLD(T, a | b) case XOR: FOLD(T, a ^ b) } \
    FOLD_AS(T, U, a < b ? a : b, a > b ? a : b)
// fold sets dst to op of x and y, element by element; not of 16-bit floats. dst may be x or y.
CLONES static void fold(void *dst, const void *x, const void *y, int n, int t, int op) {
    switch (t) {
    case 0: FOLD_INT(int8_t, uint8_t)
    case 1: FOLD_INT(uint8_t, uint8_t)
    case 2: FOLD_INT(int32_t, uint32_t)
    case 3: FOLD_INT(uint32_t, uint32_t)
    case 4: FOLD_INT(int64_t, uint64_t)
    case 5: FOLD_INT(uint64_t, uint64_t)
    case 8: FOLD_AS(float, float, min_f32(a, b), max_f32(a, b))
    case 9: FOLD_AS(double, double, min_f64(a, b), max_f64(a, b))
    case C64: FOLD_COMPLEX(float)
    case C128: FOLD_COMPLEX(double)
    }
}

// reduce_half is reduce_many of 16-bit floats, in float32 and rounded once.
static void reduce_half(char *dst, const uintptr_t *from, int ranks, int64_t n, int t, int op) {
    enum { BLOCK = 2048 }; // elements that stay in the nearest cache
    float sum[BLOCK], wide[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int m = (int)(n - at < BLOCK ? n - at : BLOCK);
        for (int r = 0; r < ranks; r++) {
            const void *src = (const char *)from[r] + 2 * at;
            float *f = r ? wide : sum;
            t == F16 ? widen_f16(f, src, m) : widen_bf16(f, src, m);
            if (r) fold(sum, sum, wide, m, F32, op);
        }
        finish_half(dst + 2 * at, sum, m, t, op, ranks);
    }
}

// reduce_many sets dst to op over all sources, two or more, in their order. It needs no memory of its own, so several threads
// may work on parts.
static void reduce_many(uintptr_t to, const uintptr_t *from, int ranks, int64_t n, int t, int op) {
    if (half(t)) {
        reduce_half((char *)to, from, ranks, n, t, op);
        return;
    }
    const int64_t block = 8 << 10; // bytes that stay in the nearest cache
    int64_t bytes = n * sizes[t];
    for (int64_t at = 0; at < bytes; at += block) {
        int m = (int)((bytes - at < block ? bytes - at : block) / sizes[t]);
        char *dst = (char *)to + at;
        const char *so_far = (const char *)from[0] + at;
        for (int r = 1; r < ranks; r++) {
            fold(dst, so_far, (const char *)from[r] + at, m, t, op);
            so_far = dst;
        }
        if (op == AVG) divide(dst, m, t, ranks);
    }
}

#endif
