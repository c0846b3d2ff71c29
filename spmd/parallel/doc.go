// Package parallel divides a program's work among ranks: in a grid, and as the parts of a
// distributed training loop do, which are data parallelism, sharding, pipelines and tensor
// parallelism. Each part stands alone.
//
// Grids: a Mesh arranges the ranks along axes, with a communicator for each; a Layout does without.
//
// Data parallelism: SyncStart and CheckSame make replicas start alike and check that they stay so.
// A Reducer reduces gradients while the backward pass goes on. ClipNorm clips their norm. Together
// ends loops over uneven data on all ranks together.
//
// Sharding: a Partition says which elements of the training state each rank has. A Gatherer gathers
// parameters when a layer needs them. A Scatterer reduces gradients to the ranks' parts. A Norm is
// the norm of a gradient whose parts the ranks have.
//
// Pipelines: a Pipeline runs micro-batches through layers that the ranks divide.
package parallel
