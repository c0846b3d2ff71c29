// Command bench measures the framework against its yardsticks on this machine,
// turn and turn about, and writes one JSON line for each comparison:
//
//	make bench                                 all rows
//	go run ./bench --only allreduce            one group
//	go run ./bench --llmc path/to/train_gpt2   training too, against that program
//
// Rows and fields are described in bench/README.md.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	mpienv "lockstep/internal/mpirun"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "rank" {
		os.Args = slices.Delete(os.Args, 1, 2)
		rank()
		return
	}
	if err := runner(); err != nil {
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
}

// bench is one run of this command.
type bench struct {
	dir    string // of built programs
	rounds int
	llmc   string

	machine string
	commit  string
	rows    []row // of the group that runs
}

const defaultRounds = 5

func runner() error {
	var only []string
	b := bench{}
	out := ""
	fs := pflag.NewFlagSet("bench", pflag.ExitOnError)
	fs.StringSliceVar(&only, "only", nil, "groups to run: "+strings.Join(names(), ", ")+" (default all)")
	fs.StringVar(&out, "out", "bench/results/host.jsonl", "file for the rows; rows of groups that are not run are kept")
	fs.IntVar(&b.rounds, "rounds", defaultRounds, "turns of each side; the median counts")
	fs.StringVar(&b.llmc, "llmc", "", "llm.c's train_gpt2, built for this machine, to compare training with; it is run in its folder")
	_ = fs.Parse(os.Args[1:]) // exits on a bad flag
	for _, o := range only {
		if !slices.Contains(names(), o) {
			return fmt.Errorf("--only %s: want %s", o, strings.Join(names(), ", "))
		}
	}
	if b.rounds < 1 {
		return fmt.Errorf("--rounds %d: must be at least 1", b.rounds)
	}
	defer func() { os.RemoveAll(b.dir) }()
	if err := b.prepare(); err != nil {
		return err
	}
	rows, err := readRows(out)
	if err != nil {
		return err
	}
	var failed []error
	for _, g := range groups {
		if len(only) > 0 && !slices.Contains(only, g.name) {
			continue
		}
		b.rows = nil
		err := g.run(&b)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", g.name, err))
		}
		rows = merge(rows, b.rows, g.name, err == nil)
		if err := writeRows(out, rows); err != nil {
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

// prepare builds what is measured into a temporary folder and notes what it runs
// on.
func (b *bench) prepare() error {
	var err error
	if b.dir, err = os.MkdirTemp("", "lockstep-bench"); err != nil {
		return err
	}
	for _, cmd := range [][]string{
		{"go", "build", "-buildvcs=false", "-o", b.dir, "./bench", "./apps/reduce", "./apps/matvec", "./apps/train"},
		{"mpicc", "-O3", "-o", b.program("allreduce"), "bench/c/allreduce.c"},
		{cmp.Or(os.Getenv("CC"), "gcc"), "-O3", "-march=native", "-pthread", "-o", b.program("readloop"), "bench/c/readloop.c"},
	} {
		if _, err := output(cmd...); err != nil {
			return err
		}
	}
	b.commit = "unknown" // git refuses a checkout that belongs to somebody else
	if commit, err := output("git", "describe", "--always", "--dirty", "--abbrev=12"); err == nil {
		b.commit = strings.TrimSpace(commit)
	}
	b.machine, err = machine()
	return err
}

func (b *bench) program(name string) string { return filepath.Join(b.dir, name) }

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

// output runs a command and returns its standard output; what it says on standard
// error is part of the error.
func output(cmd ...string) (string, error) { return outputWith(nil, cmd...) }

// outputWith is output with variables such as "NAME=value" added.
func outputWith(env []string, cmd ...string) (string, error) {
	c := exec.Command(cmd[0], cmd[1:]...)
	c.Env = append(mpienv.Env(0), env...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd, " "), err, &out, &errs)
	}
	return out.String(), nil
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
func (b *bench) compare(r row, peer string, theirs float64, rate bool) {
	ratio := r.Ours / theirs
	if rate {
		ratio = 1 / ratio
	}
	r.Theirs, r.Peer, r.Ratio = &theirs, &peer, &ratio
	r.Met = ratio <= r.Goal
	b.add(r)
}

// limit adds a row without a peer: ours must not exceed goal.
func (b *bench) limit(r row) {
	r.Met = r.Ours <= r.Goal
	b.add(r)
}

func (b *bench) add(r row) {
	r.Device, r.Machine, r.Commit, r.Date = "host", b.machine, b.commit, time.Now().UTC().Format(time.DateOnly)
	r.Command = b.command(r.Bench)
	b.rows = append(b.rows, r)
}

// command is the line that measures a group once more as it was measured now.
func (b *bench) command(group string) string {
	cmd := "go run ./bench --only " + group
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
