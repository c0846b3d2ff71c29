package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lockstep/internal/process"
)

// Apart says in which namespaces a rank is apart from the mpirun that has started it, as in a
// container for each rank. The other ranks are then in others. Open MPI copies between processes of
// a node by their numbers, and shares memory by them. Source: namespaces(7).
type Apart struct {
	User    bool `json:"user"`    // no process may look into another
	Process bool `json:"process"` // numbers of processes mean nothing to others
}

// String names the namespaces, or returns "".
func (a Apart) String() string {
	var names []string
	if a.User {
		names = append(names, "user")
	}
	if a.Process {
		names = append(names, "process")
	}
	return strings.Join(names, " and ")
}

var mpiruns = []string{"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte"}

// FindApart looks for the mpirun above this process, a rank of Open MPI. It finds nothing if /proc
// does not say.
func FindApart() Apart { return findApart("/proc", os.Getpid(), os.Getppid()) }

func findApart(proc string, pid, parent int) (a Apart) {
	self, err := os.Readlink(filepath.Join(proc, "self"))
	if err != nil {
		return a
	}
	if self != strconv.Itoa(pid) { // proc is that of another namespace
		return Apart{Process: true}
	}
	for range 1 << 10 { // more ancestors than there are
		if parent == 0 {
			return Apart{Process: true}
		}
		dir := filepath.Join(proc, strconv.Itoa(parent))
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		name, rest, ok := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if err != nil || !ok || len(fields) < 2 {
			return Apart{}
		}
		_, name, _ = strings.Cut(name, "(")
		if slices.ContainsFunc(mpiruns, func(m string) bool { return name == m || strings.HasPrefix(name, m+".") }) {
			mine, err := os.Readlink(filepath.Join(proc, "self/ns/user"))
			theirs, e := os.Readlink(filepath.Join(dir, "ns/user"))
			return Apart{User: err == nil && (errors.Is(e, fs.ErrPermission) || e == nil && theirs != mine)}
		}
		if parent, err = strconv.Atoi(fields[1]); err != nil {
			return Apart{}
		}
	}
	return Apart{}
}

// Launched reports whether a launcher is above this process. Without one a rank in its environment
// is inherited.
func Launched() bool {
	names := append([]string{"hydra_pmi_proxy", "slurmstepd", "torchrun"}, mpiruns...)
	for p, ok := process.Of(os.Getppid()); ok; p, ok = process.Of(p.Parent) {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID))
		if own, _, _ := strings.Cut(strings.TrimSpace(string(name)), "."); err == nil && slices.Contains(names, own) {
			return true
		}
	}
	return false
}

// SetApart makes Open MPI, which has not started in this process, do without what fails
// between ranks that are apart. It changes no variable that is already set. It returns what it
// has set, or "".
func (j Job) SetApart(a Apart) (set string) {
	put := func(name, value string) {
		if os.Getenv(name) == "" && os.Setenv(name, value) == nil {
			set = fmt.Sprintf("%s=%s", name, value)
		}
	}
	five := j.Name == "openmpi5"
	switch {
	case j.Name != "openmpi4" && !five:
	case a.Process && five:
		put("OMPI_MCA_btl", "^sm")
	case a.Process:
		put("OMPI_MCA_btl", "^vader")
	case a.User && five:
		put("OMPI_MCA_smsc", "^cma")
	case a.User:
		put("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
	}
	return set
}
