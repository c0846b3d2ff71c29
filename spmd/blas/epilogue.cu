// The epilogues of a matrix product that cuBLASLt does not do on the way. Matrices are row-major,
// rows ld elements apart. T is float, double, bf16 or f16; all is computed in float, and for double
// in double.
#include "spmd.cuh"

SPMD_FN double to_float(double x) { return x; }

template <typename T> struct wide { typedef float type; };
template <> struct wide<double> { typedef double type; };

template <typename T> SPMD_FN T narrow(float x) { return from_float<T>(x); }
template <typename T> SPMD_FN T narrow(double x) { return x; }

// fetch and put move V elements: 16 bytes, aligned so, or one element.
template <typename T, int V> SPMD_FN void fetch(typename wide<T>::type (&v)[V], const T *p) {
	union { uint4 raw; T v[V]; } u;
	if (V > 1) {
		u.raw = *(const uint4 *)p;
	} else {
		u.v[0] = *p;
	}
#pragma unroll
	for (int i = 0; i < V; i++) {
		v[i] = to_float(u.v[i]);
	}
}

template <typename T, int V> SPMD_FN void put(T *p, const typename wide<T>::type (&v)[V]) {
	union { uint4 raw; T v[V]; } u;
#pragma unroll
	for (int i = 0; i < V; i++) {
		u.v[i] = narrow<T>(v[i]);
	}
	if (V > 1) {
		*(uint4 *)p = u.raw;
	} else {
		*p = u.v[0];
	}
}

// whole says whether rows of n elements at p can be read 16 bytes at a time.
template <typename T> SPMD_FN bool whole(const T *p, long long n, long long ld) {
	const int v = 16 / sizeof(T);
	return (uint64_t)p % 16 == 0 && n % v == 0 && ld % v == 0;
}

// gelu(x) = x (1 + tanh(u)) / 2 = x s with s = 1 / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3):
// nothing cancels for large -x. The exponent is kept in the range in which e^-2u is finite.
SPMD_FN float gelu_exp(float x) { return expf(fminf(-1.5957691216f * (x + 0.044715f * x * x * x), 80.0f)); }
SPMD_FN double gelu_exp(double x) { return exp(fmin(-1.5957691216057308 * (x + 0.044715 * x * x * x), 700.0)); }

template <typename F> SPMD_FN F gelu_slope(F x) {
	F e = gelu_exp(x), s = 1 / (1 + e);
	return s + x * s * (e * s) * ((F)1.5957691216057308 * (1 + (F)(3 * 0.044715) * x * x)); // e s is 1 - s
}

enum { ADD_BIAS, APPLY_GELU, APPLY_SLOPE };

template <typename T, int V>
SPMD_FN void finish(T *c, T *x, const T *bias, long long rows, long long cols, long long ld, int what) {
	typedef typename wide<T>::type F;
	for (long long i = blockIdx.y; i < rows; i += gridDim.y) {
		for (long long j = grid_index() * V; j < cols; j += grid_size() * V) {
			F v[V], other[V];
			fetch<T, V>(v, c + i * ld + j);
			if (bias) {
				fetch<T, V>(other, bias + j);
#pragma unroll
				for (int k = 0; k < V; k++) {
					v[k] += other[k];
				}
			}
			if (what == APPLY_GELU) {
				put<T, V>(x + i * ld + j, v);
#pragma unroll
				for (int k = 0; k < V; k++) {
					v[k] /= 1 + gelu_exp(v[k]);
				}
			} else if (what == APPLY_SLOPE) {
				fetch<T, V>(other, x + i * ld + j);
#pragma unroll
				for (int k = 0; k < V; k++) {
					v[k] *= gelu_slope(other[k]);
				}
			}
			put<T, V>(c + i * ld + j, v);
		}
	}
}

// c += bias, if there is one; then, by what: nothing; x = c, c = gelu(x); or c *= gelu'(x). The x
// of the grid goes over columns, its y over rows.
//
//	gemm_finish<T>(c, x, bias, rows I64, cols I64, ld I64, what I32)
template <typename T>
__global__ void gemm_finish(T *c, T *x, const T *bias, long long rows, long long cols, long long ld, int what) {
	if (whole(c, cols, ld) && whole(x, cols, ld) && whole(bias, cols, ld)) {
		finish<T, 16 / sizeof(T)>(c, x, bias, rows, cols, ld, what);
	} else {
		finish<T, 1>(c, x, bias, rows, cols, ld, what);
	}
}

