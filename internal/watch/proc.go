package watch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

var procStates = map[byte]string{
	'R': "running", 'S': "sleeping", 'D': "in the kernel, uninterruptible", 'T': "stopped", 't': "stopped by a debugger",
	'Z': "dead, not yet reaped", 'X': "dead", 'x': "dead", 'I': "idle", 'P': "parked", 'W': "waking",
}

// procState returns the state of a process of this node, such as "T (stopped)".
func procState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return "no such process"
	}
	if err != nil {
		return err.Error()
	}
	return parseStat(stat)
}

// parseStat returns the state out of /proc/PID/stat: the letter behind the command's name, which may hold anything.
func parseStat(stat []byte) string {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return "unknown"
	}
	letter := stat[i+2]
	if s, ok := procStates[letter]; ok {
		return fmt.Sprintf("%c (%s)", letter, s)
	}
	return fmt.Sprintf("%q", letter)
}
