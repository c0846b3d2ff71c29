// A test double of the kernel that fills memory (kernels.cu), for FAKECUDA_KERNELS.
#include <stdint.h>

extern "C" void emulate_fill_bytes(const uint64_t *args, const unsigned *) {
	uint8_t *dst = (uint8_t *)args[0];
	for (uint64_t i = 0; i < args[1]; i++) dst[i] = (uint8_t)(args[2 + i / 8 % 2] >> 8 * (i % 8));
}