// add_all adds x[i] for i from first on by step, below end, V elements at a time; 4 accesses are in
// flight.
template <typename T, int V>
SPMD_FN void add_all(typename wide<T>::type (&sum)[V], const T *x, long long first, long long end, long long step,
	long long ld) {
	typename wide<T>::type v[4][V];
	long long i = first;
	for (; i + 3 * step < end; i += 4 * step) {
#pragma unroll
		for (int d = 0; d < 4; d++) {
			fetch<T, V>(v[d], x + (i + d * step) * ld);
		}
#pragma unroll
		for (int k = 0; k < V; k++) {
			sum[k] += (v[0][k] + v[1][k]) + (v[2][k] + v[3][k]);
		}
	}
	for (; i < end; i += step) {
		fetch<T, V>(v[0], x + i * ld);
#pragma unroll
		for (int k = 0; k < V; k++) {
			sum[k] += v[0][k];
		}
	}
}

// A block of 8 warps takes tiles of 32 V columns and every gridDim.y-th run of 8 rows of them; out
// gets its sums.
template <typename T, int V, typename O>
SPMD_FN void columns(O out, const T *x, long long rows, long long cols, long long ld) {
	typedef typename wide<T>::type F;
	__shared__ F sums[8][32 * V];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	for (long long j0 = (long long)blockIdx.x * 32 * V; j0 < cols; j0 += (long long)gridDim.x * 32 * V) {
		long long j = j0 + lane * V;
		F sum[V] = {};
		if (j < cols) {
			add_all<T, V>(sum, x + j, (long long)blockIdx.y * 8 + warp, rows, (long long)gridDim.y * 8, ld);
		}
#pragma unroll
		for (int k = 0; k < V; k++) {
			sums[warp][k * 32 + lane] = sum[k];
		}
		__syncthreads();
		for (int k = warp; k < V; k += 8) {
			F total = 0;
			for (int w = 0; w < 8; w++) {
				total += sums[w][k * 32 + lane];
			}
			if (j < cols) {
				out(j + k, total);
			}
		}
		__syncthreads();
	}
}

// part[y * cols + j] = the share of the blocks y of the grid in the sum of column j of x. Blocks of
// 256 threads.
//
//	gemm_columns<T>(part, x, rows I64, cols I64, ld I64)
template <typename T>
__global__ void gemm_columns(typename wide<T>::type *part, const T *x, long long rows, long long cols, long long ld) {
	typename wide<T>::type *mine = part + blockIdx.y * cols;
	auto out = [mine](long long j, typename wide<T>::type v) { mine[j] = v; };
	if (whole(x, cols, ld)) {
		columns<T, 16 / sizeof(T)>(out, x, rows, cols, ld);
	} else {
		columns<T, 1>(out, x, rows, cols, ld);
	}
}

// sum[j] = the sum of the parts of column j, which gemm_columns wrote. One row of blocks of 256
// threads.
//
//	gemm_columns_total<C>(sum, part, parts I64, cols I64)
template <typename C>
__global__ void gemm_columns_total(C *sum, const typename wide<C>::type *part, long long parts, long long cols) {
	columns<typename wide<C>::type, 1>([sum](long long j, typename wide<C>::type v) { sum[j] = narrow<C>(v); },
		part, parts, cols, cols);
}

template <typename C, typename T, int V>
SPMD_FN void row_sums(C *sum, const T *x, long long rows, long long cols, long long ld) {
	typedef typename wide<T>::type F;
	for (long long i = blockIdx.x; i < rows; i += gridDim.x) {
		F total = 0;
		for (long long j = threadIdx.x * V; j < cols; j += blockDim.x * V) {
			F v[V];
			fetch<T, V>(v, x + i * ld + j);
#pragma unroll
			for (int k = 0; k < V; k++) {
				total += v[k];
			}
		}
		total = block_sum(total);
		if (threadIdx.x == 0) {
			sum[i] = narrow<C>(total);
		}
	}
}

// sum[i] = the sum of row i of x: a block for each row.
//
//	gemm_rows<C, T>(sum, x, rows I64, cols I64, ld I64)
template <typename C, typename T>
__global__ void gemm_rows(C *sum, const T *x, long long rows, long long cols, long long ld) {
	if (whole(x, cols, ld)) {
		row_sums<C, T, 16 / sizeof(T)>(sum, x, rows, cols, ld);
	} else {
		row_sums<C, T, 1>(sum, x, rows, cols, ld);
	}
}
