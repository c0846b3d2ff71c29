package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// PIDs returns all processes of the machine, or none without /proc.
func PIDs() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Having returns the processes of a list that were started with a variable in their environment, as
// in "NAME=VALUE". Processes that have ended, or are another user's, have none. Source:
// proc_pid_environ(5).
func Having(pids []int, variable string) (having []int) {
	first := []byte(variable + "\x00")
	later := append([]byte{0}, first...)
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && (bytes.HasPrefix(b, first) || bytes.Contains(b, later)) {
			having = append(having, pid)
		}
	}
	return having
}
