package plan

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
)

// batchFlags adds the flags that only a file for sbatch has.
func (o *options) batchFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.array, "array", 0,
		"Slurm: a job for each number from 0 on, this many times; {} in the program's arguments is the number")
	fs.StringVar(&o.het, "het", "",
		"Slurm: nodes of several kinds in one job, as NODES:RANKS[:CONSTRAINT],... such as 2:8:h100,4:4")
	cli.Group(fs, "Slurm", "cpus-per-task", "time", "partition", "checkpoints", "array", "het")
}

// part is nodes of one kind, of a job on nodes of several kinds.
type part struct {
	nodes      int
	perNode    int // ranks on each of these nodes, and GPUs where the job has any; 0 if they are unequal
	constraint string
}

// readParts reads NODES:RANKS[:CONSTRAINT],...
func readParts(text string) ([]part, error) {
	var parts []part
	for word := range strings.SplitSeq(text, ",") {
		fields := strings.SplitN(word, ":", 3)
		p := part{}
		var err error
		if p.nodes, err = strconv.Atoi(fields[0]); err == nil && len(fields) > 1 {
			p.perNode, err = strconv.Atoi(fields[1])
		}
		if len(fields) == 3 {
			p.constraint = fields[2]
		}
		plain := !strings.ContainsAny(p.constraint, "\"'\\# \t\r\n")
		if err != nil || p.nodes < 1 || p.perNode < 1 || p.nodes > mostOfPart || p.perNode > mostOfPart || !plain {
			return nil, fmt.Errorf("%q: want NODES:RANKS or NODES:RANKS:CONSTRAINT, such as 2:8 or 2:8:h100", word)
		}
		parts = append(parts, p)
	}
	if len(parts) < 2 {
		return nil, errors.New("one kind of nodes: want several, such as 2:8,4:4, or --nodes")
	}
	return parts, nil
}

// mostOfPart keeps products of numbers from overflowing.
const mostOfPart = 1 << 15

// index stands in arguments of the program for the number of a task, from 0 on.
const index = "{}"

// inFile settles what only a batch file has. Errors are cli.Usage.
func (o *options) inFile(j *job) error {
	counted := func(word string) bool { return strings.Contains(word, index) }
	switch {
	case (o.array != 0 || o.het != "") && o.launcher != "slurm":
		return usage("--array and --het are of files for sbatch: give --launcher slurm with them")
	case o.array != 0 && (o.array < 2 || o.array > maxRanks):
		return usage("--array %d: give a number from 2 to %d", o.array, maxRanks)
	case o.array != 0 && !slices.ContainsFunc(j.prog, counted):
		return usage("--array: no argument of the program has {} in it, so that all jobs would be the same")
	case o.het != "" && (o.array != 0 || o.np+o.nodes+o.perNode != 0 || len(j.hosts) > 0):
		return usage("--het does not go with --array, -np, --nodes, --ranks-per-node and hosts: " +
			"it says how many of each")
	case o.het == "":
		return nil
	}
	var err error
	if j.parts, err = readParts(o.het); err != nil {
		return usage("--het %w", err)
	}
	j.nodes, j.ranks, j.most, j.even, j.here, j.dense = 0, 0, 0, false, false, o.oversubscribe
	for _, p := range j.parts {
		j.nodes, j.ranks, j.most = j.nodes+p.nodes, j.ranks+p.nodes*p.perNode, max(j.most, p.perNode)
	}
	return nil
}

// file returns the file for sbatch if o names Slurm, or sbatch is here; otherwise "".
func (o *options) file(lines []Line, j job) string {
	if o.launcher == "slurm" || o.launcher == "all" || o.launcher == "auto" && found("sbatch") {
		return j.sbatch(lines[len(lines)-1]) // Slurm's is the last
	}
	return ""
}

// script is a batch file in the making.
type script struct{ strings.Builder }

// set adds a line for sbatch, and its reason.
func (s *script) set(option, why string) { fmt.Fprintf(s, "#SBATCH %-28s # %s\n", option, why) }

