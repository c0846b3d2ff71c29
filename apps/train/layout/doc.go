// Package layout says what tensors a model of some shape has, and where they lie: behind each other
// in one arena, which of them ranks share, and in the folders of weights that it reads and writes.
// cost.go estimates how long a step takes on GPUs, in every division of a model, from measured
// rates.
package layout
