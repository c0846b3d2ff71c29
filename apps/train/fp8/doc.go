// Package fp8 is what a model keeps for matrix products of 8-bit floats: the codes of its weights,
// and the scales of what is multiplied by them.
package fp8
