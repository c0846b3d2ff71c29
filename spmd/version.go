package spmd

import "lockstep/internal/version"

// Version is the semantic version of Lockstep.
const Version = version.Number
