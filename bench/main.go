// Command bench measures the framework against its yardsticks on this machine,
// turn and turn about, and writes one JSON line for each comparison:
//
//	make bench                                 all rows
//	bin/bench --only allreduce                 one group
//	bin/bench --only gpu                       all groups that need GPUs
//	bin/bench --llmc path/to/train_gpt2        training too, against that program
//	bin/bench sweep                            collectives by size, the apps by ranks, with plots
//	bin/bench train                            GPT-2s learn on GPUs, beside PyTorch
//	bin/bench loss --text FILE                 a GPT-2's loss on a GPU, step by step beside PyTorch's
//	bin/bench gemm                             the matrix products of GPT-2 with their epilogues, on one GPU
//	bin/bench model FILE                       what an all-reduce takes on more GPUs, from a sweep's measurements
//
// It runs programs that are built already, so it needs no Go; the C programs it
// compiles. Rows and fields are described in bench/README.md.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/help"
	mpienv "lockstep/internal/mpirun"
)

func main() {
	run := runner
	if args := os.Args[1:]; help.Asked(args) && len(args) > 2 && !strings.HasPrefix(args[1], "-") {
		args[0], args[1] = args[1], args[0] // the command first
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "sweep":
			run = sweepCommand
		case "rank":
			run = func() error { rank(); return nil }
		case "sweep-rank":
			run = func() error { sweepRank(); return nil }
		case "train":
			run = trainCommand
		case "loss":
			run = lossCommand
		case "model":
			run = modelCommand
		case "gemm":
			run = gemmCommand
		default:
			os.Args = slices.Insert(os.Args, 1, "")
		}
		os.Args = slices.Delete(os.Args, 1, 2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// row is one comparison. ratio below 1 is better for us; goal is the ratio asked
// for, or, where there is no peer, the value in unit.
type row struct {
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
	// Parts are what ours is made of, in its unit.
	Parts map[string]float64 `json:"parts,omitempty"`
}

// harness is what runs programs and compares what they measure.
type harness struct {
	bin      string // folder of the built programs
	csrc     string // folder of the C programs' sources
	dir      string // temporary: the C programs, built
	out      string // folder of the results
	rounds   int
	llmc     string
	commit   string
	machine  string
	gpus     []string // names of the machine's GPUs
	whyNoGPU string   // where there are none
	line     string   // the command line, where it is another than command's
	rows     []row    // of the group that runs
	set      string   // of groups, whose group runs
	group    string   // its name
}

// bench is one run of this command without a subcommand.
type bench struct{ harness }

const defaultRounds = 5

func runner() error {
	var only []string
	var b bench
	fs := pflag.NewFlagSet("bench", pflag.ExitOnError)
	fs.StringSliceVar(&only, "only", nil, "what to run: "+strings.Join(sets, ", ")+", or groups: "+strings.Join(names(), ", ")+" (default all)")
	fs.StringVar(&b.out, "out", "bench/results", "`DIR` for host.jsonl and gpu.jsonl; rows of groups that are not run are kept")
	fs.StringVar(&b.bin, "bin", "bin", "`DIR` of the built programs reduce, matvec, stencil and train")
	fs.StringVar(&b.csrc, "c-sources", "bench/c", "`DIR` of the C programs' sources")
	fs.StringVar(&b.commit, "commit", "", "what the programs were built from (default what git says here)")
	fs.IntVar(&b.rounds, "rounds", defaultRounds, "turns of each side; the median counts")
	fs.StringVar(&b.llmc, "llmc", "", "llm.c's train_gpt2, built for this machine, to compare training with; it is run in its folder")
	help.Parse(fs, os.Args[1:])
	for _, o := range only {
		if !slices.Contains(names(), o) && !slices.Contains(sets, o) {
			return fmt.Errorf("--only %s: want %s, %s", o, strings.Join(sets, ", "), strings.Join(names(), ", "))
		}
	}
	if b.rounds < 1 {
		return fmt.Errorf("--rounds %d: must be at least 1", b.rounds)
	}
	defer func() { os.RemoveAll(b.dir) }()
	if err := b.prepare(); err != nil {
		return err
	}
	var failed []error
	for _, set := range sets {
		if err := b.runSet(set, only); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// runSet runs the groups of a set that were asked for, and writes its file.
func (b *bench) runSet(set string, only []string) error {
	var run []*group
	for i, g := range groups {
		if g.set == set && (len(only) == 0 || slices.Contains(only, g.name) || slices.Contains(only, set)) {
			run = append(run, &groups[i])
		}
	}
	switch {
	case len(run) == 0:
		return nil
	case set == gpuSet && len(b.gpus) == 0:
		fmt.Fprintf(os.Stderr, "bench: %s is skipped: %s\n", set, b.whyNoGPU)
		return nil
	}
	file := filepath.Join(b.out, set+".jsonl")
	rows, err := readRows(file)
	if err != nil {
		return err
	}
	var failed []error
	for _, g := range run {
		b.set, b.group, b.rows = g.set, g.name, nil
		err := g.run(b)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", g.name, err))
		}
		rows = merge(rows, b.rows, g.name, err == nil)
		if err := writeRows(file, rows); err != nil {
			return errors.Join(append(failed, err)...)
		}
	}
	print(rows)
	return errors.Join(failed...)
}

// merge puts the new rows of a group among the others, in the order of groups. A
// group that ended well has no other rows; of one that failed, those stay that
// were not measured anew.
func merge(rows, measured []row, name string, whole bool) []row {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool {
		return r.Bench == name && (whole || slices.ContainsFunc(measured, func(m row) bool { return m.What == r.What }))
	})
	rows = append(rows, measured...)
	place := names()
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Compare(slices.Index(place, a.Bench), slices.Index(place, b.Bench))
	})
	return rows
}

