// Package batches says which sequences of the data each step learns from. It brings them to the
// device while the step before is computed.
package batches
