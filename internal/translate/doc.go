// Package translate translates kernels that are written as Go functions. A function with the
// comment //spmd:kernel computes one element, by its indices; beside the package's files Generate
// writes CUDA C++ that does the same, and a typed function that launches it. The Go function
// itself is what runs on the host.
package translate
