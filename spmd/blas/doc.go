// Package blas multiplies matrices on streams: by cuBLAS on a GPU, and by OpenBLAS or the
// framework's own loops on the host.
//
//	err := blas.Gemm(s, blas.MatrixOf(c, m, n), blas.MatrixOf(a, m, k), blas.MatrixOf(b, k, n),
//		blas.Options{})
//
// Gemm also does more than store a product, such as adding a bias: see Options. Tune makes later
// products use the fastest algorithms.
//
// Parts of larger matrices are operands, too, and Copy and Transpose move them on the device. A
// Sparse multiplies a vector by a sparse matrix whose rows the ranks divide.
package blas
