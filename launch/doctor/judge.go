package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/internal/launcher"
	"lockstep/internal/readable"
)

// Levels of a Finding. A failure makes a job fail, or slows it severely; a warning may be meant so.
const (
	Fail = "FAIL"
	Warn = "warn"
)

// Finding is one fault.
type Finding struct {
	Level string `json:"level"`
	Ranks []int  `json:"ranks"`
	Where string `json:"where"` // the ranks in words: "ranks 2-3 on n1"
	What  string `json:"what"`
	Do    string `json:"do"` // what to type, install or ask for
}

func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s: %s", f.Level, f.Where, f.What, f.Do)
}

// Failed reports whether there is a failure among findings.
func Failed(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Level == Fail })
}

type judge struct {
	facts    []Facts
	nodes    [][]int // indices into facts
	findings []Finding
}

// Judge finds the faults in the facts of all ranks, or of as many as are known, failures first.
// Facts of several ranks hold those that take MPI.
func Judge(facts []Facts) []Finding {
	j := &judge{facts: facts, findings: []Finding{}}
	for i, f := range facts {
		for len(j.nodes) <= f.Node {
			j.nodes = append(j.nodes, nil)
		}
		j.nodes[f.Node] = append(j.nodes[f.Node], i)
	}
	for _, rule := range []func(){
		j.world, j.same, j.program, j.gpus, j.placement, j.libraries, j.aware, j.memory, j.limits,
		j.network, j.cores, j.clocks, j.settings,
	} {
		rule()
	}
	slices.SortStableFunc(j.findings, func(a, b Finding) int { return cmp.Compare(a.Level, b.Level) }) // 'F' < 'w'
	return j.findings
}

// add notes a finding of some ranks, given as indices into facts; an empty list is no finding.
func (j *judge) add(level string, of []int, what, do string) {
	if len(of) == 0 {
		return
	}
	ranks := make([]int, len(of))
	for i, k := range of {
		ranks[i] = j.facts[k].Rank()
	}
	j.findings = append(j.findings, Finding{level, ranks, j.where(of), what, do})
}

// where names ranks and their hosts.
func (j *judge) where(of []int) string {
	if len(j.facts) > 1 && len(of) == len(j.facts) {
		return "all ranks"
	}
	var parts []string
	for len(of) > 0 { // one part for each run of ranks on the same node
		n := 1
		for n < len(of) && j.facts[of[n]].Node == j.facts[of[0]].Node {
			n++
		}
		ranks := make([]int, n)
		for i, k := range of[:n] {
			ranks[i] = j.facts[k].Rank()
		}
		word := "ranks"
		if n == 1 {
			word = "rank"
		}
		parts = append(parts, fmt.Sprintf("%s %s on %s", word, spans(ranks), j.facts[of[0]].Host))
		of = of[n:]
	}
	return strings.Join(parts, ", ")
}

// spans writes numbers as "0-3,8".
func spans(numbers []int) string { return readable.Ranges(numbers, ",") }

// those returns the ranks for which a condition holds.
func (j *judge) those(holds func(f *Facts) bool) (of []int) {
	for i := range j.facts {
		if holds(&j.facts[i]) {
			of = append(of, i)
		}
	}
	return of
}

// each reports faults of single ranks, those with the same fault together.
func (j *judge) each(level string, fault func(f *Facts) (what, do string)) {
	var order [][2]string
	of := map[[2]string][]int{}
	for i := range j.facts {
		what, do := fault(&j.facts[i])
		if what == "" {
			continue
		}
		k := [2]string{what, do}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], i)
	}
	for _, k := range order {
		j.add(level, of[k], k[0], k[1])
	}
}

// differ reports the ranks whose value differs from most ranks' value. Empty values do not count.
func (j *judge) differ(level, what, do string, value func(f *Facts) string) {
	var values []string
	count := map[string]int{}
	usual := ""
	for i := range j.facts {
		v := value(&j.facts[i])
		if count[v]++; v != "" && count[v] == 1 {
			values = append(values, v)
		}
	}
	for _, v := range values { // of equals the first
		if usual == "" || count[v] > count[usual] {
			usual = v
		}
	}
	const most = 4 // values that are told one by one
	j.each(level, func(f *Facts) (string, string) {
		v := value(f)
		switch {
		case v == "" || v == usual:
			return "", ""
		case len(values) > most:
			return fmt.Sprintf("%s has %d values, such as %s and %s", what, len(values), values[0], values[1]), do
		}
		return fmt.Sprintf("%s is %s here and %s elsewhere", what, v, usual), do
	})
}

