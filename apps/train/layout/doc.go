// Package layout says what tensors a model of some shape has, how they lie behind each other in one
// arena, and which of them ranks share. cost.go estimates how long a step takes on GPUs, in every
// division of a model, from measured rates.
package layout
