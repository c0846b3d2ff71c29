// Package training measures training on GPUs: its speed and its losses beside PyTorch,
// and the matrix products in it.
package training
