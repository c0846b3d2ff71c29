package plan

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"lockstep/internal/process"
)

// overseer ends a launcher on this host that goes on after its ranks. Open MPI's mpirun does so if
// a rank dies while it starts, if its folder is full, and as long as a process that a rank has left
// behind holds its output.
type overseer struct {
	name     string // of the launcher
	pid      int    // of its process
	beside   int    // another child of this process, that is to stay
	lockstep bool   // its ranks say when all have joined
	limit    int    // looks until they have; then they never will

	patience int   // looks that the launcher has after the last rank has ended
	seen     []int // ranks
	living   []int // those of them that live
	joined   bool
	// Looks since the start, since a rank has ended before all had joined, and
	// since the last one has ended.
	waited, lost, alone int
}

const (
	lookEvery = time.Second
	// How many looks the launcher has after the last rank has ended, after one that had
	// not joined, and after SIGTERM.
	endLooks  = 10
	lostLooks = 15
	termLooks = 5
	// What ranks have beyond their own limit, to say themselves that the start has not ended.
	beyondLooks = 30
)

// oversee watches the processes of a job on this host.
func oversee(name string, pid, beside int, j job) *overseer {
	o := &overseer{name: name, pid: pid, beside: beside, lockstep: UsesLockstep(j.prog[0])}
	limit := defaultTimeout
	if d, err := time.ParseDuration(flagOf(j.prog[1:], "--timeout")); err == nil {
		limit = d
	}
	o.limit = int(max(limit, leastStart)/lookEvery) + beyondLooks
	o.patience = endLooks + 2*j.grace
	return o
}

// The limits of a Lockstep program's start: without --timeout, and where a GPU may have to start.
const (
	defaultTimeout = 5 * time.Minute
	leastStart     = time.Minute
)

// watch returns when the launcher has ended, and why it had to be ended, or "" if it
// ended by itself.
func (o *overseer) watch(ended <-chan struct{}) (why string) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for looks := 0; ; {
		select {
		case <-ended:
			return why
		case <-tick.C:
		}
		switch {
		case why == "":
			if why = o.look(); why != "" {
				fmt.Fprintf(os.Stderr, "launch: %s: %s is ended\n", why, o.name)
				_ = syscall.Kill(o.pid, syscall.SIGTERM)
			}
		case looks < termLooks:
			looks++
		default:
			process.KillTree(o.pid)
		}
	}
}

// look says why the launcher must be ended, or "". It counts looks, since time goes on while this
// process is stopped.
func (o *overseer) look() (why string) {
	o.living = slices.DeleteFunc(o.living, func(pid int) bool { _, runs := process.Of(pid); return !runs })
	if !o.joined || len(o.living) == 0 { // a look at all processes
		for _, p := range ranksOf(o.pid) {
			if !slices.Contains(o.living, p.PID) {
				o.living = append(o.living, p.PID)
			}
			if !slices.Contains(o.seen, p.PID) {
				o.seen = append(o.seen, p.PID)
			}
		}
	}
	if len(o.living) == 0 && o.haveEnded() {
		for _, p := range o.left() {
			process.Kill(append(process.Below(p.PID), p), syscall.SIGKILL)
		}
		if o.alone++; o.alone > o.patience {
			return fmt.Sprintf("the last rank has ended %v ago", time.Duration(o.patience)*lookEvery)
		}
		return ""
	}
	o.alone = 0
	if o.joined = o.joined || len(o.living) > 0 && (!o.lockstep || o.haveJoined()); o.joined {
		return ""
	}
	if o.waited++; o.waited > o.limit {
		return fmt.Sprintf("no rank has joined the others in %v", time.Duration(o.limit)*lookEvery)
	}
	if len(o.living) < len(o.seen) {
		o.lost++
	}
	if o.lost > lostLooks {
		return fmt.Sprintf("a rank has ended before the ranks had joined, %v ago", lostLooks*lookEvery)
	}
	return ""
}

// haveJoined reports whether a rank answers launch status, which it does once it has joined.
func (o *overseer) haveJoined() bool {
	answering, _ := process.ListeningRanks() // without it nothing is known of the ranks, and o.limit holds
	return slices.ContainsFunc(answering, func(pid int) bool { return slices.Contains(o.living, pid) })
}

// haveEnded reports whether there were ranks, and none lives.
func (o *overseer) haveEnded() bool {
	return len(o.seen) > 0 || slices.ContainsFunc(o.left(), func(p process.Process) bool { return isRank(p.PID) })
}

// left returns what ranks have left behind: the kernel has made it a child of this process. Each
// has the variables of its rank, unless it has removed them.
func (o *overseer) left() (left []process.Process) {
	self := os.Getpid()
	for _, p := range process.Running() {
		if p.Parent == self && p.PID != o.pid && p.PID != o.beside {
			left = append(left, p)
		}
	}
	return left
}
