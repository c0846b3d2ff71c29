// Package modern is a decoder with the parts of layout.Parts in place of GPT-2's: its activations
// and the two passes of a micro-batch. Each rank has the whole model. Open makes a model of package
// gpt if a configuration has no such parts.
package modern