// prepare notes what is measured and what it runs on.
func (b *harness) prepare() error {
	var err error
	if b.dir, err = os.MkdirTemp("", "lockstep-bench"); err != nil {
		return err
	}
	if b.commit == "" {
		b.commit = "unknown" // no git, or it refuses a checkout that belongs to somebody else
		if commit, err := output("git", "describe", "--always", "--dirty", "--abbrev=12"); err == nil {
			b.commit = strings.TrimSpace(commit)
		}
	}
	if b.machine, err = machine(); err != nil {
		return err
	}
	list, err := output("nvidia-smi", "-L")
	if err != nil {
		b.whyNoGPU = strings.TrimSpace(err.Error())
		return nil
	}
	if b.gpus = gpuNames(list); len(b.gpus) == 0 {
		b.whyNoGPU = "nvidia-smi -L lists no GPU"
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

// program is a built program of the framework.
func (b *harness) program(name string) string { return filepath.Join(b.bin, name) }

// rank is the command line by which this program measures itself on n ranks.
func (b *harness) rank(n int, what string, flags ...string) ([]string, error) {
	return b.self(n, "rank", append([]string{"--what", what}, flags...)...)
}

// self is the command line of one of this program's commands for ranks, on n of
// them.
func (b *harness) self(n int, command string, flags ...string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return mpirun(n, append([]string{self, command, "--json", "-", "--log-level", "warn", "--device", b.deviceName()}, flags...)...), nil
}

// deviceName is --device of programs in the set of groups that runs.
func (b *harness) deviceName() string {
	if b.set == gpuSet {
		return "cuda"
	}
	return "host"
}

// c builds a C program, once, and returns its file.
func (b *harness) c(name string, compiler ...string) (string, error) {
	file := filepath.Join(b.dir, name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	cmd := append([]string{compiler[0], "-O3", "-o", file, filepath.Join(b.csrc, name+".c")}, compiler[1:]...)
	_, err := output(cmd...)
	return file, err
}

// cc is the C compiler for what is no MPI program.
func cc() string { return cmp.Or(os.Getenv("CC"), "gcc") }

// machine is the processor's name and the number of cores.
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

// longest is how long a program may run before it counts as hung.
const longest = 15 * time.Minute

// output runs a command and returns its standard output; what it says on standard
// error is part of the error.
func output(cmd ...string) (string, error) {
	out, _, err := outputs(nil, cmd...)
	return out, err
}

// interrupted is done when no more is to be measured.
var interrupted = context.Background()

// outputs is output with variables such as "NAME=value" added; it returns standard
// error, too.
func outputs(env []string, cmd ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(interrupted, longest)
	defer cancel()
	c := exec.CommandContext(ctx, cmd[0], cmd[1:]...)
	c.Env = append(programEnv(), env...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // mpirun ends its ranks
	c.WaitDelay = 10 * time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return "", "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd, " "), errors.Join(err, ctx.Err()), &out, &errs)
	}
	return out.String(), errs.String(), nil
}

// programEnv is the environment of the programs that are measured.
func programEnv() []string { return slices.Concat(mpienv.Env(0), binding(os.Environ())) }

// binding are the variables of an environment that bind ranks to cores. Otherwise mpienv.Env leaves all of them unbound,
// as launch run does: the threads of a rank, NCCL's among them, use several.
func binding(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		return !strings.HasPrefix(v, "OMPI_MCA_hwloc_base_binding_policy=") && !strings.HasPrefix(v, "PRTE_MCA_hwloc_default_binding_policy=")
	})
}

// mpirun is the command line for a program on n ranks.
func mpirun(n int, cmd ...string) []string {
	return append([]string{"mpirun", "-np", strconv.Itoa(n)}, cmd...)
}

// lines decodes a program's JSON lines, passing over what is none.
func lines[T any](out string) ([]T, error) {
	var all []T
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// compare adds a row with a peer. For times ratio is ours over theirs, for rates
// theirs over ours.
func (b *harness) compare(r row, peer string, theirs float64, rate bool) {
	ratio := r.Ours / theirs
	if rate {
		ratio = 1 / ratio
	}
	r.Theirs, r.Peer, r.Ratio = &theirs, &peer, &ratio
	r.Met = ratio <= r.Goal
	b.add(r)
}

// limit adds a row without a peer: ours must not exceed goal.
func (b *harness) limit(r row) {
	r.Met = r.Ours <= r.Goal
	b.add(r)
}

func (b *harness) add(r row) {
	r.Bench = b.group
	r.Device, r.Machine = b.hardware()
	r.Commit, r.Date = b.commit, time.Now().UTC().Format(time.DateOnly)
	r.Command = b.command(r.Bench)
	b.rows = append(b.rows, r)
}

// hardware is the device of the set of groups that runs, and the machine.
func (b *harness) hardware() (device, machine string) {
	if b.set == gpuSet {
		return b.gpus[0], b.machine + fmt.Sprintf(", %d x %s", len(b.gpus), b.gpus[0])
	}
	return "host", b.machine
}

// command is the line that measures a group once more as it was measured now.
func (b *harness) command(group string) string {
	if b.line != "" {
		return b.line
	}
	cmd := "bin/bench --only " + group
	if b.rounds != defaultRounds {
		cmd += " --rounds " + strconv.Itoa(b.rounds)
	}
	if b.llmc != "" && group == "train" {
		cmd += " --llmc " + b.llmc
	}
	return cmd
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

func readRows(name string) ([]row, error) {
	data, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return lines[row](string(data))
}

func writeRows(name string, rows []row) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, r := range rows {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o666)
}
