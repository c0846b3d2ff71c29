// Package traintest is what the tests of train have in common: a model in float64 to compare with,
// random weights and tokens, and buffers filled and read.
package traintest
