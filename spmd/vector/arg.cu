// The smallest or largest element and its index, the first of equal ones. A NaN wins, and -0 is
// less than 0.

// found is an element and its index; -1 if there is none.
template <typename T> struct found { T value; int64_t at; };

// wins says whether a is another value than b, and the wanted one.
template <bool MAX, typename T> SPMD_FN bool wins(T a, T b) { return MAX ? a > b : a < b; }
SPMD_FN bool negative(float x) { return __float_as_uint(x) >> 31; }
SPMD_FN bool negative(double x) { return (uint64_t)__double_as_longlong(x) >> 63; }
template <bool MAX, typename T> SPMD_FN bool float_wins(T a, T b) {
	if (MAX ? a < b : a > b) return false;
	if (a == b) return negative(MAX ? b : a) && !negative(MAX ? a : b);
	return a != a ? b == b : b == b; // another value, or one of them is a NaN
}
template <bool MAX> SPMD_FN bool wins(float a, float b) { return float_wins<MAX>(a, b); }
template <bool MAX> SPMD_FN bool wins(double a, double b) { return float_wins<MAX>(a, b); }

template <bool MAX, typename T> SPMD_FN found<T> better(found<T> a, found<T> b) {
	if (a.at < 0 || b.at >= 0 && (wins<MAX>(b.value, a.value) || !wins<MAX>(a.value, b.value) && b.at < a.at)) return b;
	return a;
}

template <bool MAX, typename T> SPMD_FN found<T> warp_best(found<T> f) {
#pragma unroll
	for (int d = 16; d > 0; d /= 2) {
		found<T> other = {__shfl_xor_sync(0xffffffffu, f.value, d), __shfl_xor_sync(0xffffffffu, f.at, d)};
		f = better<MAX>(f, other);
	}
	return f;
}

template <bool MAX, typename T> SPMD_FN found<T> block_best(found<T> f) {
	f = warp_best<MAX>(f);
	T value = share_warps(f.value, f.value);
	int64_t at = share_warps(f.at, (int64_t)-1);
	return warp_best<MAX>(found<T>{value, at});
}

// arg_best has the best of x in value and at, or with several blocks the best of each block in
// parts.
//
//	arg_best(value, at, parts, x, n I64, none)
template <typename T, bool MAX>
__global__ void __launch_bounds__(THREADS) arg_best(T *value, int64_t *at, int64_t *parts, const T *x,
	int64_t n, T none) {
	const int V = 16 / sizeof(T), DEEP = 4;
	start_next();
	bool aligned = to_aligned(x) == 0;
	int64_t step = grid_size() * V, i = grid_index() * V;
	found<T> best = {none, -1};
	if (i < n) best = {x[i], i};
	for (; i < n; i += DEEP * step) {
		vector<T> v[DEEP];
#pragma unroll
		for (int d = 0; d < DEEP; d++) v[d] = load_vector(x, i + d * step, n, aligned &&
			i + d * step + V <= n, best.value);
#pragma unroll
		for (int d = 0; d < DEEP; d++) {
#pragma unroll
			for (int k = 0; k < V; k++) {
				if (wins<MAX>(v[d].at[k], best.value)) best = {v[d].at[k], i + d * step + k};
			}
		}
	}
	best = block_best<MAX>(best);
	if (threadIdx.x > 0) return;
	if (gridDim.x > 1) {
		value = (T *)(parts + gridDim.x) + blockIdx.x;
		at = parts + blockIdx.x;
	}
	*value = best.value;
	*at = best.at;
}

// arg_last has the best of so many parts.
//
//	arg_last(value, at, parts, count I64, none)
template <typename T, bool MAX>
__global__ void __launch_bounds__(THREADS) arg_last(T *value, int64_t *at, const int64_t *parts,
	int64_t count, T none) {
	wait_previous();
	found<T> best = {none, -1};
	for (int64_t i = threadIdx.x; i < count; i += THREADS)
		best = better<MAX>(best, found<T>{((const T *)(parts + count))[i], parts[i]});
	best = block_best<MAX>(best);
	if (threadIdx.x == 0) {
		*value = best.value;
		*at = best.at;
	}
}
