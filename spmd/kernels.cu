// The framework's own kernels. All are launched in grids and blocks of one dimension, blocks a
// multiple of 32 threads, any number of blocks; a length of 0 is legal. What a kernel computes does
// not depend on the grid.
#include "spmd.cuh"

// dst[i] = byte i % 16 of even and odd, one behind the other. All but the first and last bytes go as words of 8.
//
//	fill_bytes(dst, bytes I64, even U64, odd U64)
extern "C" __global__ void fill_bytes(unsigned char *dst, long long bytes, unsigned long long even, unsigned long long odd) {
	const long long apart = (long long)(-(unsigned long long)dst & 7), head = apart < bytes ? apart : bytes;
	const long long words = (bytes - head) / 8, tail = head + 8 * words;
	const unsigned long long first = head == 0 ? even : even >> 8 * head | odd << (64 - 8 * head);
	const unsigned long long second = head == 0 ? odd : odd >> 8 * head | even << (64 - 8 * head);
	unsigned long long *const to = (unsigned long long *)(dst + head);
	for (long long i = grid_index(); i < words; i += grid_size()) {
		to[i] = i & 1 ? second : first;
	}
	for (long long i = grid_index(); i < head + bytes - tail; i += grid_size()) {
		const long long at = i < head ? i : tail + i - head;
		dst[at] = (unsigned char)((at & 8 ? odd : even) >> 8 * (at & 7));
	}
}
