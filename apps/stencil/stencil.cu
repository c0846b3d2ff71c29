// One step of the heat equation on a grid of two or three dimensions. box.h, which the program puts before this, says
// where cells lie. Memory has a border of one cell around the rank's own on axes 0 and 1, and on axis 2 at least one
// between the rows; it is zero but for the planes that come from the neighbours of axis 0.
//
// A new value is centre * u + beside * (the sum of the neighbours' u). Both factors are small powers of two: the products
// are exact, and the order of the additions below is that of stencil.c, so both have the same bits.
#include "spmd.cuh"

// vec is 16 bytes of T: what a thread loads and stores at once.
template <typename T>
union vec {
	uint4 raw;
	T v[16 / sizeof(T)];
};

template <typename T> SPMD_FN vec<T> load(const T *p) {
	vec<T> v;
	v.raw = *(const uint4 *)p;
	return v;
}

// step computes the inside. A thread has the columns of one vector and walks along axis 0, with DEPTH planes' loads in
// flight; blocks are of columns (x) and rows (y), and blockIdx.z counts runs of planes. The cells left and right of a
// vector are those of other threads: the L1 cache has them, as it has the rows beside.
template <typename T, int DIMS, int DEPTH>
SPMD_FN void step(T *__restrict__ out, const T *__restrict__ in, T centre, T beside, const box &b, long long planes) {
	const int n = 16 / sizeof(T);
	long long x = b.lo[2] / n * n + ((long long)blockIdx.x * blockDim.x + threadIdx.x) * n;
	long long y = b.lo[1] + (long long)blockIdx.y * blockDim.y + threadIdx.y;
	long long z = b.lo[0] + blockIdx.z * planes, end = min(z + planes, b.hi[0]);
	if (x >= b.hi[2] || y >= b.hi[1] || z >= end) {
		return;
	}
	bool whole = x >= b.lo[2] && x + n <= b.hi[2];
	long long at = b.origin + z * b.plane + y * b.pitch + x;
	const T *p = in + at;
	T *q = out + at - (b.origin + b.lo[0] * b.plane); // the inside alone
	vec<T> below = load(p - b.plane), here = load(p);
#pragma unroll 1
	for (; z < end; z += DEPTH, p += DEPTH * b.plane, q += DEPTH * b.plane) {
		vec<T> above[DEPTH], south[DEPTH], north[DEPTH];
		T left[DEPTH], right[DEPTH];
#pragma unroll
		for (int k = 0; k < DEPTH; k++) {
			if (z + k < end) {
				const T *r = p + k * b.plane;
				above[k] = load(r + b.plane);
				left[k] = r[-1], right[k] = r[n];
				if (DIMS == 3) {
					south[k] = load(r - b.pitch), north[k] = load(r + b.pitch);
				}
			}
		}
#pragma unroll
		for (int k = 0; k < DEPTH; k++) {
			if (z + k < end) {
				vec<T> u;
#pragma unroll
				for (int i = 0; i < n; i++) {
					T sum = below.v[i] + above[k].v[i];
					if (DIMS == 3) {
						sum = sum + (south[k].v[i] + north[k].v[i]);
					}
					sum = sum + ((i > 0 ? here.v[i - 1] : left[k]) + (i < n - 1 ? here.v[i + 1] : right[k]));
					u.v[i] = centre * here.v[i] + beside * sum;
				}
				T *r = q + k * b.plane;
				if (whole) {
					*(uint4 *)r = u.raw;
				} else {
#pragma unroll
					for (int i = 0; i < n; i++) {
						if (x + i >= b.lo[2] && x + i < b.hi[2]) {
							r[i] = u.v[i];
						}
					}
				}
				below = here, here = above[k];
			}
		}
	}
}

// frame computes the cells on the faces that have neighbours, one for each thread, and packs those of axes 1 and 2 for
// sending. received has what came from there. With only_pack new values are the old ones, and out is not written.
template <typename T>
SPMD_FN void frame(T *out, const T *in, T *sent, const T *received, T centre, T beside, const box &b, int only_pack) {
	long long i = grid_index();
	if (i >= b.first[6]) {
		return;
	}
	int side = 0;
	while (i >= b.first[side + 1]) {
		side++;
	}
	i -= b.first[side];
	long long c[3]; // the cell
	int axis = side / 2, minor = axis == 2 ? 1 : 2, major = axis == 0 ? 1 : 0;
	c[axis] = side % 2 ? b.n[axis] - 1 : 0;
	c[minor] = i % b.n[minor];
	c[major] = i / b.n[minor];
	long long at = b.origin + c[0] * b.plane + c[1] * b.pitch + c[2];
	T u = in[at];
	if (!only_pack) {
		T sum = in[at - b.plane] + in[at + b.plane];
		for (int a = 1; a < 3; a++) {
			if (a == 1 && b.dims == 2) {
				continue;
			}
			long long far = a == 1 ? b.pitch : 1, on = c[0] * b.n[3 - a] + c[3 - a]; // its place on a face of axis a
			T low = c[a] == 0 && b.face[2 * a] >= 0 ? received[b.face[2 * a] + on] : in[at - far];
			T high = c[a] == b.n[a] - 1 && b.face[2 * a + 1] >= 0 ? received[b.face[2 * a + 1] + on] : in[at + far];
			sum = sum + (low + high);
		}
		u = centre * u + beside * sum;
		bool before = false; // another face has the cell, and writes it
		for (int s = 0; s < side; s++) {
			before = before || b.face[s] >= 0 && c[s / 2] == (s % 2 ? b.n[s / 2] - 1 : 0);
		}
		if (!before) {
			out[at] = u;
		}
	}
	if (axis > 0) {
		sent[b.face[side] + i] = u;
	}
}

//	step2_T, step3_T(out, in, centre T, beside T, box, planes I64)
//	frame_T(out, in, sent, received, centre T, beside T, box, only_pack I32)
#define KERNELS(T, S)                                                                                                  \
	extern "C" __global__ void __launch_bounds__(256, 4)                                                               \
	step2_##S(T *out, const T *in, T centre, T beside, const __grid_constant__ box b, long long planes) {              \
		step<T, 2, 4>(out, in, centre, beside, b, planes);                                                             \
	}                                                                                                                  \
	extern "C" __global__ void __launch_bounds__(256, 4)                                                               \
	step3_##S(T *out, const T *in, T centre, T beside, const __grid_constant__ box b, long long planes) {              \
		step<T, 3, 2>(out, in, centre, beside, b, planes);                                                             \
	}                                                                                                                  \
	extern "C" __global__ void                                                                                         \
	frame_##S(T *out, const T *in, T *sent, const T *received, T centre, T beside, const __grid_constant__ box b,      \
	          int only_pack) {                                                                                         \
		frame<T>(out, in, sent, received, centre, beside, b, only_pack);                                               \
	}
KERNELS(float, f32)
KERNELS(double, f64)