// sbatch returns a file for sbatch. A program that saves goes on after preemption, and again when
// its time is up.
func (j job) sbatch(l Line) string {
	s := script{}
	s.WriteString("#!/bin/bash\n")
	s.set("--job-name="+quote([]string{filepath.Base(j.prog[0])}), "what squeue shows")
	line := l.String()
	if j.array > 0 {
		s.set(fmt.Sprintf("--array=0-%d", j.array-1), "a job for each number; 0-99%4 runs four at a time")
		s.set("--output=%x-%A_%a.out", "a log for each, in the folder where sbatch is typed")
		line = strings.ReplaceAll(line, index, `'"$index"'`) // words with braces are quoted
	} else {
		s.set("--output=%x-%j.out", "the log, in the folder where sbatch is typed")
	}
	if j.saves != "" {
		s.set("--open-mode=append", "the same log goes on after a requeue")
	}
	if len(j.parts) == 0 {
		all := part{nodes: j.nodes}
		if j.even {
			all.perNode = j.most
		}
		s.resources(j, all, j.why())
	}
	if j.saves != "" {
		s.set("--requeue", "the job may be put back into the queue: it goes on from what it has saved, since "+
			j.saves+" says where")
		s.set("--signal=B:USR1@120", "two minutes before the end this script is told")
	} else {
		s.set("--no-requeue", "not again from the beginning: nothing says that the program saves (--checkpoint, "+
			"--run-dir, or --checkpoints of launch plan)")
	}
	for i, p := range j.parts {
		if i > 0 {
			s.WriteString("#SBATCH hetjob\n")
		}
		s.resources(j, p, fmt.Sprintf("nodes of kind %d: %d ranks on each", i, p.perNode))
	}
	if j.array > 0 {
		s.WriteString("\nindex=$SLURM_ARRAY_TASK_ID\n")
	}
	if j.saves == "" {
		fmt.Fprintf(&s, "\nexec %s\n", line)
		return s.String()
	}
	s.WriteString(`
# A program that listens (spmd.Preempted; train by itself) saves, ends with status 0, and goes on after the requeue.
trap 'again=yes; [ -z "$step" ] || kill -USR1 "$step"' USR1

`)
	fmt.Fprintf(&s, "%s &\nstep=$!\n", line)
	s.WriteString(`[ -z "$again" ] || kill -USR1 "$step" # it came before there was a step

wait "$step"
while kill -0 "$step" 2>/dev/null; do # a signal ends wait early
	wait "$step"
done
wait "$step" # again: it may have ended between the signal and here, and bash keeps its status
status=$?
[ "$status" != 0 ] || [ -z "$again" ] || scontrol requeue "$SLURM_JOB_ID"
exit "$status"
`)
	return s.String()
}

// resources adds what nodes of one kind are asked for.
func (s *script) resources(j job, p part, why string) {
	s.set(fmt.Sprintf("--nodes=%d", p.nodes), why)
	if p.perNode > 0 {
		s.set(fmt.Sprintf("--ntasks-per-node=%d", p.perNode), "ranks on each node")
	} else {
		s.set(fmt.Sprintf("--ntasks=%d", j.ranks), "ranks")
	}
	gpus := j.gpus
	if gpus > 0 && len(j.parts) > 0 {
		gpus = p.perNode
	}
	if gpus > 0 {
		s.set(fmt.Sprintf("--gpus-per-node=%d", gpus),
			"all of them visible to each rank of the node: not --gpus-per-task")
	}
	if j.cpus > 0 {
		s.set(fmt.Sprintf("--cpus-per-task=%d", j.cpus), "cores for the threads of a rank")
	} else {
		s.set("--exclusive", "whole nodes: a rank's threads use all cores")
	}
	if p.constraint != "" {
		s.set("--constraint="+p.constraint, "a feature of these nodes, as sinfo -o %f shows it")
	}
	if j.time != "" {
		s.set("--time="+j.time, "the job is ended then; a short time starts sooner")
	}
	if j.partition != "" {
		s.set("--partition="+j.partition, "as asked for")
	}
}

// together returns the option by which srun starts the ranks of all parts of a job as one world.
func together(parts []part) string {
	groups := make([]string, len(parts))
	for i := range groups {
		groups[i] = strconv.Itoa(i)
	}
	return "--het-group=" + strings.Join(groups, ",")
}
