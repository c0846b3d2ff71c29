package batch

import (
	"fmt"
	"strings"
)

// Slurm returns a file for sbatch. A program that saves goes on after preemption,
// and again when its time is up.
func Slurm(j Job) string {
	s := script{mark: "#SBATCH"}
	s.WriteString("#!/bin/bash\n")
	s.set("--job-name="+j.Name, "what squeue shows")
	if j.Tasks > 0 {
		s.set(fmt.Sprintf("--array=0-%d", j.Tasks-1), "a job for each number; 0-99%4 runs four at a time")
		s.set("--output=%x-%A_%a.out", "a log for each, in the folder where sbatch is typed")
	} else {
		s.set("--output=%x-%j.out", "the log, in the folder where sbatch is typed")
	}
	if j.Saves != "" {
		s.set("--open-mode=append", "the same log goes on after a requeue")
	}
	if len(j.Parts) == 0 {
		s.resources(j, Part{Nodes: j.Nodes, PerNode: j.PerNode}, j.Why)
	}
	if j.Saves != "" {
		s.set("--requeue", j.again("the job may be put back into the queue"))
		s.set("--signal=B:USR1@120", "two minutes before the end this script is told")
	} else {
		s.set("--no-requeue", j.again(""))
	}
	for i, p := range j.Parts {
		if i > 0 {
			s.WriteString("#SBATCH hetjob\n")
		}
		s.resources(j, p, fmt.Sprintf("nodes of kind %d: %d ranks on each", i, p.PerNode))
	}
	if j.Tasks > 0 {
		s.WriteString("\nindex=$SLURM_ARRAY_TASK_ID\n")
	}
	if j.Saves == "" {
		fmt.Fprintf(&s, "\nexec %s\n", j.line())
		return s.String()
	}
	s.WriteString(`
# A program that listens (spmd.Preempted; train by itself) saves, ends with status 0, and goes on after the requeue.
trap 'again=yes; [ -z "$step" ] || kill -USR1 "$step"' USR1

`)
	fmt.Fprintf(&s, "%s &\nstep=$!\n", j.line())
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
func (s *script) resources(j Job, p Part, why string) {
	s.set(fmt.Sprintf("--nodes=%d", p.Nodes), why)
	if p.PerNode > 0 {
		s.set(fmt.Sprintf("--ntasks-per-node=%d", p.PerNode), "ranks on each node")
	} else {
		s.set(fmt.Sprintf("--ntasks=%d", j.Ranks), "ranks")
	}
	gpus := j.GPUs
	if gpus > 0 && len(j.Parts) > 0 {
		gpus = p.PerNode
	}
	if gpus > 0 {
		s.set(fmt.Sprintf("--gpus-per-node=%d", gpus),
			"all of them visible to each rank of the node: not --gpus-per-task")
	}
	if j.CPUs > 0 {
		s.set(fmt.Sprintf("--cpus-per-task=%d", j.CPUs), "cores for the threads of a rank")
	} else {
		s.set("--exclusive", "whole nodes: a rank's threads use all cores")
	}
	if p.Constraint != "" {
		s.set("--constraint="+p.Constraint, "a feature of these nodes, as sinfo -o %f shows it")
	}
	if j.Time != "" {
		s.set("--time="+j.Time, "the job is ended then; a short time starts sooner")
	}
	if j.Partition != "" {
		s.set("--partition="+j.Partition, "as asked for")
	}
}

// Together returns the option by which srun starts the ranks of all parts of a job as one world.
func Together(parts []Part) string {
	groups := make([]string, len(parts))
	for i := range groups {
		groups[i] = fmt.Sprint(i)
	}
	return "--het-group=" + strings.Join(groups, ",")
}
