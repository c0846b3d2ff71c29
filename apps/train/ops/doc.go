// Package ops has the operations of models: kernels for all but matrix products and attention, on
// the host and on a GPU, and the operands of products of 8-bit floats. A method of Launcher
// enqueues each kernel and says what it computes.
package ops
