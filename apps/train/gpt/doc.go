// Package gpt has the models, decoders of GPT-2's form and modern ones: their weights, their
// activations, the forward and backward pass of a micro-batch, and the forward pass of a sequence
// that grows. Each rank has all weights, or a shard of them.
//
// decoder.go has what both forms share. model.go and the files that it leads to are GPT-2's form,
// with its division into parts (sequence.go) and stages (stage.go). modern.go is the other form.
package gpt
