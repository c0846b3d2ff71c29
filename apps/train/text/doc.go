// Package text turns text into tokens. It has the tokenizers, the token files that ranks of a node
// build together, and those of llm.c.
package text
