// Package weights reads and writes folders of weights as Hugging Face keeps GPT-2.
package weights
