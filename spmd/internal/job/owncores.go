package job

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/internal/readable"
)

// BindTo is an environment variable. It says where ranks that are goroutines of a process compute.
// It has two words of mpirun's --bind-to: core, the default, and none.
const BindTo = "LOCKSTEP_BIND_TO"

// CheckBindTo refuses words that BindTo does not have.
func CheckBindTo() error {
	switch word := os.Getenv(BindTo); word {
	case "", "core", "none":
		return nil
	default:
		return fmt.Errorf("%s=%s: want core or none", BindTo, word)
	}
}

// OwnCores returns the cores for one of the ranks of this process, also as a list such as "0-15":
// an equal part of those that are online. No two ranks have a core in common. It returns "" unless
// this process may use all online cores, each rank gets one, and BindTo is not none.
func OwnCores(sys string, rank, ranks int) (list string, own unix.CPUSet) {
	_, online := readCores(sys, onlineCores)
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil || mine != online || os.Getenv(BindTo) == "none" {
		return "", own // or the launcher has bound this process
	}
	if ranks < 2 || min(coresOfGo, mine.Count()) < ranks {
		return "", own
	}
	part := partOfCores(&mine, rank, ranks)
	for _, core := range part {
		own.Set(core)
	}
	return readable.Ranges(part, ","), own
}

// partOfCores returns a rank's part of some cores.
func partOfCores(of *unix.CPUSet, rank, ranks int) []int {
	var cores []int
	for i := range 64 * len(of) {
		if of.IsSet(i) {
			cores = append(cores, i)
		}
	}
	return cores[rank*len(cores)/ranks : (rank+1)*len(cores)/ranks]
}

// NudgeThread moves the calling thread to one of some cores if it is on none of them. The thread
// stays free to go elsewhere, and so are the threads that it starts.
func NudgeThread(to *unix.CPUSet) error {
	runtime.LockOSThread() // all calls are for one thread
	defer runtime.UnlockOSThread()
	var core uint32
	if _, _, err := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&core)), 0, 0); err == 0 &&
		to.IsSet(int(core)) {
		return nil
	}
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	if err := unix.SchedSetaffinity(0, to); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	if err := unix.SchedSetaffinity(0, &before); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	return nil
}
