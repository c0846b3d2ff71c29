package spmd

import "lockstep/spmd/internal/verify"

// ErrContract is what a collective returns on every rank when the ranks called
// different ones, and with --check what a Recv returns when the message is another than
// it expects.
var ErrContract = verify.ErrMismatch

// ErrDiffer is what a collective of --check both returns, on every rank, when NCCL and
// MPI have come to different results; a message, on the rank that has received it.
var ErrDiffer = verify.ErrDiffer
