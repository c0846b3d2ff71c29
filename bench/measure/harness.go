package measure

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
)

// The sets of groups, each with a file of results of its name.
const (
	HostSet = "host"
	GPUSet  = "gpu" // for machines that have GPUs
)

// Sets are the names of both.
var Sets = []string{HostSet, GPUSet}

// Row is one comparison. A ratio below 1 is better for us. goal is the wanted ratio, or the value
// in unit if there is no peer.
type Row struct {
	Bench   string   `json:"bench"`
	What    string   `json:"what"`
	Ranks   int      `json:"ranks"`
	Device  string   `json:"device"`
	Ours    float64  `json:"ours"`
	Theirs  *float64 `json:"theirs"`
	Unit    string   `json:"unit"`
	Peer    *string  `json:"peer"`
	Ratio   *float64 `json:"ratio"`
	Goal    float64  `json:"goal"`
	Met     bool     `json:"met"`
	Machine string   `json:"machine"`
	Commit  string   `json:"commit"`
	Date    string   `json:"date"`
	Command string   `json:"command"`
	// Parts are the parts of ours, in its unit.
	Parts map[string]float64 `json:"parts,omitempty"`
}

// Harness runs programs and compares their measurements.
type Harness struct {
	Bin      string // folder of the built programs
	CSources string // folder of the C programs' sources
	Dir      string // temporary: the C programs, built
	Out      string // folder of the results
	Rounds   int
	LLMC     string
	Commit   string
	machine  string
	GPUs     []string // names of the machine's GPUs
	WhyNoGPU string   // if there are none
	Line     string   // the command line, if it differs from command's
	Rows     []Row    // of the group that runs
	Set      string   // of groups, whose group runs
	Group    string   // its name
	Doing    Doing    // what is measured now
}

// DefaultRounds is the default number of turns of each side.
const DefaultRounds = 5

// Prepare notes the commit and the machine of the measurements.
func (b *Harness) Prepare() error {
	var err error
	if b.Dir, err = os.MkdirTemp("", "lockstep-bench"); err != nil {
		return err
	}
	if b.Commit == "" {
		b.Commit = "unknown" // no git, or it refuses a checkout that belongs to somebody else
		if commit, err := Output("git", "describe", "--always", "--dirty", "--abbrev=12"); err == nil {
			b.Commit = strings.TrimSpace(commit)
		}
	}
	if b.machine, err = machine(); err != nil {
		return err
	}
	list, err := Output("nvidia-smi", "-L")
	if err != nil {
		b.WhyNoGPU = strings.TrimSpace(err.Error())
		return nil
	}
	if b.GPUs = gpuNames(list); len(b.GPUs) == 0 {
		b.WhyNoGPU = "nvidia-smi -L lists no GPU"
	}
	return nil
}

// gpuNames reads lines such as "GPU 0: NVIDIA H200 (UUID: GPU-...)".
func gpuNames(list string) []string {
	var gpus []string
	for line := range strings.Lines(list) {
		number, name, ok := strings.Cut(line, ": ")
		name, _, found := strings.Cut(name, " (UUID")
		if ok && found && strings.HasPrefix(number, "GPU ") {
			gpus = append(gpus, name)
		}
	}
	return gpus
}

// Program returns a built program of the framework.
func (b *Harness) Program(name string) string { return filepath.Join(b.Bin, name) }

// Rank returns the command line by which this program measures itself on n ranks.
func (b *Harness) Rank(n int, what string) ([]string, error) {
	return b.Self(n, "rank", "--what", what)
}

// Self returns the command line of one of this program's commands for ranks, on n of them.
func (b *Harness) Self(n int, command string, flags ...string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return MPIRun(n, append([]string{self, command, "--json", "-", "--log-level", "warn", "--device", b.DeviceName()},
		flags...)...), nil
}

// DeviceName returns --device of programs in the present set of groups.
func (b *Harness) DeviceName() string {
	if b.Set == GPUSet {
		return "cuda"
	}
	return "host"
}

// C builds a C program, once, and returns its file.
func (b *Harness) C(name string, compiler ...string) (string, error) {
	file := filepath.Join(b.Dir, name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	cmd := append([]string{compiler[0], "-O3", "-o", file, filepath.Join(b.CSources, name+".c")}, compiler[1:]...)
	_, err := Output(cmd...)
	return file, err
}

// CC returns the C compiler for programs without MPI.
func CC() string { return cmp.Or(os.Getenv("CC"), "gcc") }

// machine returns the processor's name and the number of cores.
func machine() (string, error) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	model, cores := "unknown processor", 0
	for line := range strings.Lines(string(info)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			model = strings.TrimSpace(value)
		case "processor":
			cores++
		}
	}
	return fmt.Sprintf("%s, %d cores", model, cores), nil
}

// CompareTimes adds a row with the time of a peer. The ratio is ours over theirs.
func (b *Harness) CompareTimes(r Row, peer string, theirs float64) {
	b.compare(r, peer, theirs, r.Ours/theirs)
}

// CompareRates adds a row with the rate of a peer. The ratio is theirs over ours.
func (b *Harness) CompareRates(r Row, peer string, theirs float64) {
	b.compare(r, peer, theirs, theirs/r.Ours)
}

func (b *Harness) compare(r Row, peer string, theirs, ratio float64) {
	r.Theirs, r.Peer, r.Ratio = &theirs, &peer, &ratio
	r.Met = ratio <= r.Goal
	b.add(r)
}

// Limit adds a row without a peer: ours must not exceed goal.
func (b *Harness) Limit(r Row) {
	r.Met = r.Ours <= r.Goal
	b.add(r)
}

func (b *Harness) add(r Row) {
	r.Bench = b.Group
	r.Device, r.Machine = b.Hardware()
	r.Commit, r.Date = b.Commit, time.Now().UTC().Format(time.DateOnly)
	r.Command = b.command(r.Bench)
	b.Rows = append(b.Rows, r)
}

// Hardware returns the device of the present set of groups, and the machine.
func (b *Harness) Hardware() (device, machine string) {
	if b.Set == GPUSet {
		return b.GPUs[0], b.machine + fmt.Sprintf(", %d x %s", len(b.GPUs), b.GPUs[0])
	}
	return "host", b.machine
}

// command returns the line that measures a group again in the same way.
func (b *Harness) command(group string) string {
	if b.Line != "" {
		return b.Line
	}
	cmd := "bin/bench --only " + group
	if b.Rounds != DefaultRounds {
		cmd += " --rounds " + strconv.Itoa(b.Rounds)
	}
	if b.LLMC != "" && group == "train" {
		cmd += " --llmc " + b.LLMC
	}
	return cmd
}

// Parse reads this program's command line for a command whose settings are all flags.
func Parse(fs *pflag.FlagSet) error {
	cli.Parse(fs, os.Args[1:])
	if fs.NArg() > 0 {
		return fmt.Errorf("unknown command or argument %q: %s --help shows the flags, and bench/README.md the commands",
			fs.Arg(0), fs.Name())
	}
	return nil
}

// Repeatable returns the given flags, except those that fit only this machine.
func Repeatable(fs *pflag.FlagSet) string {
	line := ""
	fs.SortFlags = false
	fs.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "out", "bin", "c-sources", "python", "python-sources", "commit":
		case "nccl-tests":
			line += " --nccl-tests DIR"
		default:
			line += fmt.Sprintf(" --%s=%s", f.Name, strings.Trim(f.Value.String(), "[]"))
		}
	})
	return line
}
