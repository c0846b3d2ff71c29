// Package ddp is what a data-parallel training loop needs beside collectives: replicas that start alike and are checked to
// stay so, the reduction of gradients while the backward pass goes on, the clipping of their norm, and loops over uneven
// data that end on all ranks together.
//
// Where the ranks are to share the training state instead of each having all of it, a Partition says which elements each
// has, a Gatherer gathers parameters when a layer needs them, and a Scatterer reduces gradients to the ranks' parts. A
// Pipeline divides the layers, as Balance says, and takes as long as its Schedule; a Norm is that of a gradient of which
// each rank has a part. Where ranks divide the products inside a layer, Rows says how they share the rows of what lies
// between.
package ddp
