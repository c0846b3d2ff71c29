package batch

import "fmt"

// PBS returns a file for the qsub of OpenPBS and PBS Professional.
// Source: OpenPBS, qsub(1B) and pbs_resources(7B).
func PBS(j Job) string {
	s := script{mark: "#PBS"}
	s.WriteString("#!/bin/bash\n")
	s.note("-N "+j.Name, "what qstat shows")
	chunk := fmt.Sprintf("-l select=%d:ncpus=%d:mpiprocs=%d", j.Nodes, j.PerNode*max(1, j.CPUs), j.PerNode)
	if j.GPUs > 0 {
		chunk += fmt.Sprintf(":ngpus=%d", j.GPUs)
	}
	s.note(chunk, j.Why)
	if j.CPUs > 0 {
		s.note("-l place=scatter", "each chunk on a node of its own")
	} else {
		s.note("-l place=scatter:excl", "each chunk on a whole node: a rank's threads use all cores")
	}
	if j.Limit > 0 {
		h, m, sec := j.clock()
		s.note(fmt.Sprintf("-l walltime=%d:%02d:%02d", h, m, sec), "the job is ended then")
	}
	if j.Partition != "" {
		s.note("-q "+j.Partition, "the queue that was asked for")
	}
	if j.Tasks > 0 {
		s.note(fmt.Sprintf("-J 0-%d", j.Tasks-1), "a job for each number")
	}
	s.note("-j oe", "one log, in the folder where qsub is typed")
	s.note("-V", "the variables that are set where qsub is typed")
	rerun := "-r n"
	if j.Saves != "" {
		rerun = "-r y"
	}
	s.note(rerun, j.again("started again where a node fails"))
	s.WriteString("\ncd \"$PBS_O_WORKDIR\" || exit 1\n")
	if j.Tasks > 0 {
		s.WriteString("index=$PBS_ARRAY_INDEX\n")
	}
	fmt.Fprintf(&s, "exec %s\n", j.line())
	return s.String()
}

// LSF returns a file for bsub, which reads it from its standard input.
// Source: IBM Spectrum LSF 10.1, bsub.
func LSF(j Job) string {
	s := script{mark: "#BSUB"}
	s.WriteString("#!/bin/bash\n")
	if j.Tasks > 0 {
		s.note(fmt.Sprintf("-J %s[1-%d]", j.Name, j.Tasks), "what bjobs shows, and a job for each number")
		s.note("-o "+j.Name+"-%J_%I.out", "a log for each, in the folder where bsub is typed")
	} else {
		s.note("-J "+j.Name, "what bjobs shows")
		s.note("-o "+j.Name+"-%J.out", "the log, in the folder where bsub is typed")
	}
	s.note(fmt.Sprintf("-n %d", j.Ranks), j.Why)
	s.note(fmt.Sprintf(`-R "span[ptile=%d]"`, j.PerNode), "ranks on each node")
	if j.CPUs > 0 {
		s.note(fmt.Sprintf(`-R "affinity[core(%d)]"`, j.CPUs), "cores for the threads of a rank")
	} else {
		s.note("-x", "whole nodes: a rank's threads use all cores")
	}
	if j.GPUs > 0 {
		s.note(fmt.Sprintf(`-gpu "num=%d:j_exclusive=yes"`, j.GPUs), "GPUs of each node, visible to all its ranks")
	}
	if j.Limit > 0 {
		h, m, sec := j.clock()
		if sec > 0 {
			m++
		}
		s.note(fmt.Sprintf("-W %d:%02d", h+m/60, m%60), "hours and minutes; the job is ended then")
	}
	if j.Partition != "" {
		s.note("-q "+j.Partition, "the queue that was asked for")
	}
	rerun := "-rn"
	if j.Saves != "" {
		rerun = "-r"
	}
	s.note(rerun, j.again("started again where a node fails"))
	s.WriteString("\n")
	if j.Tasks > 0 {
		s.WriteString("index=$((LSB_JOBINDEX - 1)) # LSF counts from 1\n")
	}
	fmt.Fprintf(&s, "exec %s\n", j.line())
	return s.String()
}