// world looks for worlds of one: N processes that do not know each other.
func (j *judge) world() {
	f := &j.facts[0]
	if f.MPI == nil || launcher.Job(f.Launcher).CheckWorld(f.MPI.Size) == nil {
		return
	}
	n := f.Launcher.Size
	do := fmt.Sprintf("another mpirun than that of %s is first in PATH: use its own", f.MPI.Version)
	switch f.Launcher.Name {
	case "mpich":
		do = fmt.Sprintf("this program is built with %s, which MPICH's launcher cannot start: use Open "+
			"MPI's, mpirun.openmpi (Debian, Ubuntu: openmpi-bin)", f.MPI.Version)
	case "slurm", "slurm-pmi2", "slurm-pmix":
		do = pmixAdvice(n)
	case "torchrun":
		do = fmt.Sprintf("mpirun -np %d instead of torchrun", n)
	}
	j.findings = append(j.findings, Finding{Fail, allRanks(n), "all ranks",
		fmt.Sprintf("%d worlds of one: %s says %d tasks, MPI has a world of 1 in each", n, f.Launcher.Source, n), do})
}

func pmixAdvice(ranks int) string {
	return fmt.Sprintf("srun --mpi=pmix (srun --mpi=list shows whether Slurm has it), or: salloc -n %d "+
		"mpirun launch doctor", ranks)
}

func allRanks(n int) []int {
	ranks := make([]int, n)
	for r := range ranks {
		ranks[r] = r
	}
	return ranks
}

// same looks for builds that do not fit together.
func (j *judge) same() {
	before := len(j.findings)
	j.differ(Fail, "the architecture", "run on machines of one kind: a message between two kinds is not converted",
		func(f *Facts) string { return f.Arch })
	if len(j.findings) == before {
		j.differ(Fail, "the checksum of launch", "install the same build on every node",
			func(f *Facts) string { return short(f.Launch.SHA256) })
	}
	j.differ(Fail, "MPI", "install the same MPI on every node", func(f *Facts) string {
		if f.MPI == nil {
			return ""
		}
		return f.MPI.Version
	})
}

func short(checksum string) string { return checksum[:min(8, len(checksum))] }

// program looks at the program named on the command line.
func (j *judge) program() {
	if j.facts[0].Program == nil {
		return
	}
	j.each(Fail, func(f *Facts) (string, string) {
		p := f.Program
		mpi := launcher.Family(p.MPI)
		switch {
		case p.Err != "":
			return p.Path + ": " + p.Err, "put it at the same path on every node, or into a folder that they share"
		case !p.Exec:
			return p.Path + " is not executable", "chmod +x " + p.Path
		case p.Arch != "" && p.Arch != f.Arch:
			return fmt.Sprintf("%s is built for %s, the machine is %s", p.Path, p.Arch, f.Arch),
				"build it on such a machine"
		case mpi == "MPICH" && strings.HasPrefix(f.Launcher.Name, "openmpi"):
			return fmt.Sprintf("%s is linked with %s (MPICH), and Open MPI's mpirun starts it: each rank "+
					"is a world of its own", p.Path, p.MPI),
				"mpirun.mpich, or build it with Open MPI (mpicc.openmpi)"
		case mpi == "Open MPI" && f.Launcher.Name == "mpich":
			return fmt.Sprintf("%s is linked with %s (Open MPI), and MPICH's mpirun starts it: each rank "+
					"is a world of its own", p.Path, p.MPI),
				"mpirun.openmpi (Debian, Ubuntu: openmpi-bin), or build it with MPICH"
		}
		return "", ""
	})
	j.differ(Fail, "the checksum of the program", "install the same build on every node",
		func(f *Facts) string { return short(f.Program.SHA256) })
}

// memory looks at /dev/shm, through which ranks of a node talk. Open MPI takes 4 MiB a rank. NCCL
// takes some 10 MiB for each peer whose memory a GPU does not reach.
func (j *judge) memory() {
	for _, of := range j.nodes {
		need, free := int64(0), int64(math.MaxInt64)
		for _, i := range of {
			f := &j.facts[i]
			need += 8 << 20
			if len(f.GPU.Devices) > 0 {
				need += 24 << 20
			}
			free = min(free, f.ShmFree)
		}
		switch {
		case len(of) == 0 || free >= need:
		case free < 0:
			j.add(Fail, of, "there is no /dev/shm", "mount -t tmpfs tmpfs /dev/shm")
		default:
			j.add(Fail, of, fmt.Sprintf("%s free in /dev/shm, %d ranks need %s", size(free), len(of), size(need)),
				"docker run --shm-size=1g (or --ipc=host), elsewhere: mount -o remount,size=50% "+
					"/dev/shm; and remove stale files there")
		}
	}
}

