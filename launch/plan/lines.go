package plan

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"lockstep/internal/launcher"
)

func build(w launcherHere, j job, s site) Line {
	l := Line{Launcher: w.name, Version: w.version}
	switch w.name {
	case "slurm":
		srun(&l, w, j)
	case "mpich":
		hydra(&l, w, j)
	default:
		openMPI(&l, w, j, s)
	}
	l.add("the program and its arguments", j.prog...)
	return l
}

func (j job) why() string {
	if j.nodes == 1 {
		return fmt.Sprintf("%d ranks%s", j.ranks, j.perGPU())
	}
	if !j.even {
		return fmt.Sprintf("%d ranks on %d nodes, as many on each as it has slots", j.ranks, j.nodes)
	}
	rest := j.ranks - j.most*(j.nodes-1) // on the last node, where the others are full
	switch {
	case rest == j.most:
		return fmt.Sprintf("%d ranks: %d on each of %d nodes%s", j.ranks, j.most, j.nodes, j.perGPU())
	case rest < 1:
		return fmt.Sprintf("%d ranks: at most %d on each of %d nodes", j.ranks, j.most, j.nodes)
	case j.nodes == 2:
		return fmt.Sprintf("%d ranks: %d on one node, %d on the other", j.ranks, j.most, rest)
	}
	return fmt.Sprintf("%d ranks: %d on each of %d nodes, %d on another", j.ranks, j.most, j.nodes-1, rest)
}

func (j job) perGPU() string {
	if j.gpus > 0 && j.most == j.gpus {
		return ", one for each GPU"
	}
	return ""
}

func (j job) hostWords() string {
	words := make([]string, len(j.hosts))
	for i, h := range j.hosts {
		words[i] = fmt.Sprintf("%s:%d", h.name, h.slots)
	}
	return strings.Join(words, ",")
}

// noBinding returns why ranks are left unbound. With ppr:N:node and --bind-to numa Open MPI 4.1
// binds ranks to NUMA nodes in turn, while a node's GPUs are numbered along them: every second rank
// would be far from its GPU.
func (j job) noBinding() string {
	why := "a rank's threads use several cores"
	if j.onGPUs {
		why += "; bound to NUMA nodes in turn, ranks would sit far from their GPUs; NCCL places its threads itself"
	}
	return why
}

// onEach returns why a node gets as many ranks as it does, in order.
func (j job) onEach() string {
	if j.onGPUs {
		return "as many ranks on each node as it has GPUs or is to run, in order, so that local rank and GPU agree"
	}
	return "as many ranks on each node as it is to run, in order: neighbours share a node"
}

const yield = "a waiting rank must not hold the core of one that works"

// openMPI adds the words of Open MPI's mpirun, 4 or 5.
func openMPI(l *Line, w launcherHere, j job, s site) {
	five := w.name == "openmpi5"
	runtime, agent, keep := "--mca", "plm_rsh_agent", "orte_keep_fqdn_hostnames"
	if five { // its process starter is PRRTE, with options of its own
		runtime, agent, keep = "--prtemca", "plm_ssh_agent", "prte_keep_fqdn_hostnames"
	}
	l.add("starts the ranks and connects them", w.command)
	if s.root && !launcher.AllowsRoot(s.getenv, five) {
		l.add("you are root, which mpirun refuses unless told", "--allow-run-as-root")
	}
	l.add(j.why(), "-np", strconv.Itoa(j.ranks))
	if len(j.hosts) > 0 {
		l.add("the hosts, each with its slots: without a number it would be one", "-H", j.hostWords())
	} else if j.nodes > 1 && s.getenv("SLURM_JOB_ID") == "" {
		l.add(fmt.Sprintf("a file that you write, a line for each host: NAME slots=%d (not needed inside a Slurm "+
			"allocation)", j.most), "--hostfile", "hosts")
	}
	if oneLabel(j.hosts) {
		l.add("it would tell hosts by the name before the first dot alone", runtime, keep, "1")
	}
	mapping := fmt.Sprintf("ppr:%d:node", j.most)
	why := j.onEach()
	if !j.even {
		mapping, why = "slot", "fills the slots of one host after the other"
	}
	if j.dense && five {
		mapping, why = mapping+":oversubscribe", why+"; more than there are slots"
	}
	l.add(why, "--map-by", mapping)
	if j.dense && !five {
		l.add("more ranks than slots, which are the cores unless given", "--oversubscribe")
	}
	l.add(j.noBinding(), "--bind-to", "none")
	if j.dense {
		l.add(yield, "--mca", "mpi_yield_when_idle", "1")
	}
	if j.iface != "" {
		l.add("MPI's messages go over this interface", "--mca", "btl_tcp_if_include", j.iface)
		if five {
			l.add("as does what starts and watches the ranks", runtime, "prte_if_include", j.iface)
		} else {
			l.add("as does what starts and watches the ranks", runtime, "oob_tcp_if_include", j.iface)
		}
		l.add("and NCCL's bootstrap and sockets, on GPUs", "-x", "NCCL_SOCKET_IFNAME="+j.iface)
	}
	if names := passed(s.env, j.iface != ""); j.nodes > 1 && len(names) > 0 {
		var words []string
		for _, n := range names {
			words = append(words, "-x", n)
		}
		l.add("set here; mpirun takes to other hosts only what it is told, and OMPI_*", words...)
	}
	if j.agent != "" {
		l.add("starts processes on other hosts, in place of ssh", runtime, agent, j.agent)
	}
	if j.nodes > 1 && !five {
		l.add("mpirun ends 20 s after the network to a host is cut; else it may hang, with the ranks gone",
			runtime, "oob_tcp_keepalive_time", "10", runtime, "oob_tcp_keepalive_intvl", "3", runtime,
			"oob_tcp_keepalive_probes", "3")
	}
	if j.grace > 0 {
		l.add("seconds that SIGTERM to mpirun leaves the ranks; a job in which a rank fails ends as much later "+
			"(SIGUSR1 to mpirun leaves all the time)",
			runtime, "odls_base_sigkill_timeout", strconv.Itoa(j.grace))
	}
}

