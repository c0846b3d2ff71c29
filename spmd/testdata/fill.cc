// A test double of the kernel that fills memory with values of 8 bytes (kernels.cu), for FAKECUDA_KERNELS.
#include <stdint.h>

extern "C" void emulate_fill_u64(const uint64_t *args, const unsigned *) {
	uint64_t *dst = (uint64_t *)args[0];
	for (uint64_t i = 0; i < args[1]; i++) dst[i] = args[2];
}
