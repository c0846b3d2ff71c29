// Package process tells of this process and of others: which version it was built from, what it was
// started with that Go's runtime hides, what /proc says, and what a rank answers to a person who
// asks it on its node.
//
// A signal that was ignored when the process started stays ignored, as SIGHUP does under nohup, and
// a standard stream that was closed fails. Importing the package is enough for both.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Age returns how long ago this process started, to a hundredth of a second, or 0 if unknown.
func Age() time.Duration {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	var now unix.Timespec
	start, ok := StartTime(string(stat))
	if !ok || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	return max(0, time.Duration(now.Nano())-start)
}

// StartTime returns when a process started, counted from the boot, from /proc/PID/stat. Source:
// proc(5), field starttime.
func StartTime(stat string) (time.Duration, bool) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
	// Field 22 is the 20th behind the name in parentheses, which may hold anything.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, false
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil || ticks > uint64(math.MaxInt64/tick) {
		return 0, false
	}
	return time.Duration(ticks) * tick, true
}

var states = map[byte]string{
	'R': "running", 'S': "sleeping", 'D': "in the kernel, uninterruptible", 'T': "stopped",
	't': "stopped by a debugger",
	'Z': "dead, not yet reaped", 'X': "dead", 'x': "dead", 'I': "idle", 'P': "parked", 'W': "waking",
}

// State returns the state of a process of this node, such as "T (stopped)".
func State(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return "no such process"
	}
	if err != nil {
		return err.Error()
	}
	return stateOf(stat)
}

// stateOf returns the state from /proc/PID/stat: the letter behind the command's name, which may
// hold anything.
func stateOf(stat []byte) string {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return "unknown"
	}
	letter := stat[i+2]
	if s, ok := states[letter]; ok {
		return fmt.Sprintf("%c (%s)", letter, s)
	}
	return fmt.Sprintf("%q", letter)
}
