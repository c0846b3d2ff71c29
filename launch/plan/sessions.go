package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// keepSessions holds the folder in which Open MPI 4 has its sessions on this host, until release. mpirun makes that folder
// where it is not there, and the last that ends removes it: one that starts just then fails with "A call to mkdir was unable
// to create the desired directory ... File exists". Source: Open MPI 4.1, opal/util/os_dirpath.c, opal_os_dirpath_create.
func keepSessions() (release func()) {
	none := func() {}
	host, err := os.Hostname()
	if err != nil {
		return none // mpirun has no session of this name either
	}
	host, _, _ = strings.Cut(host, ".")
	sessions := filepath.Join(os.TempDir(), fmt.Sprintf("ompi.%s.%d", host, os.Getuid()))
	kept := filepath.Join(sessions, fmt.Sprintf("launch.%d", os.Getpid()))
	for range 10 { // another may remove sessions before kept is in it
		if err = os.MkdirAll(kept, 0o700); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return none // mpirun says what is wrong with it
	}
	return func() {
		_ = os.Remove(kept)
		_ = os.Remove(sessions) // where another job runs it is not empty, and stays
	}
}
