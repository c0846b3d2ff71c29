// Primitives of a warp with tensor cores, for compute capability 8.0 and above. mma.go puts them
// before its sources.
#include "spmd.cuh"

#if __CUDA_ARCH__ >= 800

SPMD_FN uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// copy_async starts a copy of BYTES (4, 8 or 16) from global to shared memory, or of zeros.
template <int BYTES> SPMD_FN void copy_async(uint32_t to, const void *from, bool zeros) {
	if (BYTES == 16) {
		asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
			"r"(zeros ? 0 : 16) : "memory");
	} else {
		asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
			"r"(zeros ? 0 : BYTES) : "memory");
	}
}

SPMD_FN void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// copy_wait waits until at most PENDING groups of this thread's copies are under way.
template <int PENDING> SPMD_FN void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

SPMD_FN void load_matrices(uint32_t (&r)[4], uint32_t at) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

SPMD_FN void load_matrices_transposed(uint32_t (&r)[4], uint32_t at) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// multiply_add is c(16,8) += a(16,16) b(16,8).
SPMD_FN void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

SPMD_FN uint32_t pack(float low, float high) {
	uint32_t r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
	return r;
}

// power2 is 2 to the x, to 2 units in the last place; 0 for -infinity.
SPMD_FN float power2(float x) {
	float r;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}

// warp_index is the warp's number in its block, in a form that the compiler knows to be one for the
// warp.
SPMD_FN int warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

const float log2e = 1.4426950408889634f, ln2 = 0.6931471805599453f;

// A tile in shared memory has rows of D elements. Chunk c of 16 bytes of row r lies at place c ^
// r%8 of its row: the 8 rows of a matrix that ldmatrix reads at once are then in different banks.
template <int D> SPMD_FN uint32_t chunk_at(int row, int chunk) { return row * (2 * D) + ((chunk ^ (row & 7)) << 4); }

// A lane points ldmatrix to these places in a tile. lane_along is operand a: 16 rows of the product
// and 16 columns to sum over. The same place, read transposed, is operand b with 16 rows to sum
// over and 16 columns of the product. lane_across is operand b with 16 rows that are columns of the
// product. Tiles are aligned to their rows, so that k·16 columns further is address ^ k<<5.
template <int D> SPMD_FN uint32_t lane_along() { return chunk_at<D>(threadIdx.x % 16, threadIdx.x / 16 % 2); }
template <int D> SPMD_FN uint32_t lane_across() {
	return chunk_at<D>(threadIdx.x % 8 + threadIdx.x / 16 % 2 * 8, threadIdx.x / 8 % 2);
}

#endif
