// Package decode continues a text with a model: the forward pass of one sequence that grows, with a
// cache of keys and values, and the choice of the next token.
package decode
