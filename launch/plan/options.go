package plan

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/internal/readable"
)

// options are the flags that plan and run share.
type options struct {
	launcher      string
	np            int
	nodes         int
	gpus          int // for each node
	perNode       int
	cpus          int // for each rank
	hosts         string
	hostfile      string
	time          string
	partition     string
	iface         string
	agent         string
	gpu           string
	grace         int // seconds
	oversubscribe bool

	array int // tasks
	het   string

	checkpoints string // a folder
}

func (o *options) flags(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.SetInterspersed(false) // what follows the program is the program's
	fs.IntVarP(&o.np, "np", "n", 0, "ranks in all; also -np (default: those of the allocation, or of all nodes)")
	fs.IntVar(&o.nodes, "nodes", 0, "nodes (default: the hosts, those of the allocation, or 1)")
	fs.IntVar(&o.gpus, "gpus-per-node", 0, "GPUs of each node (default: this machine's)")
	fs.IntVar(&o.perNode, "ranks-per-node", 0, "ranks on each node (default: one for each GPU, else for each core)")
	fs.StringVarP(&o.hosts, "host", "H", "", "hosts: NAME[:SLOTS],...")
	fs.StringVar(&o.hostfile, "hostfile", "", "`FILE` with a host on each line: NAME, NAME:SLOTS or NAME slots=SLOTS")
	fs.StringVar(&o.launcher, "launcher", "auto",
		"auto, openmpi4, openmpi5, mpich or slurm; of plan also all")
	fs.BoolVar(&o.oversubscribe, "oversubscribe", false, "allow more ranks than cores, GPUs or slots")
	fs.IntVar(&o.cpus, "cpus-per-task", 0, "Slurm: cores for each rank (default: whole nodes)")
	fs.StringVar(&o.time, "time", "", "Slurm: time limit, such as 12:00:00")
	fs.StringVar(&o.partition, "partition", "", "Slurm: partition")
	fs.StringVar(&o.iface, "interface", "", "network interface between the nodes, such as eth0")
	fs.StringVar(&o.agent, "agent", "", "program that mpirun starts processes on other hosts with (default: ssh)")
	fs.IntVar(&o.grace, "grace", 0,
		"Open MPI: seconds between SIGTERM to mpirun and SIGKILL for the ranks (default: 1)")
	fs.StringVar(&o.checkpoints, "checkpoints", "",
		"folder of the program's checkpoints (default: its --checkpoint, or its --run-dir)")
	cli.Group(fs, "How many ranks, and where", "np", "nodes", "gpus-per-node", "ranks-per-node", "host", "hostfile",
		"oversubscribe")
	cli.Group(fs, "What starts them, and how", "launcher", "cpus-per-task", "time", "partition", "interface", "agent",
		"grace")
	cli.Choices(fs, "launcher", launchers...)
}

// parse reads the flags of cmd and returns the program with its arguments. Errors are cli.Usage.
func parse(cmd *cobra.Command, args []string) (prog []string, help bool, err error) {
	words := slices.Clone(args)
	for i, a := range words {
		if a == "--" {
			break
		}
		if a == "-np" || strings.HasPrefix(a, "-np=") {
			words[i] = "-" + a
		}
	}
	fs := cmd.Flags()
	if err := fs.Parse(words); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, true, cmd.Help()
		}
		return nil, false, cli.Usage{Err: fmt.Errorf("%w (flags of the program stand behind --)",
			cli.Advise(fs, err))}
	}
	if help, _ := fs.GetBool("help"); help {
		return nil, true, cmd.Help()
	}
	for _, name := range []string{"np", "nodes", "gpus-per-node", "ranks-per-node", "cpus-per-task"} {
		if f := fs.Lookup(name); f != nil && f.Changed && f.Value.String() == "0" {
			return nil, false, usage("--%s 0: give a number from 1 to %d, or leave it out", name, maxRanks)
		}
	}
	prog = fs.Args()
	switch {
	case len(prog) == 0:
		return nil, false, usage("the program is missing: launch %s -np 2 -- bin/train", cmd.Name())
	case fs.ArgsLenAtDash() < 0:
		own := args[:len(args)-len(prog)]
		return nil, false, usage("-- is missing before the program: launch %s",
			quote(slices.Concat([]string{cmd.Name()}, own, []string{"--"}, prog)))
	case strings.HasPrefix(prog[0], "-"):
		return nil, false, usage("%s stands behind --, where the program is expected: put it before --", prog[0])
	}
	return prog, false, nil
}

func usage(format string, args ...any) error { return cli.Usage{Err: fmt.Errorf(format, args...)} }

// site has what a line depends on beside the flags: this machine and its environment.
type site struct {
	cores int
	gpus  int
	gpu   string // kind of these
	root  bool
	name  string   // of this machine
	env   []string // KEY=VALUE
}

func thisSite() site {
	name, _ := os.Hostname()
	return site{runtime.NumCPU(), countGPUs("/dev", os.LookupEnv), gpuModel("/proc"), os.Geteuid() == 0, name,
		os.Environ()}
}

