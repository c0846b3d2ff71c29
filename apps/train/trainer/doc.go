// Package trainer trains a model on the ranks of a communicator. Each rank has its part of every
// batch. The package runs a step, sums gradients over the ranks, validates, and finds the rank and
// the tensor of a bad number.
//
// Read train.go first: it says what a Trainer has. start.go prepares the first step. micro.go
// divides a step into micro-batches, step.go enqueues it. results.go and validate.go read the
// results. divided.go and pipelined.go are for ranks with parts of the model.
package trainer
