// Package traintest has what the tests of train share: a reference model in float64, random weights
// and tokens, and buffers to fill and read.
package traintest
