// A test double of the device for stencil.cu. It is built with sanitizers, which find accesses outside of memory and such
// as are not aligned.
// Standard input is launches, each a header and its arrays:
//
//	8 long long: kernel (2: step2, 3: step3, 1: frame), bytes of an element, elements of a field, of the faces, planes of a
//	             run, only_pack, p where beside is 2^-p, 0
//	6 long long: blocks and threads of a block, in x, y and z
//	struct box; out; in; sent; received
//
// Standard output is out and sent of each.

#include "device.h"

static void all(void *p, size_t n) {
	if (fread(p, 1, n, stdin) != n) abort();
}

template <typename T> struct kernel {
	void (*step2)(T *, const T *, T, T, box, long long), (*step3)(T *, const T *, T, T, box, long long);
	void (*frame)(T *, const T *, T *, const T *, T, T, box, int);
};

template <typename T> static void launch(kernel<T> k, const long long *head, const long long *grid, const box &b) {
	long long n = head[2], faces = head[3];
	T *array[4];
	for (int i = 0; i < 4; i++) {
		size_t bytes = (i < 2 ? n : faces) * sizeof(T);
		array[i] = (T *)aligned_alloc(16, (bytes + 15) / 16 * 16);
		all(array[i], bytes);
	}
	T beside = ldexp(1, -head[6]), centre = 1 - 2 * b.dims * beside;
	every(grid, [&] {
		if (head[0] == 1) k.frame(array[0], array[1], array[2], array[3], centre, beside, b, head[5]);
		else (head[0] == 2 ? k.step2 : k.step3)(array[0], array[1], centre, beside, b, head[4]);
	});
	fwrite(array[0], sizeof(T), n, stdout);
	fwrite(array[2], sizeof(T), faces, stdout);
	for (int i = 0; i < 4; i++) free(array[i]);
}

int main() {
	long long head[8], grid[6];
	while (fread(head, sizeof head, 1, stdin) == 1) {
		box b;
		all(grid, sizeof grid);
		all(&b, sizeof b);
		if (head[1] == 4) launch<float>({step2_f32, step3_f32, frame_f32}, head, grid, b);
		else launch<double>({step2_f64, step3_f64, frame_f64}, head, grid, b);
	}
}
