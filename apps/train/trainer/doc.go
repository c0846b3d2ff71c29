// Package trainer trains a model on the ranks of a communicator, each with its part of every batch:
// one step, its gradients over the ranks, validation, and the search for what went wrong.
//
// Read train.go first, which says what a Trainer has. start.go has what comes before the first
// step, micro.go how a step divides into micro-batches, step.go what it enqueues, results.go
// and validate.go what it tells. divided.go and pipelined.go have what is different where
// ranks have parts of the model.
package trainer
