// Package nvrtc compiles CUDA C++ for the GPU at hand while the program runs, by NVIDIA's compiler
// library.
//
// The library is looked for when it is first needed; a program that imports this package builds and
// runs without it. A failing call is a *ccall.Error whose status is a Result. A program that does
// not compile is a *CompileError. Several goroutines may use everything here at once. Every call
// blocks until its work is done, and needs neither a GPU nor the CUDA driver.
package nvrtc
