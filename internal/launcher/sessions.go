package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// HoldSessions holds the folder in tmp of Open MPI 4's sessions on this host until release. It puts
// a folder of that name into it.
//
// mpirun makes the folder, and the last one that ends removes it. One that starts just then fails
// with "A call to mkdir was unable to create the desired directory ... File exists". Source: Open
// MPI 4.1, opal/util/os_dirpath.c, opal_os_dirpath_create and opal_os_dirpath_destroy.
func HoldSessions(tmp, name string) (release func()) {
	none := func() {}
	sessions, err := sessionsIn(tmp)
	if err != nil {
		return none // mpirun has no session of this name either
	}
	held := filepath.Join(sessions, name)
	for range 10 { // another may remove sessions before held is in it
		if err = os.MkdirAll(held, 0o700); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return none // mpirun says what is wrong with it
	}
	return func() {
		_ = os.Remove(held)
		_ = os.Remove(sessions) // where another job runs it is not empty, and stays
	}
}

// RemoveSession removes the folder of a session of the mpirun that was process pid, and crashed or
// was killed. Source: Open MPI 4.1, orte/util/session_dir.c.
func RemoveSession(tmp string, pid int) {
	if sessions, err := sessionsIn(tmp); err == nil {
		// Files of a session only take memory.
		_ = os.RemoveAll(filepath.Join(sessions, fmt.Sprintf("pid.%d", pid)))
		_ = os.Remove(sessions) // where another job runs it is not empty, and stays
	}
}

// sessionsIn returns the folder in tmp of Open MPI 4's sessions.
func sessionsIn(tmp string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	host, _, _ = strings.Cut(host, ".")
	return filepath.Join(tmp, fmt.Sprintf("ompi.%s.%d", host, os.Getuid())), nil
}
