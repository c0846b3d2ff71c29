// One block of two threads: the slope's and the intercept's.
extern "C" __global__ void training_grad(float *g, const float *p, int off, int n) {
	float sum = 0;
	for (int i = off; i < off + n; i++) {
		float x = i / 24.0f - 1;
		sum += (p[0] * x + p[1] - (3 * x + 2)) / 48 * (threadIdx.x == 0 ? x : 1);
	}
	g[threadIdx.x] = sum;
}

extern "C" __global__ void training_step(float *p, const float *g) { p[threadIdx.x] -= g[threadIdx.x]; }