func size(bytes int64) string {
	switch {
	case bytes < 0:
		return "unlimited"
	case bytes >= 1<<30:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes >= 1<<20:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

func (j *judge) limits() {
	j.each(Warn, func(f *Facts) (string, string) {
		if f.Apart == (launcher.Apart{}) {
			return "", ""
		}
		return fmt.Sprintf("in a container of its own, with its own %v namespace: ranks of a host share "+
				"no memory, and messages between them are slow", f.Apart),
			"start mpirun inside of one container; or give all ranks one namespace (docker run " +
				"--pid=host --userns=host --ipc=host)"
	})
	j.each(Fail, func(f *Facts) (string, string) { return launcher.CheckName(f.Host) })
	j.each(Fail, func(f *Facts) (string, string) {
		var cannot error
		if f.Temp.Err != "" {
			cannot = errors.New(f.Temp.Err)
		}
		if !strings.HasPrefix(f.Launcher.Name, "openmpi") && f.Launcher.Name != "none" {
			return "", ""
		}
		return launcher.CheckTemp(f.Temp.Path, f.Temp.Free, cannot, f.FileLimit)
	})
	below := func(limit, least int64) bool { return limit >= 0 && limit < least }
	const fix = "in /etc/security/limits.conf; for Slurm LimitMEMLOCK=infinity in slurmd's unit; docker " +
		"run --ulimit memlock=-1"
	j.each(Fail, func(f *Facts) (string, string) {
		if len(f.RDMA) == 0 || !below(f.Memlock, 64<<20) {
			return "", ""
		}
		return fmt.Sprintf("memlock is %s: %s cannot register memory", size(f.Memlock), strings.Join(f.RDMA, ", ")),
			"memlock unlimited " + fix
	})
	j.each(Warn, func(f *Facts) (string, string) {
		if len(f.RDMA) > 0 || !below(f.Memlock, 64<<10) {
			return "", ""
		}
		return fmt.Sprintf("memlock is %s", size(f.Memlock)), "ulimit -l unlimited; or memlock unlimited " + fix
	})
	least := 64 + 2*int64(len(j.facts)) // two sockets for each other rank, and files of libraries
	for _, l := range []struct {
		level    string
		from, to int64
	}{{Fail, 0, least}, {Warn, least, max(least, 1024)}} {
		j.each(l.level, func(f *Facts) (string, string) {
			if f.NoFile < l.from || f.NoFile >= l.to {
				return "", ""
			}
			return fmt.Sprintf("a process may open %d files", f.NoFile),
				"ulimit -n 65536, or nofile in /etc/security/limits.conf"
		})
	}
}

// cores looks for ranks that crowd on a few cores of their node.
func (j *judge) cores() {
	for _, of := range j.nodes {
		users := map[int]int{}
		for _, i := range of {
			for _, c := range j.facts[i].Cores {
				users[c]++
			}
		}
		var crowd, single []int
		shared := map[int]bool{}
		total := 0
		for _, i := range of {
			f := &j.facts[i]
			total = max(total, f.NodeCores)
			overlap := false
			for _, c := range f.Cores {
				if users[c] > 1 {
					overlap, shared[c] = true, true
				}
			}
			if overlap {
				crowd = append(crowd, i)
			} else if len(f.Cores) <= 2 { // a core of two threads counts twice
				single = append(single, i)
			}
		}
		do := fmt.Sprintf("mpirun --bind-to none, or --map-by slot:PE=%d; srun --cpus-per-task=%d",
			max(1, total/max(1, len(of))), max(1, total/max(1, len(of))))
		if len(users) < total {
			j.add(Warn, crowd, fmt.Sprintf("%d ranks share %d of %d cores", len(crowd), len(shared), total), do)
		}
		if 2*len(users) <= total {
			j.add(Warn, single, fmt.Sprintf("bound to one core each, of %d: a rank works on several", total), do)
		}
	}
}

// Clocks kept by NTP stay far below maxSkew.
const maxSkew = 100 * time.Millisecond

func (j *judge) clocks() {
	for _, of := range j.nodes {
		if len(of) == 0 {
			continue
		}
		skew := j.facts[of[0]].Skew
		if skew == nil || skew.Abs() < maxSkew {
			continue
		}
		than := "ahead of"
		if *skew < 0 {
			than = "behind"
		}
		j.add(Warn, of, fmt.Sprintf("the clock is %v %s rank 0's", skew.Abs().Round(time.Millisecond), than),
			"keep clocks by NTP (apt-get install chrony): logs and traces of the nodes do not line up")
	}
}

// settings looks for variables that only some ranks have: mpirun passes on only those that it is
// told to.
func (j *judge) settings() {
	var names []string
	for _, f := range j.facts {
		for _, s := range f.Settings {
			name, _, _ := strings.Cut(s, "=")
			own := name == "CUDA_VISIBLE_DEVICES" || name == "SLURM_STEP_GPUS" // placement looks at these
			if !own && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		j.differ(Warn, name, fmt.Sprintf("mpirun -x %s passes it on to all nodes", name), func(f *Facts) string {
			if !f.has(name) {
				return "not set"
			}
			return strconv.Quote(f.setting(name))
		})
	}
}
