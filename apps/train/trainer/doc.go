// Package trainer trains a model on the ranks of a communicator. Each rank has its part of every
// batch. The package chooses the sequences of a step and brings them to the device while the step
// before is computed. It runs a step, sums gradients over the ranks, updates the weights,
// validates, and finds the rank and the tensor of a bad number.
//
// Read train.go first: it says what a Trainer has. start.go prepares the first step, step.go
// enqueues one, micro.go and order.go divide it into micro-batches, replicas.go sums gradients.
// adamw.go and muon.go update the weights. results.go and validate.go read the results. dataset.go
// says which sequences a step learns from, loader.go brings them to the device.
//
// Each mode of a run has a file of its own, which can be left out at first: graphs.go, shards.go,
// pipeline.go, tensor.go, scales.go (8-bit floats), tables.go (of modern models), divided.go (who
// has which part of a model).
package trainer
