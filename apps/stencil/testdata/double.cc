// The kernels of stencil.cu for a test double of the driver: see FAKECUDA_KERNELS in cuda/testdata/fakecuda.c.
#include "device.h"

#include <string.h>

template <typename T> static T value(uint64_t word) { T v; memcpy(&v, &word, sizeof v); return v; }

#define DOUBLES(T, S)                                                                                                  \
	extern "C" void emulate_step2_##S(const uint64_t *a, const unsigned *dims) {                                       \
		every(dims, [&] { step2_##S((T *)a[0], (T *)a[1], value<T>(a[2]), value<T>(a[3]), *(box *)a[4], a[5]); });     \
	}                                                                                                                  \
	extern "C" void emulate_step3_##S(const uint64_t *a, const unsigned *dims) {                                       \
		every(dims, [&] { step3_##S((T *)a[0], (T *)a[1], value<T>(a[2]), value<T>(a[3]), *(box *)a[4], a[5]); });     \
	}                                                                                                                  \
	extern "C" void emulate_frame_##S(const uint64_t *a, const unsigned *dims) {                                       \
		every(dims, [&] {                                                                                              \
			frame_##S((T *)a[0], (T *)a[1], (T *)a[2], (T *)a[3], value<T>(a[4]), value<T>(a[5]), *(box *)a[6], (int)a[7]); \
		});                                                                                                            \
	}
DOUBLES(float, f32)
DOUBLES(double, f64)
