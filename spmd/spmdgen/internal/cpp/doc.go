// Package cpp writes functions of Go in CUDA C++: kernels, and the functions that they call. It
// finds the slices that a kernel, or a loop over the elements of a row, uses only at its own index.
package cpp
