package nccl

import (
	"fmt"
	"strings"
	"sync"

	"lockstep/internal/ccall"
)

// The oldest NCCL that will do: ncclCommSplit came with it.
const oldest = 21800

var library struct {
	mu      sync.Mutex
	tried   bool
	err     error
	version int
	path    string
}

// Load finds NCCL (libnccl.so.2, then libnccl.so, in the loader's folders) and its entry points. It
// works once; later calls return the same. The error says whether there is no library, which
// symbols it lacks, or that it is older than 2.18, with both versions.
//
// Init, NewID and MemAlloc load the library themselves. Source: nccl.h, ncclGetVersion.
func Load() error {
	library.mu.Lock()
	defer library.mu.Unlock()
	if !library.tried {
		library.tried = true
		library.err = load()
	}
	return library.err
}

func load() error {
	path, version, status, err := sysOpen("libnccl.so.2", "libnccl.so")
	if err != nil {
		return fmt.Errorf("nccl: NCCL is not to be found (%s): install libnccl2, or add its folder to LD_LIBRARY_PATH",
			strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if status != statusOK {
		return &ccall.Error{Op: "ncclGetVersion", Rank: -1, At: ccall.At(), Err: Result(status)}
	}
	if version < oldest {
		return fmt.Errorf("nccl: %s is NCCL %s, which is too old: %s is needed", path, versionString(version), "2.18")
	}
	if err := sysBind(path); err != nil {
		return fmt.Errorf("nccl: %w", err)
	}
	library.version, library.path = version, path
	return nil
}

// Version returns the version of the library as one number, such as 22803 for 2.28.3, or 0 before a
// successful Load.
func Version() int { return library.version }

// VersionString returns the version of the library as text, such as "2.28.3", or "" before a
// successful Load.
func VersionString() string {
	if library.version == 0 {
		return ""
	}
	return versionString(library.version)
}

// Path returns the file that the library was loaded from, or "" before a successful Load.
func Path() string { return library.path }

// needs returns a VersionError if the library at hand lacks what, which came with version need.
func needs(what string, need int, has bool) error {
	if has {
		return nil
	}
	return &VersionError{What: what, Need: need, Have: library.version}
}

// ID names a communicator before it exists: one rank makes it, and all the others get its bytes.
type ID [128]byte

// NewID returns a new ID. The process that makes it listens for the other ranks, so it is to be one
// of them. Source: nccl.h, ncclGetUniqueId.
func NewID() (ID, error) {
	var id ID
	if err := Load(); err != nil {
		return id, err
	}
	if status := sysID(&id); status != statusOK {
		return id, statusError(new(link), -1, "ncclGetUniqueId", status, "")
	}
	return id, nil
}
