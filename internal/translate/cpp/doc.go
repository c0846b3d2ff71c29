// Package cpp writes functions of Go in CUDA C++: those of kernels, and what they call.
package cpp
