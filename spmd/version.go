package spmd

import "lockstep/internal/process"

// Version is the semantic version of Lockstep.
const Version = process.Version
