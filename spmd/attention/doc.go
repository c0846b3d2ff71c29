// Package attention is causal self-attention, forward and backward, on spmd streams.
package attention
