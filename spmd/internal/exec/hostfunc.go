package exec

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"lockstep/internal/ccall"
)

// hostFuncs are the functions of HostFunc that run in this process, known by their threads.
var hostFuncs struct {
	running atomic.Int32
	mu      sync.Mutex
	threads map[int]hostFunc
}

// hostFunc is the command that runs a function, for --check.
type hostFunc struct {
	r *Races
	u *use
}

// HostFunc runs a function of a program in the middle of a queue, by Guard.
func HostFunc(fn func() error) error {
	h := &hostFuncs
	runtime.LockOSThread() // no other goroutine has its thread meanwhile
	defer runtime.UnlockOSThread()
	me := unix.Gettid()
	h.mu.Lock()
	if h.threads == nil {
		h.threads = map[int]hostFunc{}
	}
	h.threads[me] = hostFunc{}
	h.mu.Unlock()
	h.running.Add(1)
	defer func() {
		h.running.Add(-1)
		h.mu.Lock()
		delete(h.threads, me)
		h.mu.Unlock()
	}()
	return Guard(fn)
}

// HostFuncApart is HostFunc for a thread that is not Go's own. There runtime.Goexit would end the
// process.
func HostFuncApart(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		finished := false
		defer func() {
			if !finished {
				err = Exited()
			}
			done <- err
		}()
		err = HostFunc(fn)
		finished = true
	}()
	return <-done
}

// HostFuncRuns reports whether a function of HostFunc runs, of whichever rank of this process.
func HostFuncRuns() bool { return hostFuncs.running.Load() != 0 }

// RefuseInHostFunc refuses op if a function of HostFunc calls it. CUDA refuses calls there or waits
// for ever, so the host refuses them too. It does not find goroutines that such a function has
// started. It costs a load if no such function runs.
func RefuseInHostFunc(op string) error {
	if !HostFuncRuns() {
		return nil
	}
	return refuse(op)
}

// InHostFunc reports whether a function of HostFunc calls it.
func InHostFunc() bool {
	if !HostFuncRuns() {
		return false
	}
	h := &hostFuncs
	h.mu.Lock()
	defer h.mu.Unlock()
	_, in := h.threads[unix.Gettid()]
	return in
}

// refuse is apart, so that the question before it is inlined.
func refuse(op string) error {
	if InHostFunc() {
		return fmt.Errorf("%s: %s in a function of HostFunc, which may not use streams, events, graphs, "+
			"communicators and a GPU's memory", ccall.At(), op)
	}
	return nil
}
