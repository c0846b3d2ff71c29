#include "emulate.h"
#include "../fold.cu"
#include "../peers.cu"

static float wide(f16 x) {
	int e = x.bits >> 10 & 31, m = x.bits & 1023;
	float v = e == 31 ? (m ? as_float(0x7f800000u | (u32)m << 13) : INFINITY) : e ? ldexpf((float)(m + 1024), e - 25) : ldexpf((float)m, -24);
	return x.bits & 0x8000 ? -v : v;
}
static unsigned short rounded_f16(float x) {
	u16 sign = signbit(x) ? 0x8000 : 0;
	double a = fabs((double)x);
	if (a >= 65520) return sign | 0x7c00;
	int e;
	frexp(a, &e);
	int unit = e - 11 < -24 ? -24 : e - 11; // of the last place
	double n = nearbyint(ldexp(a, -unit));  // ties to even
	if (n == 2048) n = 1024, unit++;
	return sign | (u16)(n < 1024 ? n : (u16)((unit + 25) << 10) + (u16)(n - 1024));
}

EMULATE(fold)
EMULATE(peer_barrier)
EMULATE(small_sum)
EMULATE(small_reduction)
EMULATE(small_moves)
EMULATE_AT_ONCE(exchange)
EMULATE(list_messages)
EMULATE(peer_all_reduce)
