// Package cublas multiplies matrices and vectors in device memory by NVIDIA's cuBLAS and cuBLASLt.
//
// Matrices are row-major: element (i, j) of A is a[i*LdA+j]. LdA, in elements, may be more than the
// width. All counts are in elements. A float32 product is computed in float32 throughout, never in
// TF32; products of 16-bit floats are summed in float32.
//
// Every call but the opening and closing ones only enqueues on the stream it is given: its operands
// must be valid in that stream's order, and its result is. No operand may overlap the result.
//
// The libraries are looked for when they are first needed; a program that imports this package
// builds and runs without them. A failing call is a *ccall.Error whose status is a Result, or a
// cuda.Result if the device itself refused.
package cublas
