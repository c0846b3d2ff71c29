package spmd

import (
	"lockstep/internal/process"
	"lockstep/spmd/internal/world"
)

// Version is the semantic version of Lockstep.
const Version = process.Version

// Libraries returns the versions of the libraries that are found here, by name, or why one is not.
func Libraries() map[string]string { return world.Libraries() }
