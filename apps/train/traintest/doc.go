// Package traintest has what the tests of train share: small models, random weights and tokens, and
// buffers to fill and read.
package traintest
