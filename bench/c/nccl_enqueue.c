/*
 * nccl_enqueue: what does ncclAllReduce cost the host when it is called from C?
 *
 * One rank per GPU sums two float32 over all ranks, on one stream. Batches of calls are timed by the
 * host's clock. After each batch the stream is synchronised, which is not timed. It is the yardstick for
 * an all-reduce of the framework on a stream, which calls the same function of the same library.
 *
 *   mpicc -O3 -o nccl_enqueue nccl_enqueue.c -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lnccl -lcudart
 *   mpirun -np 2 ./nccl_enqueue
 *
 * Rank 0 prints one JSON line:
 *   {"what":"c ncclAllReduce","ranks":2,"bytes":8,"median_us":2.110,"min_us":2.005}
 * The time per call of a batch is that of the slowest rank; median_us and min_us are taken over the
 * batches.
 */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#define PROGRAM "nccl_enqueue"
#include "yardstick.h"

enum { CALLS = 100, BATCHES = 201, WARMUP_BATCHES = 20, N = 2 };

static void cuda(const char *what, cudaError_t code) {
	if (code != cudaSuccess) {
		fail(what, cudaGetErrorString(code));
	}
}

static void nccl(const char *what, ncclResult_t code) {
	if (code != ncclSuccess) {
		fail(what, ncclGetErrorString(code));
	}
}

/* local_rank is this rank's number on its node, which is that of its GPU. */
static int local_rank(void) {
	MPI_Comm node;
	int rank;
	mpi("MPI_Comm_split_type", MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
	mpi("MPI_Comm_rank", MPI_Comm_rank(node, &rank));
	mpi("MPI_Comm_free", MPI_Comm_free(&node));
	return rank;
}

int main(int argc, char **argv) {
	mpi("MPI_Init", MPI_Init(&argc, &argv));
	mpi("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
	int rank, ranks;
	mpi("MPI_Comm_rank", MPI_Comm_rank(MPI_COMM_WORLD, &rank));
	mpi("MPI_Comm_size", MPI_Comm_size(MPI_COMM_WORLD, &ranks));
	cuda("cudaSetDevice", cudaSetDevice(local_rank()));

	ncclUniqueId id;
	ncclComm_t comm;
	if (rank == 0) {
		nccl("ncclGetUniqueId", ncclGetUniqueId(&id));
	}
	mpi("MPI_Bcast", MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
	nccl("ncclCommInitRank", ncclCommInitRank(&comm, ranks, id, rank));

	float *src, *dst, host[N];
	cudaStream_t stream;
	cuda("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	cuda("cudaMalloc", cudaMalloc((void **)&src, sizeof host));
	cuda("cudaMalloc", cudaMalloc((void **)&dst, sizeof host));
	for (int i = 0; i < N; i++) {
		host[i] = (float)(rank + 1 + i); /* small integers: their sums are exact */
	}
	cuda("cudaMemcpy", cudaMemcpy(src, host, sizeof host, cudaMemcpyHostToDevice));

	double us[BATCHES];
	for (int b = -WARMUP_BATCHES; b < BATCHES; b++) {
		mpi("MPI_Barrier", MPI_Barrier(MPI_COMM_WORLD));
		double begin = MPI_Wtime();
		for (int c = 0; c < CALLS; c++) {
			nccl("ncclAllReduce", ncclAllReduce(src, dst, N, ncclFloat, ncclSum, comm, stream));
		}
		double mine = (MPI_Wtime() - begin) * 1e6 / CALLS, slowest;
		cuda("cudaStreamSynchronize", cudaStreamSynchronize(stream));
		mpi("MPI_Allreduce", MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
		if (b >= 0) {
			us[b] = slowest;
		}
	}

	cuda("cudaMemcpy", cudaMemcpy(host, dst, sizeof host, cudaMemcpyDeviceToHost));
	for (int i = 0; i < N; i++) {
		if (host[i] != (float)(ranks * (ranks + 1) / 2 + ranks * i)) {
			char why[96];
			snprintf(why, sizeof why, "element %d is %g", i, host[i]);
			fail("wrong result", why);
		}
	}
	if (rank == 0) {
		qsort(us, BATCHES, sizeof(double), ascending);
		printf("{\"what\":\"c ncclAllReduce\",\"ranks\":%d,\"bytes\":%zu,\"median_us\":%.3f,\"min_us\":%.3f}\n",
		       ranks, sizeof host, us[BATCHES / 2], us[0]);
		fflush(stdout);
	}
	nccl("ncclCommDestroy", ncclCommDestroy(comm));
	cuda("cudaStreamDestroy", cudaStreamDestroy(stream));
	cuda("cudaFree", cudaFree(src));
	cuda("cudaFree", cudaFree(dst));
	mpi("MPI_Finalize", MPI_Finalize());
	return 0;
}
