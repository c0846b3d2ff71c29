// Package weights reads and writes folders of weights in the form in which Hugging
// Face keeps GPT-2.
package weights
