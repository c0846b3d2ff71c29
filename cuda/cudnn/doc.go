// Package cudnn computes causal self-attention in device memory by the backend API of NVIDIA's
// cuDNN 9.
//
// A computation is described to the library as a graph of operations. The library names the engines
// that can run it. The first that can be made ready for the device is kept as a plan. Running a
// plan only enqueues on a stream.
//
// The library is looked for when it is first needed; a program that imports this package builds and
// runs without it. A failing call is a *ccall.Error whose status is a Result, or a cuda.Result if
// the device itself refused.
package cudnn
