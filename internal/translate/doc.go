// Package translate translates kernels that are written as Go functions. A function with the
// comment //spmd:kernel computes one element, by its indices. Generate writes CUDA C++ that does
// the same, and a typed function that launches it, beside the package's files. The Go function
// itself runs on the host.
package translate
