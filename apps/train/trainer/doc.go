// Package trainer trains a model on the ranks of a communicator, each with its part of every batch: one step, its
// gradients over the ranks, validation, and the search for what went wrong.
package trainer
