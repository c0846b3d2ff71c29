package process

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

type Process struct{ PID, Parent, Group int }

// Of returns a process that has not ended.
func Of(pid int) (p Process, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, false
	}
	var state string
	after := bytes.LastIndexByte(stat, ')') // the name, in brackets, may have any character
	p.PID = pid
	_, err = fmt.Sscan(string(stat[after+1:]), &state, &p.Parent, &p.Group)
	return p, err == nil && state != "Z" && state != "X"
}

// Running returns the running processes, without those that end meanwhile.
func Running() (all []Process) {
	for _, pid := range PIDs() {
		if p, ok := Of(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

// Below returns the running processes below pid, parents first.
func Below(pid int) (all []Process) {
	children := map[int][]Process{}
	for _, p := range Running() {
		children[p.Parent] = append(children[p.Parent], p)
	}
	below := []int{pid}
	for len(below) > 0 {
		next := children[below[0]]
		below = below[1:]
		for _, p := range next {
			all = append(all, p)
			below = append(below, p.PID)
		}
	}
	return all
}

// Kill signals processes. It signals a leader of a process group with its group, as mpirun does: a
// script's commands are in it.
func Kill(processes []Process, sig syscall.Signal) {
	for _, p := range processes {
		pid := p.PID
		if p.Group == pid {
			pid = -pid
		}
		_ = syscall.Kill(pid, sig)
	}
}

// KillTree kills a process and all below it.
func KillTree(pid int) { Kill(append(Below(pid), Process{PID: pid}), syscall.SIGKILL) }
