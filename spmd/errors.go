package spmd

import "lockstep/spmd/internal/verify"

// ErrContract is what a collective returns on every rank when the ranks called
// different ones, and with --check what a Recv returns when the message is another than
// it expects.
var ErrContract = verify.ErrMismatch
