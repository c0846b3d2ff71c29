package doctor

import (
	"bufio"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/launcher"
	"lockstep/internal/readable"
)

// Facts is one rank's findings. Gather fills it but for the last part, which takes MPI.
type Facts struct {
	Host     string   `json:"host"`
	Machine  string   `json:"machine"` // the same for ranks with one kernel and one network, whatever their host names
	Launcher Launcher `json:"launcher"`
	Arch     string   `json:"arch"` // as GOARCH has it
	Launch   File     `json:"launch"`
	Program  *File    `json:"program,omitempty"` // nil if none was named

	GPU       GPU                `json:"gpu"`
	Libraries map[string]Library `json:"libraries"` // by name; those for GPUs only with a GPU

	Cores      []int          `json:"cores,omitempty"`      // that the rank may run on
	NodeCores  int            `json:"node_cores"`           // that it might have been given
	NUMA       []int          `json:"numa,omitempty"`       // nodes that its cores belong to
	ShmFree    int64          `json:"shm_free"`             // bytes in /dev/shm, -1 without it
	Temp       Temp           `json:"temp"`                 // where Open MPI has its files
	FileLimit  int64          `json:"file_limit"`           // RLIMIT_FSIZE in bytes, -1 for unlimited
	Apart      launcher.Apart `json:"apart"`                // from the mpirun that has started it
	Memlock    int64          `json:"memlock"`              // RLIMIT_MEMLOCK in bytes, -1 for unlimited
	NoFile     int64          `json:"nofile"`               // RLIMIT_NOFILE, -1 for unlimited
	Stack      int64          `json:"stack"`                // RLIMIT_STACK in bytes, -1 for unlimited
	RDMA       []string       `json:"rdma,omitempty"`       // InfiniBand and RoCE adapters
	Interfaces []Interface    `json:"interfaces,omitempty"` // that are up, without the loopback
	// NAME=value of variables that change how ranks meet or compute
	Settings []string `json:"environment,omitempty"`

	MPI       *MPI `json:"mpi,omitempty"` // nil: MPI did not get to say anything
	Node      int  `json:"node"`
	LocalRank int  `json:"local_rank"`
	// this node's clock is ahead of rank 0's by this; nil: not measured
	Skew  *time.Duration `json:"skew_ns,omitempty"`
	Reach []Reach        `json:"reach,omitempty"` // of the lowest rank of each node
}

// Launcher is launcher.Job, who started this rank, in JSON's names.
type Launcher struct {
	Name   string `json:"name"`
	Rank   int    `json:"rank"`
	Size   int    `json:"size"`
	Source string `json:"source,omitempty"`
}

// MPI is the library's account of itself and of the job.
type MPI struct {
	Version string `json:"version"` // "Open MPI 4.1.4"
	Thread  string `json:"thread"`  // "serialized"
	Rank    int    `json:"rank"`
	Size    int    `json:"size"`

	CUDA *Awareness `json:"cuda,omitempty"` // nil if it was not asked
}

// Awareness is whether MPI takes GPU memory.
type Awareness struct {
	Yes     bool   `json:"yes"` // it says so
	Reason  string `json:"reason"`
	Tried   bool   `json:"tried"`             // by this rank, in a process of its own
	Failure string `json:"failure,omitempty"` // the failure then: "crashed with signal SIGSEGV"
}

// Rank returns the rank's number in MPI, or else the launcher's.
func (f *Facts) Rank() int {
	if f.MPI != nil && f.MPI.Size > 1 {
		return f.MPI.Rank
	}
	return f.Launcher.Rank
}

// File is a program on this rank's node.
type File struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256,omitempty"`
	Arch   string `json:"arch,omitempty"` // as GOARCH has it; "" if it is not an ELF file
	MPI    string `json:"mpi,omitempty"`  // the library that it is linked with: "libmpi.so.40"; "" for none
	Exec   bool   `json:"executable"`
	Err    string `json:"error,omitempty"` // why it cannot be read
}

// Temp is a folder for files that live as long as a job.
type Temp struct {
	Path string `json:"path"`
	Free int64  `json:"free"`            // bytes
	Err  string `json:"error,omitempty"` // why nothing can be written there
}

// Interface is a network interface with its addresses, but for link-local ones.
type Interface struct {
	Name   string   `json:"name"`
	Addrs  []string `json:"addresses"` // "10.0.0.1/24"
	Bridge bool     `json:"bridge"`    // of containers or virtual machines on this node
}

// settings are the variables to show; a name that ends in * stands for all that begin so. Variables
// that the launcher sets by itself are not among them.
var settings = []string{
	"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "NCCL_*",
	"UCX_NET_DEVICES", "UCX_TLS",
	"OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_btl_tcp_*", "OMPI_MCA_oob_tcp_*", "OMPI_MCA_opal_warn*",
	"PRTE_MCA_oob_tcp_*", "PRTE_MCA_prte_if_*",
	"GOMAXPROCS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOCKSTEP_*", "LD_LIBRARY_PATH",
}

// setting returns the value of a variable as it stands in Settings, or "".
func (f *Facts) setting(name string) string {
	for _, s := range f.Settings {
		if n, v, _ := strings.Cut(s, "="); n == name {
			return v
		}
	}
	return ""
}

