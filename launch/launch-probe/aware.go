package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/launch/doctor"
)

// sendArg makes launch-probe the process that sends GPU memory: a job of its own, so that a crash
// ends nothing else.
const sendArg = "send-gpu-memory"

// askAware asks MPI whether it takes GPU memory. If it says yes and there is a GPU, the first rank
// of each node tries it in another process.
func (p *probe) askAware(limit time.Duration) error {
	said, err := cudampi.CUDAAware()
	if err != nil {
		return err
	}
	a := &doctor.Awareness{Yes: said.Yes, Reason: said.Reason}
	p.facts.MPI.CUDA = a
	if said.Yes && p.node.Rank() == 0 && len(p.facts.GPU.Devices) > 0 {
		a.Tried, a.Failure = true, tryAware(limit)
	}
	return nil
}

// tryAware starts a process that sends GPU memory, and returns its failure, or "".
func tryAware(limit time.Duration) string {
	exe, err := os.Executable()
	if err != nil {
		return "could not be tried: " + err.Error()
	}
	runtime.LockOSThread() // the child dies with the thread that starts it
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, sendArg)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = alone(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = doctor.Grace
	err = cmd.Run()
	switch {
	case err == nil:
		return ""
	case ctx.Err() != nil:
		return fmt.Sprintf("did not come back within %v", limit)
	}
	return crash(err, out.String())
}

// goSignal matches Go's words on a signal that a C library raised, after which the status is 2.
var goSignal = regexp.MustCompile(`(?m)^(?:\[signal )?(SIG[A-Z]+): `)

// crash says how a process failed, given all its output.
func crash(err error, wrote string) string {
	var e *exec.ExitError
	if errors.As(err, &e) {
		if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			return fmt.Sprintf("crashed with signal %d (%v)", int(s.Signal()), s.Signal())
		}
	}
	if m := goSignal.FindStringSubmatch(wrote); m != nil {
		return "crashed with signal " + m[1]
	}
	lines := strings.Split(strings.TrimSpace(wrote), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return "failed: " + last
	}
	return "failed: " + err.Error()
}

// transports are the settings of Open MPI that choose how messages travel.
var transports = regexp.MustCompile(`^OMPI_MCA_(pml|btl|mtl|osc|smsc|accelerator|mpi_cuda|opal_cuda)`)

// launchers are the variables that tell a process that it is one of a job.
var launchers = regexp.MustCompile(`^(OMPI|PMIX|PMI2?|PRTE|ORTE|SLURM|HYDI|HYDRA)_`)

// alone returns an environment without the launcher: a process started in it is a job of its own,
// with the same transports.
func alone(env []string) []string {
	var kept []string
	for _, kv := range env {
		if transports.MatchString(kv) || !launchers.MatchString(kv) {
			kept = append(kept, kv)
		}
	}
	return append(kept, "OMPI_MCA_ess_singleton_isolated=1") // it needs no daemon
}

// sendGPUMemory sends itself GPU memory through MPI, in sizes small and large enough to make a
// difference to MPI.
func sendGPUMemory() (err error) {
	runtime.LockOSThread() // MPI takes the context of its caller's thread
	world, err := cudampi.Start()
	if err != nil {
		return err
	}
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	const most = 4 << 20
	var dst, src, host unsafe.Pointer
	for _, p := range []*unsafe.Pointer{&dst, &src} {
		if *p, err = dev.Malloc(most); err != nil {
			return err
		}
	}
	if host, err = dev.MallocHost(most); err != nil {
		return err
	}
	s, err := dev.NewStream(0)
	if err != nil {
		return err
	}
	seen := unsafe.Slice((*byte)(host), most)
	for _, n := range []int{8, 4 << 10, most} {
		const mark = 0xa5
		if err := errors.Join(s.Fill(src, 1, mark, n), s.Fill(dst, 1, 0, n), s.Synchronize()); err != nil {
			return err
		}
		if err := world.SendRecv(dst, n, 0, src, n, 0, elem.Uint8); err != nil {
			return err
		}
		if err := errors.Join(s.Copy(host, dst, n), s.Synchronize()); err != nil {
			return err
		}
		if got := bytes.Count(seen[:n], []byte{mark}); got != n {
			return fmt.Errorf("of %d bytes sent %d arrived", n, got)
		}
	}
	return errors.Join(s.Close(), dev.Free(dst), dev.Free(src), dev.FreeHost(host), dev.Close(), cudampi.Stop())
}
