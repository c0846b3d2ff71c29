// Package decode continues a text with a model. It runs the forward pass of one sequence that
// grows, with a cache of keys and values, and chooses the next token.
package decode
