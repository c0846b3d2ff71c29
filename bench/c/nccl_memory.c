/*
 * nccl_memory: how much host memory stays behind for each captured graph, or communicator, when it is destroyed?
 *
 * Each rank, on a GPU of its own, captures 4,000 graphs of each kind, launches each three times and destroys it: NCCL's
 * all-reduce of memory of cudaMalloc and of ncclMemAlloc, a fill, and an all-reduce that is not launched. Then it splits the
 * communicator in two halves, has each broadcast, and destroys them, 200 times. So it tells what of a Go program's growth is
 * the library's.
 *
 *   mpicc -O2 -o nccl_memory nccl_memory.c -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lnccl -lcudart
 *   mpirun -np 4 ./nccl_memory
 *
 * Rank 0 prints four JSON lines for each kind: the growth of the memory that the process holds.
 *   {"what":"all-reduce, launched","done":2000,"rss_kib":770624,"more_kib":204}
 */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) \
	do { \
		int status = (int)(call); \
		if (status != 0) { \
			fprintf(stderr, "nccl_memory: %s: status %d\n", #call, status); \
			MPI_Abort(MPI_COMM_WORLD, 1); \
			exit(1); \
		} \
	} while (0)

static long rss_kib(void) {
	char line[256];
	long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	if (f == NULL) return 0;
	while (fgets(line, sizeof line, f) != NULL && sscanf(line, "VmRSS: %ld", &kib) != 1) {
	}
	fclose(f);
	return kib;
}

enum { N = 100000, GRAPHS = 4000, SPLITS = 200 };

enum kind { PLAIN, OF_NCCL, FILL, NOT_LAUNCHED, SPLIT, KINDS };

static const char *const names[KINDS] = {"all-reduce, launched", "all-reduce of memory of ncclMemAlloc, launched", "fill, launched",
                                         "all-reduce, not launched", "split, broadcast"};

static void graph(enum kind kind, float *x, ncclComm_t comm, cudaStream_t s) {
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	if (kind == FILL)
		CHECK(cudaMemsetAsync(x, 0, N * sizeof *x, s));
	else
		CHECK(ncclAllReduce(x, x, N, ncclFloat, ncclAvg, comm, s));
	CHECK(cudaStreamEndCapture(s, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	for (int k = 0; k < 3 && kind != NOT_LAUNCHED; k++) CHECK(cudaGraphLaunch(exec, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
}

static void split(float *x, ncclComm_t comm, int rank, cudaStream_t s) {
	ncclComm_t half;
	CHECK(ncclCommSplit(comm, rank % 2, rank, &half, NULL));
	CHECK(ncclBroadcast(x, x, N, ncclFloat, 0, half, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(ncclCommDestroy(half));
}

int main(int argc, char **argv) {
	int level, rank, ranks;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(cudaSetDevice(rank));
	ncclUniqueId id;
	if (rank == 0) CHECK(ncclGetUniqueId(&id));
	MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
	ncclComm_t comm;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	config.splitShare = 1;
	CHECK(ncclCommInitRankConfig(&comm, ranks, id, rank, &config));
	float *plain, *of_nccl;
	cudaStream_t s;
	CHECK(cudaMalloc((void **)&plain, N * sizeof *plain));
	CHECK(ncclMemAlloc((void **)&of_nccl, N * sizeof *of_nccl));
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	for (enum kind kind = 0; kind < KINDS; kind++) {
		int all = kind == SPLIT ? SPLITS : GRAPHS;
		long before = rss_kib();
		for (int i = 1; i <= all; i++) {
			if (kind == SPLIT)
				split(plain, comm, rank, s);
			else
				graph(kind, kind == OF_NCCL ? of_nccl : plain, comm, s);
			if (i % (all / 4) == 0 && rank == 0) {
				long now = rss_kib();
				printf("{\"what\":\"%s\",\"done\":%d,\"rss_kib\":%ld,\"more_kib\":%ld}\n", names[kind], i, now, now - before);
				fflush(stdout);
				before = now;
			}
		}
	}
	CHECK(ncclMemFree(of_nccl));
	CHECK(ncclCommDestroy(comm));
	MPI_Finalize();
	return 0;
}
