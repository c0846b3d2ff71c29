// Package batch writes the files by which a batch system starts a job on several nodes.
package batch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Job describes the job of a file.
type Job struct {
	Name  string
	Why   string   // ranks and nodes in words
	Line  string   // what starts the ranks, as a shell takes it
	Words []string // the same, without a shell
	MPI   string   // openmpi4, openmpi5 or mpich

	Nodes, Ranks int
	PerNode      int // ranks on each node; 0 if nodes have unequal numbers
	GPUs         int // of each node
	CPUs         int // of each rank; 0 is whole nodes
	Parts        []Part
	Tasks        int // of an array; 0 is none

	// What says that the program saves and goes on from that, such as --checkpoint; "" if nothing
	// does, and the job would begin anew.
	Saves string

	Time      string        // for Slurm; "" is what the site gives
	Limit     time.Duration // the same for the others
	Partition string        // or queue
	Image     string        // of the container
}

// Part is nodes of one kind, of a job on nodes of several kinds.
type Part struct {
	Nodes      int
	PerNode    int // ranks on each of these nodes, and GPUs where the job has any
	Constraint string
}

// Parts reads NODES:RANKS[:CONSTRAINT],...
func Parts(text string) ([]Part, error) {
	var parts []Part
	for word := range strings.SplitSeq(text, ",") {
		fields := strings.SplitN(word, ":", 3)
		p := Part{}
		var err error
		if p.Nodes, err = strconv.Atoi(fields[0]); err == nil && len(fields) > 1 {
			p.PerNode, err = strconv.Atoi(fields[1])
		}
		if len(fields) == 3 {
			p.Constraint = fields[2]
		}
		plain := !strings.ContainsAny(p.Constraint, "\"'\\# \t\r\n")
		if err != nil || p.Nodes < 1 || p.PerNode < 1 || p.Nodes > most || p.PerNode > most || !plain {
			return nil, fmt.Errorf("%q: want NODES:RANKS or NODES:RANKS:CONSTRAINT, such as 2:8 or 2:8:h100", word)
		}
		parts = append(parts, p)
	}
	if len(parts) < 2 {
		return nil, errors.New("one kind of nodes: want several, such as 2:8,4:4, or --nodes")
	}
	return parts, nil
}

// most keeps products of numbers from overflowing.
const most = 1 << 15

// ReadTime reads a time as Slurm has it: minutes, minutes:seconds, hours:minutes:seconds,
// days-hours, and so on.
// Source: sbatch(1), --time.
func ReadTime(text string) (time.Duration, error) {
	days, rest, long := strings.Cut(text, "-")
	if !long {
		days, rest = "0", text
	}
	fields := strings.Split(rest, ":")
	units := []time.Duration{time.Minute, time.Second}
	if long || len(fields) == 3 {
		units = []time.Duration{time.Hour, time.Minute, time.Second}
	}
	bad := len(fields) > len(units)
	sum := time.Duration(0)
	for i, field := range append([]string{days}, fields...) {
		n, err := strconv.ParseUint(field, 10, 16)
		if bad = bad || err != nil; bad {
			break
		}
		unit := 24 * time.Hour
		if i > 0 {
			unit = units[i-1]
		}
		sum += time.Duration(n) * unit
	}
	if bad || sum == 0 {
		return 0, fmt.Errorf("--time %s: want minutes, hours:minutes:seconds, or days-hours", text)
	}
	return sum, nil
}

// clock returns the limit as hours, minutes and seconds.
func (j Job) clock() (hours, minutes, seconds int) {
	n := int(j.Limit.Seconds())
	return n / 3600, n / 60 % 60, n % 60
}

// again returns why a job that has failed may be started again, or may not.
func (j Job) again(where string) string {
	if j.Saves == "" {
		return "not again from the beginning: nothing says that the program saves (--checkpoint, --run-dir, or " +
			"--checkpoints of launch plan)"
	}
	return where + ": it goes on from what it has saved, since " + j.Saves + " says where"
}

// index stands in arguments of the program for the number of a task, from 0 on.
const index = "{}"

// line is j.Line, in which the shell puts the number of the task: words with braces are quoted.
func (j Job) line() string {
	if j.Tasks == 0 {
		return j.Line
	}
	return strings.ReplaceAll(j.Line, index, `'"$index"'`)
}

// Takes reports whether the words of a program have a place for the number of a task.
func Takes(prog []string) bool {
	return slices.ContainsFunc(prog, func(word string) bool { return strings.Contains(word, index) })
}

// script is a batch file in the making: a shell script that begins with lines for the batch system.
type script struct {
	strings.Builder
	mark string // begins each of them
}

// set adds a line for the batch system, and its reason.
func (s *script) set(option, why string) { fmt.Fprintf(s, "%s %-28s # %s\n", s.mark, option, why) }

// note adds a line for the batch system, behind its reason: PBS and LSF take what follows for a
// part of it.
func (s *script) note(option, why string) { fmt.Fprintf(s, "# %s\n%s %s\n", why, s.mark, option) }
