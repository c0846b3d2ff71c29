// Package text turns text into tokens: the tokenizers, the token files that ranks of a node build
// together, and those of llm.c.
package text
