// Package host is the Go side of a computation on the host: the loop over cores, matrix products,
// and sums at memory speed. The host function of an spmd.Kernel is written with it.
//
//	host.Parallel(len(y), 4096, func(lo, hi int) {
//		host.Axpy(y[lo:hi], alpha, x[lo:hi]) // y += alpha x
//	})
//
// # Cores
//
// Threads is the number of cores this rank may use; spmd.World divides the cores of a node among
// its ranks. Ranks that are goroutines of one process all use the least of their shares. Parallel,
// Gemm, Gemv and SumParallel use that many goroutines and return when the work is done. Everything
// else runs in the calling goroutine. Several goroutines may call all functions at once. There is
// no hidden pool of threads: OpenBLAS, too, is called one thread at a time, on blocks that Parallel
// hands out.
//
// # Matrices
//
// Matrices are row-major: element (i, j) of an (m, n) matrix with row stride ld >= n is a[i*ld+j].
// A transposition is a flag, never a copy.
//
// # BLAS
//
// Matrix products run in OpenBLAS, which is looked for at the first product. If it is not found
// they run in gonum's pure Go: the same results within rounding, ten to twenty times slower. BLAS
// says which one is in use and why. The environment variable LOCKSTEP_BLAS forces a choice:
//
//	auto      OpenBLAS if it can be loaded, else gonum (the default)
//	openblas  OpenBLAS, or CheckBLAS reports why not
//	gonum     gonum
//
// # Misuse
//
// As with a slice bound, lengths that do not fit are a mistake in the program: the functions panic
// and print both numbers.
package host
