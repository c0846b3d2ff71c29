// Package nvrtc compiles CUDA C++ for the GPU at hand while the program runs, by NVIDIA's compiler library.
//
// The library is looked for when it is first needed; a program that imports this package builds and runs without it.
// A failing call is a *ccall.Error whose status is a Result, a program that does not compile a *CompileError.
// Everything here may be used from several goroutines at once; every call blocks until its work is done, and none
// needs a GPU or the CUDA driver.
package nvrtc
