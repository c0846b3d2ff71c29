// Package doctor shows and judges the findings of a job's ranks: the machine, GPUs, libraries,
// network, binding, limits.
//
// The launch command links no MPI, so that it runs on machines without it. A program of its own,
// launch-probe, finds the facts that take MPI. Each rank's launch starts it in its own place, with
// the launcher's environment and the facts so far. It gathers the facts of all ranks on rank 0,
// which shows and judges them. If that program cannot start, dies or does not come back, launch
// says so, with rank and host.
package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lockstep/internal/cli"
	"lockstep/internal/launcher"
	"lockstep/internal/process"
)

// Job is launch's message to launch-probe, as JSON on its standard input.
type Job struct {
	Facts   Facts         `json:"facts"`
	JSON    bool          `json:"json"`       // show the result as JSON
	Width   int           `json:"width"`      // of the page
	Timeout time.Duration `json:"timeout_ns"` // after which launch-probe is ended
	First   bool          `json:"first"`      // speaks for ranks that do not know each other
}

// Show writes the result to standard output in the form asked for.
func (job *Job) Show(r *Result) error {
	if job.JSON {
		return r.WriteJSON(cli.Stdout)
	}
	return r.Write(cli.Stdout, job.Width)
}

// PhaseFD is the descriptor to which launch-probe writes its phases, a line each.
const PhaseFD = 3

// Phases of launch-probe whose names matter: a probe in the first waits for nobody, and after the
// last all is said.
const (
	PhaseStart = "its start"
	PhaseInit  = "MPI_Init"
	PhaseGPU   = "the test of GPU memory through MPI"
	PhaseDone  = "its end"
)

// GPUTime returns how long a node may test GPU memory through MPI, while other ranks wait for it.
// It comes on top of Timeout: a test that hangs, behind a slow start, is not taken for ranks that
// do not meet.
func (job *Job) GPUTime() time.Duration { return job.Timeout / 3 }

// Extension is launch-probe's time on top of Timeout once it has come to PhaseGPU.
func (job *Job) Extension() time.Duration { return job.GPUTime() + Grace }

// Grace is how long a rank lets others speak that know more, before it ends and the launcher ends
// them.
const Grace = 2 * time.Second

