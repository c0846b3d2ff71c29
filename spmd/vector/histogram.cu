// edge is the edge of a bin, a number of x's type if these are floats.
template <typename T> SPMD_FN double edge(double v) { return v; }
template <> __device__ __forceinline__ double edge<float>(double v) { return isinf((float)v) ? v : (double)(float)v; }

// histogram adds to counts[k] the elements of x in bin k of the equal parts of lo to hi. Each block
// counts in its own memory, several times side by side so that equal elements do not wait for each
// other. If copies is 0, it counts in counts itself. The launch ahead clears counts.
//
//	histogram(counts, x, n I64, bins I32, copies I32, lo F64, hi F64, scale F64, more F64)
template <typename T>
__global__ void __launch_bounds__(THREADS) histogram(unsigned long long *counts, const T *x, int64_t n, int bins,
	int copies, double lo, double hi, double scale, double more) {
	const int V = 16 / sizeof(T), DEEP = 4;
	const double width = (hi - lo) / bins, first = edge<T>(lo), last = edge<T>(hi);
	// More than roundings move an element or an edge, in bins. Where it is no number, edges are asked.
	const double slack = (fabs(lo) + fabs(hi)) / width * (sizeof(T) < 8 ? 3e-7 : 1e-15) + bins * 1e-15;
	extern __shared__ unsigned int own[];
	for (int i = threadIdx.x; i < bins * copies; i += THREADS) own[i] = 0;
	__syncthreads();
	if (copies == 0) wait_previous();
	bool aligned = to_aligned(x) == 0;
	int copy = copies == 0 ? 0 : threadIdx.x % copies;
	int64_t step = grid_size() * V;
	for (int64_t i = grid_index() * V; i < n; i += DEEP * step) {
		vector<T> v[DEEP];
#pragma unroll
		for (int d = 0; d < DEEP; d++) v[d] = load_vector(x, i + d * step, n, aligned && i + d * step + V <= n, (T)0);
#pragma unroll
		for (int d = 0; d < DEEP; d++) {
#pragma unroll
			for (int k = 0; k < V; k++) {
				double value = (double)v[d].at[k];
				if (i + d * step + k >= n || !(value >= first && value <= last)) continue;
				double at = (value - lo) * more * scale;
				int bin = at >= bins ? bins - 1 : at > 0 ? (int)at : 0;
				auto begin = [&](int b) {
					return b == bins ? last : edge<T>((width > 0 ? b * width : b / (double)bins * (hi - lo)) + lo);
				};
				bool near = !(at - bin > slack && at - bin < 1 - slack);
				if (near && value < begin(bin)) bin--;
				if (near && bin < bins - 1 && value >= begin(bin + 1)) bin++;
				if (copies == 0) atomicAdd(&counts[bin], 1ull);
				else atomicAdd(&own[bin * copies + copy], 1u);
			}
		}
	}
	if (copies == 0) return;
	__syncthreads();
	wait_previous();
	for (int bin = threadIdx.x; bin < bins; bin += THREADS) {
		unsigned int sum = 0;
		for (int c = 0; c < copies; c++) sum += own[bin * copies + c];
		if (sum > 0) atomicAdd(&counts[bin], (unsigned long long)sum);
	}
}
