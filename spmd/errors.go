package spmd

import "lockstep/spmd/internal/verify"

// ErrContract is the error of a collective, on every rank, if the ranks called different ones. With
// --check it is also the error of a Recv that expects another message.
var ErrContract = verify.ErrMismatch
