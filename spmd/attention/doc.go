// Package attention is causal self-attention, forward and backward, on spmd streams.
//
// There are several ways to compute it. New takes the fastest that this job has for a shape and a
// type: cuDNN's fused kernels, kernels of this package for tensor cores, or simple ones that take
// every shape. On the host it takes loops in C. Path and Why say which way it is, and why.
package attention
