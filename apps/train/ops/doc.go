// Package ops has the operations of training: kernels of the models and of their optimizers, on the
// host and on a GPU, and the operands of products of 8-bit floats. Matrix products and attention
// are in packages below spmd. A method of Launcher enqueues each kernel and says what it computes.
package ops
