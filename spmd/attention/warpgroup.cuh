// Primitives of a warpgroup, 4 warps in a row, for compute capability 9.0: barriers in shared
// memory, and products of matrices of 64 x 64 elements. wgmma.go puts them behind tensor.cuh and
// before wgmma.cu.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

const int D = 64; // elements of a row in shared memory, 128 bytes

// Barriers in shared memory. A number of arrivals completes a phase. Phases have parities 0, 1, 0
// and so on.

SPMD_FN void barrier_init(uint32_t barrier, int arrivals) {
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

SPMD_FN void barrier_arrive(uint32_t barrier) {
	asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// barrier_wait waits until the phase of a parity is complete; the one before the first is.
SPMD_FN void barrier_wait(uint32_t barrier, int parity) {
	asm volatile(
		"{\n.reg .pred p;\n"
		"again:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra over;\nbra again;\n"
		"over:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// barrier_expect is an arrival. The phase is then complete only when so many bytes have been
// copied, too.
SPMD_FN void barrier_expect(uint32_t barrier, int bytes) {
	asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// barrier_arrive_copied arrives when this thread's copies by copy_async are done.
SPMD_FN void barrier_arrive_copied(uint32_t barrier) {
	asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// release is the arrival of a warp. Its lanes are ordered before that of the first.
// compute-sanitizer's racecheck does not follow that: it reports the reads of the other lanes.
SPMD_FN void release(uint32_t barrier) {
	__syncwarp();
	if (threadIdx.x % 32 == 0) {
		barrier_arrive(barrier);
	}
}

// Products of a warpgroup run beside the warps, group after group in order. Registers of products
// under way must not be touched: settle tells the compiler that sums are there.

SPMD_FN void products_start() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
SPMD_FN void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// products_finish waits until at most PENDING groups are under way.
template <int PENDING> SPMD_FN void products_finish() {
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

SPMD_FN void settle(float (&c)[32]) {
#pragma unroll
	for (int i = 0; i < 32; i++) {
		asm volatile("" : "+f"(c[i])::"memory");
	}
}

// clear is opaque to the compiler, which else would move it in between products under way.
SPMD_FN void clear(float (&c)[32]) {
#pragma unroll
	for (int i = 0; i < 32; i++) {
		asm volatile("mov.f32 %0, 0f00000000;" : "=f"(c[i]));
	}
}

#define EACH_SUM(x, c) \
	x(c[0]), x(c[1]), x(c[2]), x(c[3]), x(c[4]), x(c[5]), x(c[6]), x(c[7]), x(c[8]), x(c[9]), x(c[10]), \
	x(c[11]), x(c[12]), x(c[13]), x(c[14]), x(c[15]), x(c[16]), x(c[17]), x(c[18]), x(c[19]), x(c[20]), x(c[21]), \
	x(c[22]), x(c[23]), x(c[24]), x(c[25]), x(c[26]), x(c[27]), x(c[28]), x(c[29]), x(c[30]), x(c[31])
#define SUMS \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
	"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

// multiply is c(64,64) = a(64,16) b(16,64), multiply_add is c += a b. Each warp has 16 rows of a
// and c, as with mma.sync. b describes its matrix in shared memory: its rows are those of b if
// ROWS, else its columns.
SPMD_FN void multiply(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS ", {%32, %33, %34, %35}, %36, 0, 1, 1, 0;"
		: EACH_SUM("=f", c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <bool ROWS> SPMD_FN void multiply_add(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS
		", {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
		: EACH_SUM("+f", c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ROWS));
}

// multiply_matrices and multiply_add_matrices are multiply and multiply_add<false> with a
// description of a, too.
SPMD_FN void multiply_matrices(float (&c)[32], uint64_t a, uint64_t b) {
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS ", %32, %33, 0, 1, 1, 0, 0;"
		: EACH_SUM("=f", c) : "l"(a), "l"(b));
}

SPMD_FN void multiply_add_matrices(float (&c)[32], uint64_t a, uint64_t b) {
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS ", %32, %33, 1, 1, 1, 0, 0;"
		: EACH_SUM("+f", c) : "l"(a), "l"(b));
}

#undef SUMS
#undef EACH_SUM

// described is the description of the matrix that begins at an address, in units of 16 bytes: rows
// of 128 bytes whose chunks lie as chunk_at says, 1024 bytes from 8 rows to the next 8.
SPMD_FN uint64_t described(uint32_t matrix) { return 1ull << 62 | 64ull << 32 | 1ull << 16 | (matrix & 0x3ffff) >> 4; }

typedef uint32_t Operand[4][4]; // 64 rows of 64 elements, over a warpgroup

SPMD_FN void load_operand(Operand &a, uint32_t matrix) {
	uint32_t at = matrix + threadIdx.x / 32 % 4 * (32 * D) + lane_along<D>();
#pragma unroll
	for (int k = 0; k < 4; k++) {
		load_matrices(a[k], at ^ k << 5);
	}
}

// products is c = a bT for the 64 rows of matrix b.
SPMD_FN void products(float (&c)[32], const Operand &a, uint32_t b) {
	uint64_t d = described(b);
	multiply(c, a[0], d);
#pragma unroll
	for (int k = 1; k < 4; k++) {
		multiply_add<false>(c, a[k], d + 2 * k);
	}
}

// products_of is products with the 64 rows of matrix a.
SPMD_FN void products_of(float (&c)[32], uint32_t a, uint32_t b) {
	uint64_t x = described(a), y = described(b);
	multiply_matrices(c, x, y);
#pragma unroll
	for (int k = 1; k < 4; k++) {
		multiply_add_matrices(c, x + 2 * k, y + 2 * k);
	}
}

// add_weighted is c += w b.
SPMD_FN void add_weighted(float (&c)[32], const Operand &w, uint32_t b) {
	uint64_t d = described(b);
#pragma unroll
	for (int k = 0; k < 4; k++) {
		multiply_add<true>(c, w[k], d + 128 * k);
	}
}

// mask sets to -infinity, in a square on the diagonal, the scores of keys that a query does not
// see. Rows are queries and columns keys, or transposed the other way round.
SPMD_FN void mask(float (&s)[32], bool transposed) {
	int ahead = threadIdx.x % 4 * 2 - threadIdx.x % 32 / 4 - threadIdx.x / 32 % 4 * 16;
#pragma unroll
	for (int i = 0; i < 32; i++) {
		int beyond = ahead + i / 4 * 8 + i % 2 - i / 2 % 2 * 8; // column - row
		if (transposed ? beyond < 0 : beyond > 0) {
			s[i] = __int_as_float(0xff800000);
		}
	}
}

#endif