// Command returns launch doctor.
func Command() *cobra.Command {
	var asJSON bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "doctor [flags] [-- program]",
		Short: "Show and judge what the ranks of a job find",
		Long: `Shows and judges the findings of a job's ranks: GPUs, libraries, network, binding, limits; whether
they agree, and whether they reach each other. It runs alone, or as the job would:

    launch doctor
    mpirun -np 4 launch doctor -- bin/train
    srun --mpi=pmix -n 4 launch doctor

The exit status is 1 if something FAILs, on all ranks.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				args = args[:1] // the program's own arguments do not matter
			}
			if timeout <= 0 {
				return cli.Usage{Err: fmt.Errorf("--timeout %v: a time above 0 is meant, such as 60s", timeout)}
			}
			return run(strings.Join(args, ""), asJSON, timeout)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object: the facts of all ranks and the findings")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long launch-probe may take to meet the other ranks")
	return cmd
}

func run(program string, asJSON bool, timeout time.Duration) error {
	job := Job{Facts: Gather(program), JSON: asJSON, Width: pageWidth(), Timeout: timeout,
		First: launcher.Environment().First()}
	status, failure := job.probe()
	if failure == nil {
		if status != 0 {
			return cli.Status(status)
		}
		return nil
	}
	return job.explain(failure)
}

// pageWidth is usually 100 under mpirun, where there is no terminal.
func pageWidth() int { return min(max(cli.Width(os.Stdout.Fd(), 100), 80), 120) }

// failure is why launch-probe has said nothing.
type failure struct {
	what, do string
	delay    int  // how many times Grace other ranks may need to say something better
	all      bool // it is the same on all ranks: one speaks for them
}

// explain says alone what launch-probe would have said of all ranks: rank 0 shows its own facts
// too.
func (job *Job) explain(why *failure) error {
	f := job.Facts
	time.Sleep(time.Duration(why.delay) * Grace)
	if why.all && !job.First {
		return cli.Status(1)
	}
	r := Result{Ranks: []Facts{f}, Findings: Judge([]Facts{f})}
	finding := Finding{Fail, []int{f.Rank()}, fmt.Sprintf("rank %d on %s", f.Rank(), f.Host), why.what, why.do}
	if why.all {
		finding.Ranks, finding.Where = allRanks(f.Launcher.Size), "all ranks"
	}
	r.Findings = append([]Finding{finding}, r.Findings...)
	if n := f.Launcher.Size; n > 1 {
		r.NotChecked = append(r.NotChecked, fmt.Sprintf("the other ranks of %d, and whether all agree "+
			"and reach each other", n))
	}
	if f.Rank() > 0 && !job.JSON {
		fmt.Fprintln(cli.Stdout, r.Findings[0])
	} else if err := job.Show(&r); err != nil {
		return err
	}
	return cli.Status(1)
}

// ended is how launch-probe ended.
type ended struct {
	err     error  // of starting it, or of its status
	code    int    // its status; -1 if a signal ended it, or it never started
	phase   string // the last that it began
	stderr  []byte
	late    bool          // it did not come back in time
	stopped bool          // and was stopped, as by SIGSTOP
	limit   time.Duration // the time that it had
}

// probe runs launch-probe and returns its exit status, or why it has shown nothing. It ends within
// some seconds of the job's Timeout, and its Extension.
func (job *Job) probe() (int, *failure) {
	exe, err := os.Executable()
	if err != nil {
		return 0, &failure{what: "cannot find its own file: " + err.Error(), do: "mount /proc"}
	}
	path := filepath.Join(filepath.Dir(exe), "launch-probe")
	e := job.start(path)
	last := lastLine(string(e.stderr))
	others := min(job.Facts.Launcher.Rank, 1) // delays for what may happen to all ranks alike
	loader := "error while loading shared libraries: "
	switch name := job.Facts.Launcher.Name; {
	case errors.Is(e.err, fs.ErrNotExist):
		return 0, &failure{path + " is missing: what takes MPI is not checked",
			"make build, and copy bin/launch and bin/launch-probe to the same folder of every node", others, false}
	case strings.Contains(last, loader):
		return 0, &failure{"MPI cannot be loaded: " + last[strings.Index(last, loader)+len(loader):],
			"apt-get install libopenmpi3 (Debian 13, Ubuntu 24.04 and later: libopenmpi3t64 or " +
				"libopenmpi40), or add its folder to LD_LIBRARY_PATH", others, false}
	case e.phase == PhaseInit && e.code > 0 && (name == "slurm" || name == "slurm-pmi2"):
		return 0, &failure{"srun has started this without PMIx, and MPI_Init fails",
			pmixAdvice(job.Facts.Launcher.Size), others, true}
	}
	os.Stderr.Write(e.stderr) // what MPI itself has to say
	switch {
	case e.late && e.stopped:
		return 0, &failure{"launch-probe is stopped, in " + e.phase, "kill -CONT, or see who stops it", 0, false}
	case e.late && e.phase == PhaseStart:
		return 0, &failure{fmt.Sprintf("launch-probe did not come back within %v: it hangs in %s", e.limit, e.phase),
			"see dmesg and the load of the machine", 0, false}
	case e.late:
		return 0, &failure{fmt.Sprintf("launch-probe did not come back within %v: it waited in %s", e.limit, e.phase),
			unreached(&job.Facts), 2 + others, false}
	case e.code < 0:
		return 0, &failure{fmt.Sprintf("launch-probe died in %s: %v", e.phase, e.err),
			"see dmesg (lack of memory?) and what is printed above", 0, false}
	case e.phase != PhaseDone:
		return 0, &failure{fmt.Sprintf("launch-probe failed in %s (status %d): %s", e.phase, e.code, last),
			"see what is printed above", others, false}
	}
	return e.code, nil
}

// start runs launch-probe to its end, or the job's Timeout and Extension.
func (job *Job) start(path string) ended {
	e := ended{phase: PhaseStart, code: -1, limit: job.Timeout}
	input, err := json.Marshal(job)
	if err != nil {
		e.err = err
		return e
	}
	fd, err := unix.MemfdCreate("phases", unix.MFD_CLOEXEC)
	if err != nil {
		e.err = err
		return e
	}
	phases := os.NewFile(uintptr(fd), "phases")
	defer phases.Close()
	runtime.LockOSThread() // the child dies with the thread that starts it
	defer runtime.UnlockOSThread()
	written := func() string {
		text := make([]byte, 4096)
		n, _ := phases.ReadAt(text, 0) // to the end of the file
		return string(text[:n])
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer cancel()
		over := func(limit time.Duration) bool {
			select {
			case <-ctx.Done():
				return false
			case <-time.After(limit):
				return true
			}
		}
		if over(job.Timeout) && strings.Contains(written(), PhaseGPU) {
			e.limit += job.Extension()
			over(job.Extension())
		}
	}()
	cmd := exec.CommandContext(ctx, path)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), os.Stdout, &stderr
	cmd.ExtraFiles = []*os.File{phases} // descriptor PhaseFD
	cmd.Env = append(os.Environ(), avoidBridges(&job.Facts)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		e.late, e.stopped = true, strings.HasPrefix(process.State(cmd.Process.Pid), "T")
		return cmd.Process.Kill()
	}
	cmd.WaitDelay = Grace
	e.err = cmd.Run()
	cancel()
	<-watched
	if cmd.ProcessState != nil {
		e.code = cmd.ProcessState.ExitCode()
	}
	e.stderr = stderr.Bytes()
	if line := lastLine(written()); line != "" {
		e.phase = line
	}
	return e
}

// avoidBridges keeps Open MPI, in launch-probe alone, off the bridges of containers, over which it
// would wait for ever for another node. A later finding says that the program will wait there too.
// Settings of the user stand.
func avoidBridges(f *Facts) []string {
	if f.has("OMPI_MCA_btl_tcp_if_include") || f.has("OMPI_MCA_btl_tcp_if_exclude") {
		return nil
	}
	names := []string{"lo"}
	for _, i := range f.Interfaces {
		if i.Bridge {
			names = append(names, i.Name)
		}
	}
	if len(names) == 1 {
		return nil
	}
	return []string{"OMPI_MCA_btl_tcp_if_exclude=" + strings.Join(names, ",")}
}

// unreached says what to try after MPI has waited in vain.
func unreached(f *Facts) string {
	var names []string
	for _, i := range f.Interfaces {
		names = append(names, i.Name)
	}
	do := "another rank has not come so far, or one is not reached: see whether mpirun starts all ranks"
	if len(names) == 0 {
		return do
	}
	return do + fmt.Sprintf(", and try the interfaces of this node (%s) one by one: mpirun --mca "+
		"btl_tcp_if_include %s", strings.Join(names, ", "), names[0])
}
