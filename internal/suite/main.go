// Command suite runs the tests as go test does. At its end it says what every change should know of
// them: how much make test-all has more, and how often Open MPI's own end went wrong.
//
// It can also measure the slowest tests, and the processor time of each package with its ranks.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

func main() {
	if len(os.Args) > 3 && os.Args[1] == measure {
		os.Exit(measured(os.Args[2], os.Args[3:]))
	}
	fs := pflag.NewFlagSet("suite", pflag.ExitOnError)
	fs.Usage = func() {
		fmt.Fprintf(os.Stderr, "go run ./internal/suite [flags] -- [flags of go test] PACKAGES\n%s", fs.FlagUsages())
	}
	var o options
	fs.BoolVar(&o.all, "all", false, "all cases, as make test-all")
	fs.BoolVar(&o.costs, "costs", false, "show the slowest tests, and the processor time of each package")
	_ = fs.Parse(os.Args[1:]) // pflag.ExitOnError
	if err := run(os.Stdout, o, fs.Args()); err != nil {
		if !errors.As(err, new(*exec.ExitError)) {
			fmt.Fprintln(os.Stderr, "suite:", err)
		}
		os.Exit(1)
	}
}

// quickPrograms is how many test programs make test links at most.
const quickPrograms = 40

type options struct{ all, costs bool }

// run runs go test with args.
func run(out io.Writer, o options, args []string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "suite")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", append([]string{"test", "-json", "-exec",
		fmt.Sprintf("'%s' %s '%s'", self, measure, dir)}, args...)...)
	cmd.Env, cmd.Stderr = os.Environ(), os.Stderr
	cases := "LOCKSTEP_TESTS=quick"
	if o.all {
		cases = "LOCKSTEP_TESTS=all"
	}
	cmd.Env = append(cmd.Env, cases)
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM) // go test also gets a Ctrl-C, and ends
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	r := newReport(out)
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	used, uerr := usages(dir)
	tested, lerr := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}.{{end}}", "./...").Output()
	if n := len(used); n > quickPrograms && !o.all {
		lerr = errors.Join(lerr, fmt.Errorf("make test has %d test programs, at most %d", n, quickPrograms))
	}
	r.end(used, strings.Count(string(tested), "."), o.costs, time.Since(begun), cpu(cmd.ProcessState.SysUsage()))
	return errors.Join(err, uerr, lerr)
}

// measure is the argument by which suite runs a test program: go test -exec.
const measure = "measure"

// usage is the processor time of a test program, with its ranks and all other processes that it
// has waited for.
type usage struct {
	Dir          string // of the package
	User, System time.Duration
}

// cpu returns the time of processes that were waited for.
func cpu(rusage any) usage {
	r, ok := rusage.(*syscall.Rusage)
	if !ok {
		return usage{}
	}
	return usage{User: time.Duration(r.Utime.Nano()), System: time.Duration(r.Stime.Nano())}
}

// measured runs a test program, notes its usage in a file in dir, and returns its status.
func measured(dir string, words []string) int {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT) // go test sends SIGQUIT after its -timeout
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	_ = cmd.Wait() // the status says it
	if err := note(dir, cpu(cmd.ProcessState.SysUsage())); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if s := cmd.ProcessState.ExitCode(); s >= 0 {
		return s
	}
	fmt.Fprintln(os.Stderr, cmd.ProcessState)
	return 1
}

func note(dir string, u usage) error {
	var err error
	if u.Dir, err = os.Getwd(); err != nil {
		return err
	}
	b, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprint(os.Getpid())), b, 0o600)
}

// usages reads the notes in dir.
func usages(dir string) (all []usage, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		var u usage
		if err := json.Unmarshal(b, &u); err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}
