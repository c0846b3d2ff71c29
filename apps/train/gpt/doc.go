// Package gpt has the model, a decoder of the parts that layout.Parts names: its weights, its
// activations, the forward and backward pass of a micro-batch, and the forward pass of a sequence
// that grows. Each rank has all weights, or a shard of them.
//
// model.go has the memory. passes.go has the order of both passes, recompute.go a layer forward.
// Below these, sequence.go divides the work over the rows of ranks, and products.go over kernels.
// stage.go is for stages of a pipeline.
package gpt
