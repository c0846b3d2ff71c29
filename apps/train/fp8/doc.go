// Package fp8 holds what a model needs for matrix products of 8-bit floats: the codes of its
// weights, and the scales of both operands.
package fp8
