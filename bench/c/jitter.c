/*
 * jitter: how even are the times of the same work on a GPU, as a C program waits for it?
 *
 * Launches a graph of one kernel that takes a given time, records an event, and asks until the event has passed; 10,000
 * times. What is uneven here comes from the machine: its timer interrupts, its hypervisor, its driver.
 *
 *   cc -O3 -o jitter jitter.c -I/usr/local/cuda/include -L/usr/local/cuda/lib64/stubs -lcuda
 *   ./jitter [microseconds ...]                        default: 0 25
 *
 * Prints a JSON line for each given time. slow counts the launches that took 5 us more than the median. apart_us is the
 * median of the times from one of these to the next:
 *   {"what":"c graph of 25 us","median_us":28.310,"p99_us":37.204,"max_us":70.301,"slow":112,"apart_us":990.1}
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <cuda.h>

#define PROGRAM "jitter"
#include "yardstick.h"

enum { TIMES = 10000, WARMUP = 1000, SLOW_US = 5 };

/* The driver compiles this for the GPU at hand. */
static const char ptx[] =
	".version 6.3\n"
	".target sm_75\n"
	".address_size 64\n"
	".visible .entry busy(.param .u64 ns)\n"
	"{\n"
	"	.reg .u64 %t<4>;\n"
	"	.reg .pred %p;\n"
	"	ld.param.u64 %t0, [ns];\n"
	"	mov.u64 %t1, %globaltimer;\n"
	"again:\n"
	"	mov.u64 %t2, %globaltimer;\n"
	"	sub.u64 %t3, %t2, %t1;\n"
	"	setp.lt.u64 %p, %t3, %t0;\n"
	"	@%p bra again;\n"
	"	ret;\n"
	"}\n";

static double us[TIMES], sorted[TIMES], at[TIMES], apart[TIMES];

static void measure(CUstream stream, CUevent event, CUfunction busy, int each_us) {
	CUgraph graph;
	CUgraphExec exec;
	unsigned long long ns = 1000ULL * (unsigned)each_us;
	void *args[] = {&ns};
	check("cuStreamBeginCapture", cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	check("cuLaunchKernel", cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
	check("cuStreamEndCapture", cuStreamEndCapture(stream, &graph));
	check("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = -WARMUP; i < TIMES; i++) {
		double begin = now_us();
		check("cuGraphLaunch", cuGraphLaunch(exec, stream));
		check("cuEventRecord", cuEventRecord(event, stream));
		CUresult done;
		while ((done = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
		}
		check("cuEventQuery", done);
		if (i >= 0) {
			us[i] = now_us() - begin;
			at[i] = begin;
		}
	}
	check("cuGraphExecDestroy", cuGraphExecDestroy(exec));
	check("cuGraphDestroy", cuGraphDestroy(graph));

	memcpy(sorted, us, sizeof us);
	qsort(sorted, TIMES, sizeof(double), ascending);
	double median = sorted[TIMES / 2], last = 0;
	int slow = 0;
	for (int i = 0; i < TIMES; i++) {
		if (us[i] < median + SLOW_US) continue;
		if (slow > 0) apart[slow - 1] = at[i] - last;
		last = at[i];
		slow++;
	}
	double between = 0;
	if (slow > 1) {
		qsort(apart, (size_t)slow - 1, sizeof(double), ascending);
		between = apart[(slow - 1) / 2];
	}
	printf("{\"what\":\"c graph of %d us\",\"median_us\":%.3f,\"p99_us\":%.3f,\"max_us\":%.3f,\"slow\":%d,\"apart_us\":%.1f}\n", each_us,
		median, sorted[TIMES * 99 / 100], sorted[TIMES - 1], slow, between);
}

int main(int argc, char **argv) {
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction busy;
	CUstream stream;
	CUevent event;
	check("cuInit", cuInit(0));
	check("cuDeviceGet", cuDeviceGet(&device, 0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	check("cuModuleLoadData", cuModuleLoadData(&module, ptx));
	check("cuModuleGetFunction", cuModuleGetFunction(&busy, module, "busy"));
	check("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	check("cuEventCreate", cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	if (argc == 1) {
		measure(stream, event, busy, 0);
		measure(stream, event, busy, 25);
	}
	for (int i = 1; i < argc; i++) measure(stream, event, busy, atoi(argv[i]));
	check("cuEventDestroy", cuEventDestroy(event));
	check("cuStreamDestroy", cuStreamDestroy(stream));
	check("cuModuleUnload", cuModuleUnload(module));
	check("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease(device));
	return 0;
}
