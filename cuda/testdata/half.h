// The 16-bit floats of the test doubles of cuBLAS and cuDNN, rounded to the nearest, ties to even.
#include <math.h>
#include <stdint.h>
#include <string.h>

static double from16(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double a = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -a : a;
}
static uint16_t to16(double v) {
    double a = fabs(v);
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    if (isnan(v)) return 0x7e00;
    if (a >= 65520) return sign | 0x7c00;
    if (a == 0) return sign;
    int e = ilogb(a) < -14 ? -14 : ilogb(a);
    return sign | (uint16_t)(((e + 14) << 10) + (int)nearbyint(ldexp(a, 10 - e)));
}
static double frombf(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint16_t tobf(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if (isnan(f)) return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
