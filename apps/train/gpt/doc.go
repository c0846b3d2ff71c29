// Package gpt is a GPT-2-style decoder: its weights, its activations, and the forward and backward
// pass of a micro-batch. Each rank has all weights, or a shard of them.
package gpt
