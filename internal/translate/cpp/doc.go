// Package cpp writes functions of Go in CUDA C++: kernels, and the functions that they call.
package cpp
