// Package layout says what tensors a model of some shape has, how they lie behind each other in one
// arena, and which of them ranks share.
package layout
