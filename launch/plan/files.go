package plan

import (
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/launch/batch"
)

// system is a batch system: the command that takes a file, and where it says which hosts a job has.
type system struct {
	command string
	write   func(batch.Job) string
	hostsIn string
	agent   string // starts processes on the other hosts; "" is the MPI's own way
}

// systems are the batch systems by the values of --launcher.
var systems = map[string]system{
	"slurm":      {command: "sbatch", write: batch.Slurm},
	"pbs":        {"qsub", batch.PBS, "$PBS_NODEFILE", ""},
	"lsf":        {"bsub", batch.LSF, "$LSB_DJOB_HOSTFILE", "blaunch"},
	"kubernetes": {"kubectl", batch.Kubernetes, batch.HostsOfPods, ""},
}

// batchFlags adds the flags that only a file has.
func (o *options) batchFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.array, "array", 0,
		"a job for each number from 0 on, this many times; {} in the program's arguments is the number")
	fs.StringVar(&o.het, "het", "",
		"Slurm: nodes of several kinds in one job, as NODES:RANKS[:CONSTRAINT],... such as 2:8:h100,4:4")
	fs.StringVar(&o.image, "image", "", "Kubernetes: container image with the program")
	cli.Group(fs, "Batch systems", "cpus-per-task", "time", "partition", "checkpoints", "array", "het", "image")
}

// inFile settles what only a batch file has. Errors are cli.Usage.
func (o *options) inFile(j *job) error {
	there, isBatch := systems[o.launcher]
	elsewhere := isBatch && o.launcher != "slurm"
	var err error
	switch {
	case o.launcher == "kubernetes" && strings.Contains(j.prog[0], "/") && !strings.HasPrefix(j.prog[0], "/"):
		return usage("--launcher kubernetes: %s is a path from this folder, which the container does not have: give "+
			"the program's path there, such as /opt/%s", j.prog[0], filepath.Base(j.prog[0]))
	case elsewhere && len(j.hosts) > 0:
		return usage("--launcher %s: it says itself which hosts a job has: give --nodes instead", o.launcher)
	case o.launcher == "kubernetes" && o.image == "":
		return usage("--launcher kubernetes: say by --image NAME which container has the program")
	case o.array != 0 && (!isBatch || o.launcher == "kubernetes"):
		return usage("--array is of batch files: give --launcher slurm, pbs or lsf with it")
	case o.array != 0 && (o.array < 2 || o.array > maxRanks):
		return usage("--array %d: give a number from 2 to %d", o.array, maxRanks)
	case o.array != 0 && !batch.Takes(j.prog):
		return usage("--array: no argument of the program has {} in it, so that all jobs would be the same")
	case o.het != "" && o.launcher != "slurm":
		return usage("--het is Slurm's: give --launcher slurm with it")
	case o.het != "" && (o.array != 0 || o.np+o.nodes+o.perNode != 0 || len(j.hosts) > 0):
		return usage("--het does not go with --array, -np, --nodes, --ranks-per-node and hosts: " +
			"it says how many of each")
	}
	if elsewhere && o.time != "" {
		if j.limit, err = batch.ReadTime(o.time); err != nil {
			return usage("%w", err)
		}
	}
	if elsewhere { // what this machine has, and has set, does not count
		j.hostsIn, j.here, j.dense = there.hostsIn, false, o.oversubscribe
		j.onGPUs = j.onGPUs && o.gpus > 0
	}
	if o.het == "" {
		return nil
	}
	if j.parts, err = batch.Parts(o.het); err != nil {
		return usage("--het %w", err)
	}
	j.nodes, j.ranks, j.most, j.even, j.here, j.dense = 0, 0, 0, false, false, o.oversubscribe
	for _, p := range j.parts {
		j.nodes, j.ranks, j.most = j.nodes+p.Nodes, j.ranks+p.Nodes*p.PerNode, max(j.most, p.PerNode)
	}
	return nil
}

// build returns the line in the file of a batch system: for the MPI that is here, else for the
// most common one.
func (b system) build(name string, j job, s site) Line {
	if name == "slurm" {
		return build(find(name), j, s)
	}
	w := find("openmpi4")
	if here, ok := findMPI(""); ok {
		w = here
	}
	own := *j.options
	if j.options = &own; own.agent == "" {
		own.agent = b.agent
	}
	s.root = false
	if name == "kubernetes" { // the containers are root's, and have none of the variables here
		s.root, s.env = true, nil
	}
	l := build(w, j, s)
	l.MPI, l.Launcher = l.Launcher, name
	return l
}

// file is a file for a batch system, and the command that takes it.
type file struct{ command, text string }

// file returns the file of the batch system that o names, or that is here, or an empty one.
func (o *options) file(lines []Line, j job) file {
	name := o.launcher
	if name == "all" || name == "auto" && found("sbatch") {
		name = "slurm"
	}
	b, ok := systems[name]
	if !ok {
		return file{}
	}
	l := lines[len(lines)-1] // that of Slurm is the last
	d := batch.Job{Name: filepath.Base(j.prog[0]), Why: j.why(), Line: l.String(), Words: l.Words(), MPI: l.MPI,
		Nodes: j.nodes, Ranks: j.ranks, Saves: j.saves, GPUs: j.gpus, CPUs: j.cpus, Parts: j.parts, Tasks: o.array,
		Time: o.time, Limit: j.limit, Partition: o.partition, Image: o.image}
	if j.even {
		d.PerNode = j.most
	}
	d.Name = quote([]string{d.Name})
	return file{b.command, b.write(d)}
}