// Gather finds all facts that take no MPI; it looks at program too, if that is not "". Facts that
// cannot be learnt are left out or hold the reason; they are never an error. It blocks as long as
// the GPU's driver takes to start.
func Gather(program string) Facts {
	f := Facts{Launcher: Launcher(launcher.Environment()), Arch: runtime.GOARCH, ShmFree: -1}
	f.Host, _ = os.Hostname() // empty if it has none
	f.Machine = machine()
	f.Launch = describe("/proc/self/exe")
	f.Launch.Path, _ = os.Executable()
	if program != "" {
		p := lookUp(program)
		f.Program = &p
	}
	f.GPU, f.Libraries = gatherGPU()
	f.Libraries["OpenBLAS"] = blas()
	f.Cores, f.NodeCores = affinity()
	f.NUMA = numaOf(f.Cores)
	var fs unix.Statfs_t
	if unix.Statfs("/dev/shm", &fs) == nil {
		f.ShmFree = int64(fs.Bavail) * fs.Bsize
	}
	f.FileLimit, f.Temp.Path = launcher.LimitOf(unix.RLIMIT_FSIZE), launcher.Temp(os.Getenv)
	var err error
	if f.Temp.Free, err = launcher.TempFree(f.Temp.Path); err != nil {
		f.Temp.Err = err.Error()
	}
	if job := launcher.Job(f.Launcher); strings.HasPrefix(job.Name, "openmpi") {
		f.Apart = launcher.FindApart()
		job.SetApart(f.Apart) // before the library starts
	}
	f.Memlock, f.NoFile = launcher.LimitOf(unix.RLIMIT_MEMLOCK), launcher.LimitOf(unix.RLIMIT_NOFILE)
	f.Stack = launcher.LimitOf(unix.RLIMIT_STACK)
	for _, dev := range entries("/sys/class/infiniband") {
		f.RDMA = append(f.RDMA, dev.Name())
	}
	f.Interfaces = interfaces()
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if slices.ContainsFunc(settings, func(s string) bool {
			begin, prefix := strings.CutSuffix(s, "*")
			return name == s || prefix && strings.HasPrefix(name, begin)
		}) {
			f.Settings = append(f.Settings, kv)
		}
	}
	slices.Sort(f.Settings)
	return f
}

// machine names the boot of the kernel and the network namespace.
func machine() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // empty if /proc hides it: then all count as one
	ns, _ := os.Readlink("/proc/self/ns/net")
	return strings.TrimSpace(string(boot)) + " " + ns
}

// entries lists a folder; a missing one is empty.
func entries(dir string) []fs.DirEntry {
	all, _ := os.ReadDir(dir)
	return all
}

func lookUp(program string) File {
	path := program
	if !strings.Contains(program, "/") {
		found, err := exec.LookPath(program)
		if err != nil {
			return File{Path: program, Err: "not in PATH"}
		}
		path = found
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return describe(path)
}

// describe reads a file, for its checksum and for its ELF tables.
func describe(path string) File {
	f := File{Path: path}
	file, err := os.Open(path)
	if err != nil {
		var e *fs.PathError
		if errors.As(err, &e) {
			err = e.Err
		}
		f.Err = err.Error()
		return f
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is not a regular file")
	}
	if err == nil {
		f.SHA256, err = launcher.Checksum(path)
	}
	if err != nil {
		f.Err = err.Error()
		return f
	}
	f.Exec = unix.Access(path, unix.X_OK) == nil
	if l, err := launcher.ReadLinked(file); err == nil { // else a script
		f.Arch, f.MPI = l.Arch, l.MPI
	}
	return f
}

// affinity returns the cores that this process may run on, and how many it could be given: the
// kernel trims a wish for all of them to those of the container or the job.
func affinity() (mine []int, all int) {
	type answer struct {
		mine []int
		all  int
	}
	c := make(chan answer)
	go func() {
		runtime.LockOSThread() // and ends with it: the thread's own cores are changed
		var now, wish unix.CPUSet
		if unix.SchedGetaffinity(0, &now) != nil {
			c <- answer{}
			return
		}
		a := answer{members(&now), now.Count()}
		for i := range len(wish) * strconv.IntSize {
			wish.Set(i)
		}
		var given unix.CPUSet
		if unix.SchedSetaffinity(0, &wish) == nil && unix.SchedGetaffinity(0, &given) == nil {
			a.all = max(a.all, given.Count())
		}
		c <- a
	}()
	a := <-c
	return a.mine, a.all
}

func members(set *unix.CPUSet) (cpus []int) {
	for i := range len(set) * strconv.IntSize {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// numaOf returns the NUMA nodes of cores, none if the kernel does not tell.
func numaOf(cores []int) (nodes []int) {
	for _, dir := range entries("/sys/devices/system/node") {
		n, err := strconv.Atoi(strings.TrimPrefix(dir.Name(), "node"))
		if err != nil {
			continue
		}
		list, _ := os.ReadFile("/sys/devices/system/node/" + dir.Name() + "/cpulist")
		if slices.ContainsFunc(strings.Split(strings.TrimSpace(string(list)), ","), func(span string) bool {
			lo, hi, ok := readable.Span(span)
			return ok && slices.ContainsFunc(cores, func(c int) bool { return lo <= c && c <= hi })
		}) {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func interfaces() (all []Interface) {
	list, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		_, err = os.Stat("/sys/class/net/" + i.Name + "/bridge")
		found := Interface{Name: i.Name, Bridge: err == nil}
		for _, a := range addrs {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
				found.Addrs = append(found.Addrs, a.String())
			}
		}
		if len(found.Addrs) > 0 {
			all = append(all, found)
		}
	}
	return all
}

// lastLine returns the last line of text that is not empty.
func lastLine(text string) (line string) {
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		if t := strings.TrimSpace(s.Text()); t != "" {
			line = t
		}
	}
	return line
}
