package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/internal/readable"
)

// Open MPI needs this room to start: two files of 4 MiB, and small ones, in its folder, where
// PMIx keeps what the ranks say about themselves. Without it mpirun prints dozens of lines and
// waits for ever.
//
// Source: openpmix, src/mca/common/dstore/dstore_base.c, ESH_INIT_META_SEG and ESH_INIT_DATA_SEG.
const (
	leastTemp = 9 << 20
	leastFile = 4200 << 10
)

// mostName is how many characters the name of a host may have. mpirun writes it with marks and a
// number of up to 7 digits into 64 bytes, and ends with "stack smashing detected" if there is no
// room. From 57 on any number is too long.
const mostName = 54

// CheckName says why Open MPI's mpirun cannot start on a host of this name, and what to do, or "".
func CheckName(host string) (what, do string) {
	host, _, _ = strings.Cut(host, ".")
	switch {
	case len(host) > mostName:
		return fmt.Sprintf("the host name has %d characters, and mpirun crashes from %d on", len(host), mostName+1),
			"hostname SHORTER, or docker run --hostname SHORTER"
	case strings.Trim(host, readable.Letters+"-") != "":
		return fmt.Sprintf("the host name %q has more than letters, digits and -, and mpirun refuses it", host),
			"hostname ANOTHER, or docker run --hostname ANOTHER"
	}
	return "", ""
}

// Temp returns the folder for the files of Open MPI.
func Temp(getenv func(string) string) string {
	// The first is a rank's.
	for _, name := range []string{"PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"} {
		if dir := getenv(name); dir != "" {
			return dir
		}
	}
	return "/tmp"
}

// TempFree returns how many bytes are free for files of Open MPI in a folder. It makes the
// folder if needed.
func TempFree(dir string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	for ; errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir; err = unix.Statfs(dir, &s) {
		dir = filepath.Dir(dir)
	}
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	return int64(s.Bavail) * s.Bsize, err
}

// LimitOf returns a limit of this process, such as unix.RLIMIT_FSIZE, or -1 for none.
func LimitOf(resource int) int64 {
	var l unix.Rlimit
	if unix.Getrlimit(resource, &l) != nil || l.Cur > 1<<62 {
		return -1
	}
	return int64(l.Cur)
}

// CheckFiles says why Open MPI cannot start a number of ranks on a host where a process may have so
// many files open, and what to do, or "". With fewer mpirun hangs in a handler of SIGSEGV, and a
// program without it prints pages.
func CheckFiles(limit uint64, ranks int) (what, do string) {
	const own, each = 32, 4
	if need := uint64(own + each*ranks); limit < need {
		return fmt.Sprintf("processes may have %d files open (ulimit -n), and Open MPI needs %d to start %d on a host",
			limit, need, ranks), "ulimit -n 65536"
	}
	return "", ""
}

// CheckTemp says why Open MPI cannot start with its folder and a limit on the size of files, and
// what to do, or "".
func CheckTemp(dir string, free int64, cannot error, limit int64) (what, do string) {
	const elsewhere = "set TMPDIR to another folder"
	switch {
	case cannot != nil:
		return fmt.Sprintf("TMPDIR: Open MPI cannot write to %s (%v)", dir, cannot), elsewhere
	case free < leastTemp:
		return fmt.Sprintf("TMPDIR: %s has %.1f MiB free, and Open MPI needs %d to start",
			dir, float64(free)/(1<<20), leastTemp>>20), "make room there, or " + elsewhere
	case limit >= 0 && limit < leastFile:
		return fmt.Sprintf("files may have %d KiB (ulimit -f), and Open MPI needs %d to start",
			limit>>10, leastFile>>10), "ulimit -f unlimited"
	}
	return "", ""
}

// CheckRoom says on one line why Open MPI cannot start here. PMIx may have been told to keep
// nothing in files.
func CheckRoom(getenv func(string) string) error {
	if j := Detect(getenv); j.Name == "none" || j.Name == "slurm" { // there is no mpirun yet
		host, _ := os.Hostname() // without one Open MPI has none either
		if what, do := CheckName(host); what != "" {
			return fmt.Errorf("%s: %s", what, do)
		}
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		if what, do := CheckFiles(files.Cur, 1); what != "" {
			return fmt.Errorf("%s: %s", what, do)
		}
	}
	if gds := getenv("PMIX_MCA_gds"); gds != "" && !strings.Contains(gds, "ds") {
		return nil
	}
	dir := Temp(getenv)
	free, err := TempFree(dir)
	if what, do := CheckTemp(dir, free, err, LimitOf(unix.RLIMIT_FSIZE)); what != "" {
		return fmt.Errorf("%s: %s", what, do)
	}
	return nil
}

// CheckLibrary refuses an MPI library whose results are wrong, by its own version text.
func CheckLibrary(version string) error {
	if strings.HasPrefix(version, "MPICH ") {
		return fmt.Errorf("this program is built with %s, which gives wrong minima and maxima of unsigned integers: "+
			"build it with Open MPI", version)
	}
	return nil
}