func (s site) getenv(key string) string {
	for _, kv := range s.env {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			return v
		}
	}
	return ""
}

// countGPUs counts the device files of the NVIDIA driver, fewer if CUDA_VISIBLE_DEVICES says so. To
// the driver its list ends before what is no device, and one that is named twice leaves none.
func countGPUs(dev string, lookup func(string) (string, bool)) int {
	files, _ := filepath.Glob(filepath.Join(dev, "nvidia[0-9]*"))
	visible, ok := lookup("CUDA_VISIBLE_DEVICES")
	if !ok {
		return len(files)
	}
	var seen []string
	for word := range strings.SplitSeq(visible, ",") {
		word = strings.TrimSpace(word)
		if !strings.HasPrefix(word, "GPU-") && !strings.HasPrefix(word, "MIG-") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 0 || n >= len(files) {
				break
			}
			word = strconv.Itoa(n)
		}
		if slices.Contains(seen, word) {
			return 0
		}
		seen = append(seen, word)
	}
	return min(len(files), len(seen))
}

type host struct {
	name  string
	slots int
}

// job says what to start on which hosts.
type job struct {
	*options
	prog  []string
	hosts []host // empty: this host, or those of the allocation
	nodes int
	ranks int
	most  int    // ranks on a node
	even  bool   // most on each node but the last
	here  bool   // all of it on this machine
	parts []part // nodes of several kinds
	saves string // the flag that says where the program saves, or ""
	saved string // the folder that it says
	// The ranks use GPUs, as far as this machine and the flags tell.
	onGPUs bool
	dense  bool // more ranks than cores are wanted: --oversubscribe, or here and Open MPI's variable for it
}

// launchers are the values of --launcher.
var launchers = []string{"auto", "openmpi4", "openmpi5", "mpich", "slurm", "all"}

// job settles how many ranks run where. Errors are cli.Usage.
func (o *options) job(s site, prog []string) (job, error) {
	j := job{options: o, prog: prog, even: true}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"-np", o.np}, {"--nodes", o.nodes}, {"--gpus-per-node", o.gpus}, {"--ranks-per-node", o.perNode},
		{"--cpus-per-task", o.cpus}, {"--grace", o.grace},
	} {
		if f.value < 0 || f.value > maxRanks {
			return j, usage("%s %d: give a number from 1 to %d", f.name, f.value, maxRanks)
		}
	}
	if !slices.Contains(launchers, o.launcher) {
		return j, usage("--launcher %s: unknown, want auto, openmpi4, openmpi5, mpich, slurm or all", o.launcher)
	}
	var err error
	if j.hosts, err = o.hostList(); err != nil {
		return j, err
	}
	allocated, tasks, err := allocation(s)
	if err != nil {
		return j, err
	}
	switch {
	case o.agent != "", len(j.hosts) > 1:
	case len(j.hosts) == 1:
		j.here = j.hosts[0].name == "localhost" || j.hosts[0].name == s.name
	default:
		j.here = allocated == 0 && o.nodes <= 1
	}
	j.nodes = cmp.Or(o.nodes, len(j.hosts), allocated, 1)
	if len(j.hosts) > 0 && j.nodes != len(j.hosts) {
		return j, usage("--nodes %d, but %d hosts are named: leave --nodes out, or name as many", o.nodes, len(j.hosts))
	}
	slots, given := 0, len(j.hosts) > 0
	for _, h := range j.hosts {
		slots += h.slots
		given = given && h.slots > 0
	}
	if given && o.perNode+o.gpus == 0 {
		j.ranks = cmp.Or(o.np, slots)
		for _, h := range j.hosts {
			j.most = max(j.most, min(h.slots, j.ranks))
			j.even = j.even && h.slots == j.hosts[0].slots
		}
	} else {
		wanted := func(n int) int { return (n + j.nodes - 1) / j.nodes }
		fallback := cmp.Or(s.gpus, s.cores)
		if o.np == 0 && len(j.hosts) == 0 {
			fallback = cmp.Or(wanted(tasks), fallback)
		}
		j.most = cmp.Or(o.perNode, o.gpus, wanted(o.np), fallback)
		j.ranks = cmp.Or(o.np, j.most*j.nodes)
		if o.perNode == 0 && wanted(j.ranks) < j.most {
			j.most = wanted(j.ranks)
		}
	}
	if j.ranks > j.most*j.nodes && !o.oversubscribe {
		return j, usage("-np %d is more than %d nodes of %d ranks: give fewer, more nodes, or --oversubscribe",
			j.ranks, j.nodes, j.most)
	}
	for i, h := range j.hosts {
		if h.slots > 0 && h.slots < j.most && j.even && !o.oversubscribe {
			return j, usage("%s has %d slots, for %d ranks: give -H %s:%d, fewer ranks, or --oversubscribe",
				h.name, h.slots, j.most, h.name, j.most)
		}
		if h.slots == 0 {
			j.hosts[i].slots = j.most
		}
	}
	j.onGPUs = (o.gpus > 0 || s.gpus > 0) && !onHost(prog)
	j.saves, j.saved = o.savesIn(prog)
	j.dense = o.oversubscribe || j.here && j.ranks > s.cores && s.oversubscribes()
	return j, nil
}

