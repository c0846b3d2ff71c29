/*
 * launch: what does cuLaunchKernel cost the host when it is called from C?
 *
 * Launches an empty kernel of three arguments, with one thread, on one stream of the first GPU.
 * Batches of launches are timed by the host's clock. After each batch the stream is synchronised, which is
 * not timed. It is the yardstick for a launch through the framework.
 *
 *   cc -O3 -o launch launch.c -I/usr/local/cuda/include -L/usr/local/cuda/lib64/stubs -lcuda
 *   ./launch
 *
 * Prints one JSON line; median_us and min_us are taken over the batches:
 *   {"what":"c cuLaunchKernel","ranks":1,"median_us":1.510,"min_us":1.422}
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <cuda.h>

#define PROGRAM "launch"
#include "yardstick.h"

enum { CALLS = 100, BATCHES = 201, WARMUP_BATCHES = 20 };

/* The driver compiles this for the GPU at hand. */
static const char ptx[] =
	".version 6.3\n"
	".target sm_75\n"
	".address_size 64\n"
	".visible .entry nop(.param .u64 x, .param .u64 y, .param .u32 n)\n"
	"{\n"
	"	ret;\n"
	"}\n";

int main(void) {
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction nop;
	CUstream stream;
	CUdeviceptr x;
	check("cuInit", cuInit(0));
	check("cuDeviceGet", cuDeviceGet(&device, 0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	check("cuModuleLoadData", cuModuleLoadData(&module, ptx));
	check("cuModuleGetFunction", cuModuleGetFunction(&nop, module, "nop"));
	check("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	check("cuMemAlloc", cuMemAlloc(&x, 256));

	double us[BATCHES];
	int n = 2;
	for (int b = -WARMUP_BATCHES; b < BATCHES; b++) {
		double begin = now_us();
		for (int c = 0; c < CALLS; c++) {
			void *args[] = {&x, &x, &n};
			check("cuLaunchKernel", cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
		}
		double mine = (now_us() - begin) / CALLS;
		check("cuStreamSynchronize", cuStreamSynchronize(stream));
		if (b >= 0) {
			us[b] = mine;
		}
	}
	qsort(us, BATCHES, sizeof(double), ascending);
	printf("{\"what\":\"c cuLaunchKernel\",\"ranks\":1,\"median_us\":%.3f,\"min_us\":%.3f}\n", us[BATCHES / 2], us[0]);
	check("cuMemFree", cuMemFree(x));
	check("cuStreamDestroy", cuStreamDestroy(stream));
	check("cuModuleUnload", cuModuleUnload(module));
	check("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease(device));
	return 0;
}