// oneLabel reports whether names of two hosts are the same up to the first dot.
func oneLabel(hosts []host) bool {
	seen := map[string]bool{}
	for _, h := range hosts {
		label, _, _ := strings.Cut(h.name, ".")
		if net.ParseIP(h.name) != nil {
			continue
		}
		if seen[label] {
			return true
		}
		seen[label] = true
	}
	return false
}

// passed returns the variables of env that a rank on another host also needs.
func passed(env []string, iface bool) []string {
	var names []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case value == "", iface && name == "NCCL_SOCKET_IFNAME":
		case slices.Contains([]string{"LD_LIBRARY_PATH", "GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GODEBUG", "GOTRACEBACK"},
			name),
			slices.ContainsFunc([]string{"CUDA_", "NCCL_", "LOCKSTEP_", "OMP_", "OPENBLAS_", "UCX_"},
				func(p string) bool { return strings.HasPrefix(name, p) }):
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// hydra adds the words of MPICH's mpiexec, which Intel MPI and MVAPICH also have. It passes on the
// whole environment, and accepts root and more ranks than cores.
func hydra(l *Line, w launcherHere, j job) {
	l.add("starts the ranks and connects them", w.command)
	l.add(j.why(), "-np", strconv.Itoa(j.ranks))
	if len(j.hosts) > 0 {
		l.add("the hosts, each with its slots", "-hosts", j.hostWords())
	} else if j.nodes > 1 {
		l.add(fmt.Sprintf("a file that you write, a line for each host: NAME:%d (not needed inside a Slurm allocation)",
			j.most), "-f", "hosts")
	}
	if j.even {
		l.add(j.onEach(), "-ppn", strconv.Itoa(j.most))
	}
	l.add(j.noBinding(), "-bind-to", "none")
	if j.iface != "" {
		l.add("MPI's messages go over this interface", "-iface", j.iface)
		l.add("and NCCL's bootstrap and sockets, on GPUs", "-genv", "NCCL_SOCKET_IFNAME", j.iface)
	}
	if j.agent != "" {
		l.add("starts processes on other hosts, in place of ssh", "-launcher", "ssh", "-launcher-exec", j.agent)
	}
}

// srun adds the words of Slurm's srun, inside an allocation or a batch file.
func srun(l *Line, w launcherHere, j job) {
	l.add("starts the ranks in the allocation that it is typed in", w.command)
	l.add("Open MPI's ranks find each other by PMIx (srun --mpi=list shows whether Slurm has it)", "--mpi=pmix")
	if len(j.parts) > 0 {
		l.add(j.why()+", of all kinds in one world", together(j.parts))
	} else {
		l.add(j.why(), fmt.Sprintf("--nodes=%d", j.nodes), fmt.Sprintf("--ntasks=%d", j.ranks))
	}
	if j.even && j.nodes > 1 {
		l.add(j.onEach(), fmt.Sprintf("--ntasks-per-node=%d", j.most))
	}
	if len(j.hosts) > 0 {
		names := make([]string, len(j.hosts))
		for i, h := range j.hosts {
			names[i] = h.name
		}
		l.add("of the allocation, these hosts", "--nodelist="+strings.Join(names, ","))
	}
	if j.gpus > 0 && len(j.parts) == 0 {
		l.add("each rank sees all GPUs of its node and takes that of its local rank; with --gpus-per-task NCCL and "+
			"MPI could not reach the others directly",
			fmt.Sprintf("--gpus-per-node=%d", j.gpus))
	}
	if j.cpus > 0 {
		l.add("srun does not take this from sbatch", fmt.Sprintf("--cpus-per-task=%d", j.cpus))
	}
	l.add(j.noBinding(), "--cpu-bind=none")
	if j.dense {
		l.add("more tasks than cores", "--overcommit")
	}
	if j.iface != "" {
		l.add("the whole environment; MPI and, on GPUs, NCCL's bootstrap and sockets use this interface",
			"--export=ALL,NCCL_SOCKET_IFNAME="+j.iface+",OMPI_MCA_btl_tcp_if_include="+j.iface)
	}
	l.add("a rank that fails ends all of them", "--kill-on-bad-exit=1")
	l.add("one Ctrl-C ends the job", "--quit-on-interrupt")
	l.add("before each line the rank that printed it", labelWord)
}

const labelWord = "--label"
