/*
 * graph_memory: how much host memory stays behind for each captured graph when it is destroyed?
 *
 * Each rank, on a GPU of its own, captures, launches three times and destroys 4,000 graphs, of an all-reduce by NCCL, of a
 * fill, and of an all-reduce again, without a launch. It explains what a program in Go keeps that does the same.
 *
 *   mpicc -O2 -o graph_memory graph_memory.c -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lnccl -lcudart
 *   mpirun -np 2 ./graph_memory
 *
 * Rank 0 prints a JSON line for each 1,000 graphs: the growth of the memory that the process holds.
 *   {"what":"all-reduce, launched","graphs":2000,"rss_kib":770624,"more_kib":204}
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
			fprintf(stderr, "graph_memory: %s: status %d\n", #call, status); \
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
	CHECK(ncclCommInitRank(&comm, ranks, id, rank));
	enum { N = 100 };
	float *x;
	cudaStream_t s;
	CHECK(cudaMalloc((void **)&x, N * sizeof *x));
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	const char *what[] = {"all-reduce, launched", "fill, launched", "all-reduce, not launched"};
	for (int mode = 0; mode < 3; mode++) {
		long before = rss_kib();
		for (int i = 1; i <= 4000; i++) {
			cudaGraph_t graph;
			cudaGraphExec_t exec;
			CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
			if (mode == 1)
				CHECK(cudaMemsetAsync(x, 0, N * sizeof *x, s));
			else
				CHECK(ncclAllReduce(x, x, N, ncclFloat, ncclAvg, comm, s));
			CHECK(cudaStreamEndCapture(s, &graph));
			CHECK(cudaGraphInstantiate(&exec, graph, 0));
			for (int k = 0; k < 3 && mode < 2; k++) CHECK(cudaGraphLaunch(exec, s));
			CHECK(cudaStreamSynchronize(s));
			CHECK(cudaGraphExecDestroy(exec));
			CHECK(cudaGraphDestroy(graph));
			if (i % 1000 == 0 && rank == 0) {
				long now = rss_kib();
				printf("{\"what\":\"%s\",\"graphs\":%d,\"rss_kib\":%ld,\"more_kib\":%ld}\n", what[mode], i, now, now - before);
				fflush(stdout);
				before = now;
			}
		}
	}
	CHECK(ncclCommDestroy(comm));
	MPI_Finalize();
	return 0;
}
