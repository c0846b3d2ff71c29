// Package modern is a decoder whose parts layout.Parts names, in place of GPT-2's: its activations
// and the two passes of a micro-batch, for ranks that each have the whole model. Where a
// configuration has no such parts, Open makes one of package gpt.
package modern