// onHost reports whether a program is told to leave GPUs alone.
func onHost(prog []string) bool { return flagOf(prog[1:], "--device") == "host" }

// savesIn returns the folder of the program's checkpoints and the flag that says it, or nothing.
func (o *options) savesIn(prog []string) (flag, folder string) {
	if o.checkpoints != "" {
		return "--checkpoints", o.checkpoints
	}
	if folder = flagOf(prog[1:], "--checkpoint"); folder != "" {
		return "--checkpoint", folder
	}
	if folder = flagOf(prog[1:], "--run-dir"); folder != "" && folder != "off" {
		return "--run-dir", folder
	}
	return "", ""
}

// oversubscribes reports whether the environment lets mpirun start more ranks than cores, in the
// words of Open MPI 4 or 5.
func (s site) oversubscribes() bool {
	switch strings.ToLower(s.getenv("OMPI_MCA_rmaps_base_oversubscribe")) {
	case "1", "true", "yes":
		return true
	}
	return slices.Contains(strings.Split(strings.ToLower(s.getenv("PRTE_MCA_rmaps_default_mapping_policy")), ":"),
		"oversubscribe")
}

// maxRanks is beyond any machine, and keeps products of two numbers from overflowing.
const maxRanks = 1 << 20

// allocation reads nodes and tasks of this process's Slurm job, or 0.
func allocation(s site) (nodes, tasks int, err error) {
	if s.getenv("SLURM_JOB_ID") == "" {
		return 0, 0, nil
	}
	nodes, _ = strconv.Atoi(s.getenv("SLURM_JOB_NUM_NODES"))
	if nodes <= 0 || s.getenv("SLURM_JOB_NODELIST") == "" {
		return 0, 0, usage("SLURM_JOB_ID=%s, but the allocation has no nodes: type salloc or sbatch anew, or unset "+
			"SLURM_JOB_ID", s.getenv("SLURM_JOB_ID"))
	}
	tasks, _ = strconv.Atoi(s.getenv("SLURM_NTASKS"))
	return nodes, tasks, nil
}

// hostList reads --host or --hostfile.
func (o *options) hostList() ([]host, error) {
	var entries []string
	source := "-H " + o.hosts
	switch {
	case o.hosts != "" && o.hostfile != "":
		return nil, usage("give -H or --hostfile, not both")
	case o.hosts != "":
		entries = strings.Split(o.hosts, ",")
	case o.hostfile != "":
		source = o.hostfile
		f, err := os.Open(o.hostfile)
		if err != nil {
			return nil, cli.Usage{Err: fmt.Errorf("--hostfile: %w", err)}
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			line, _, _ := strings.Cut(lines.Text(), "#")
			if line = strings.TrimSpace(line); line != "" {
				entries = append(entries, line)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, cli.Usage{Err: fmt.Errorf("--hostfile %s: %w", o.hostfile, err)}
		}
		if len(entries) == 0 {
			return nil, usage("--hostfile %s names no host: write one on each line, as NAME slots=8", o.hostfile)
		}
	}
	var hosts []host
	for _, e := range entries {
		h, err := parseHost(e)
		if err != nil {
			return nil, cli.Usage{Err: fmt.Errorf("%s: %w", source, err)}
		}
		// A host that is named twice has the slots of both, as Open MPI counts them.
		if i := slices.IndexFunc(hosts, func(o host) bool { return o.name == h.name }); i >= 0 {
			hosts[i].slots = max(hosts[i].slots, 1) + max(h.slots, 1)
			continue
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// parseHost reads NAME, NAME:SLOTS or NAME slots=SLOTS. Other words of a line are Open MPI's
// and are refused.
func parseHost(entry string) (host, error) {
	fields := strings.Fields(entry)
	if len(fields) == 0 {
		return host{}, fmt.Errorf("a host has no name: write NAME or NAME:SLOTS")
	}
	name, slots, given := strings.Cut(fields[0], ":")
	if len(fields) > 1 {
		v, ok := strings.CutPrefix(fields[1], "slots=")
		if !ok || given || len(fields) > 2 {
			return host{}, fmt.Errorf("%q is not understood: write NAME, NAME:SLOTS or NAME slots=SLOTS", entry)
		}
		slots, given = v, true
	}
	if strings.Trim(name, readable.Letters+"-._") != "" || name == "" ||
		name[0] == '-' {
		return host{}, fmt.Errorf("%q is no name of a host: write NAME or NAME:SLOTS", name)
	}
	if !given {
		return host{name: name}, nil
	}
	n, err := strconv.Atoi(slots)
	if err != nil || n < 1 || n > maxRanks {
		return host{}, fmt.Errorf("%q: %q is no number of slots: write NAME:SLOTS", entry, slots)
	}
	return host{name, n}, nil
}
