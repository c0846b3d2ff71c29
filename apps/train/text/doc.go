// Package text turns text into tokens. It finds the files behind --data, and has the tokenizers,
// the token files that ranks of a node build together, and those of llm.c.
//
// A Group keeps ranks together that work at one thing: each learns what every rank has, and an
// error of one becomes the error of all.
package text
