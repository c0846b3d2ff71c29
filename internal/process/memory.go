package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory returns how many bytes of memory processes can still have, and how many there are. They
// are those of the machine, or less if the control groups of this process have less.
//
// It reads the kernel's files below root, which is "/" except in tests. Source: proc(5), cgroups(7)
// and the kernel's admin-guide/cgroup-v2.rst.
func Memory(root string) (free, total int, err error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, 0, err
	}
	info := numbersIn(string(text))
	free, total = info["MemAvailable:"]<<10, info["MemTotal:"]<<10
	if total == 0 {
		return 0, 0, errors.New("/proc/meminfo has no MemTotal")
	}
	for _, g := range memoryGroups(root) {
		limit, used := numberIn(filepath.Join(g.dir, g.limit)), numberIn(filepath.Join(g.dir, g.used))
		if limit < 0 || used < 0 || limit >= total {
			continue
		}
		// The group's file cache counts as used, but can be given up.
		stat, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
		if err != nil {
			return 0, 0, err
		}
		used -= numbersIn(string(stat))[g.files]
		total, free = limit, max(0, min(free, limit-used))
	}
	return free, total, nil
}

// memoryGroup is a control group that may limit memory.
type memoryGroup struct{ dir, limit, used, files string }

// memoryGroups returns the groups of this process, the innermost first.
func memoryGroups(root string) (groups []memoryGroup) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil // a kernel without them
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var at string
		var g memoryGroup
		switch {
		case parts[0] == "0": // version 2
			at, g = "sys/fs/cgroup", memoryGroup{"", "memory.max", "memory.current", "inactive_file"}
		case strings.Contains(","+parts[1]+",", ",memory,"):
			at = "sys/fs/cgroup/memory"
			g = memoryGroup{"", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
		default:
			continue
		}
		// In a container the path may be that of the machine. Its parents count,
		// too, up to the root, which is the container's own group.
		for path := filepath.Clean("/" + parts[2]); ; path = filepath.Dir(path) {
			g.dir = filepath.Join(root, at, path)
			groups = append(groups, g)
			if path == "/" {
				break
			}
		}
	}
	return groups
}

// Peak returns the most memory that this process has had at one time, in bytes, or 0 if unknown.
// root is "/". Source: proc_pid_status(5), VmHWM.
func Peak(root string) int { return inStatus(root, "VmHWM:") }

// Resident returns the memory of this process, in bytes, or 0 if unknown. root is "/". Source:
// proc_pid_status(5), VmRSS.
func Resident(root string) int { return inStatus(root, "VmRSS:") }

func inStatus(root, field string) int {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/status"))
	if err != nil {
		return 0
	}
	return numbersIn(string(text))[field] << 10
}

// numberIn returns the number in a file, or -1 if there is none or no limit.
func numberIn(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n > math.MaxInt {
		return -1
	}
	return int(n)
}

// numbersIn reads lines of a name and a number.
func numbersIn(text string) map[string]int {
	t := map[string]int{}
	for line := range strings.Lines(text) {
		var name string
		var n int
		if _, err := fmt.Sscan(line, &name, &n); err == nil {
			t[name] = n
		}
	}
	return t
}
