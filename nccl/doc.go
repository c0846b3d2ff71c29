// Package nccl is NCCL, found when the program runs: collectives over the GPUs of many ranks,
// enqueued on streams.
//
// Load says whether there is an NCCL, 2.18 or later. One rank makes an ID, every rank hands it to
// Init, and the Comm that comes back carries the collectives. Every rank of a Comm must issue the
// same collectives in the same order.
//
// A collective only enqueues. Its input must be valid in its stream. Its result is valid for later
// work in the same stream, and for the host after that stream was synchronised.
//
// Destination comes first. A length n counts elements; addresses are device memory. Lengths of zero
// are legal and move nothing. Nothing here looks into the memory: a wrong address is found by the
// GPU.
//
// One goroutine at a time uses a Comm, on whatever thread that runs. Every call makes the device's
// context current in C first. A group, whose state NCCL keeps for each thread (group.cc,
// ncclGroupDepth), is one call from Go to C. Abort and AsyncError alone may come from another
// goroutine while a call is under way.
//
// A failing status comes back as a *ccall.Error that wraps a Result: errors.Is(err,
// nccl.ErrSystem). A call that the NCCL at hand is too old for gives a *VersionError, unless there
// is another way.
//
// Facts about NCCL in the comments of this package were read in its source, by file and version.
package nccl
