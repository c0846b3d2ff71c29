package job

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"lockstep/internal/cli"
	"lockstep/internal/launcher"
	"lockstep/internal/process"
	"lockstep/internal/readable"
)

const (
	// speakFirst is how long a rank waits for a lower rank to report bad input. Rank 0 finds the
	// same as the others, and its exit ends the job.
	speakFirst = 3 * time.Second
	// How long a process without MPI waits before its exit: for each rank of the job, and at most.
	settleEach = 40 * time.Millisecond
	mostSettle = 2500 * time.Millisecond
)

// refuse ends a job that has bad input, in a process in which MPI does not run. Open MPI 4's mpirun
// may wait for ever when a process ends while others are being started: with 64 processes on 2
// cores it did so in 5 of 5 runs. So refuse waits first.
func refuse(name string, rank, size int, err error) int {
	settle := time.Duration(0)
	if size > 1 {
		settle = min(time.Duration(size)*settleEach, mostSettle)
	}
	if errors.As(err, new(launcher.AloneError)) { // each is a job of its own, but one speaks for those of the node
		if launcher.Environment().First() {
			speak(name, 0, err)
			settle = speakFirst
		}
		time.Sleep(settle)
		return exitUsage
	}
	if rank != 0 {
		time.Sleep(settle) // rank 0 is still there
	}
	speak(name, rank, err)
	if rank == 0 {
		time.Sleep(settle)
	}
	return exitUsage
}

// speak says on one line why the job ends. Usually all ranks find the same, and one line is enough.
// So rank 0 speaks at once. Its exit makes the launcher end the others. They wait for that, and
// speak only if it does not come.
func speak(name string, rank int, err error) {
	leaveToFirst(rank)
	cli.Stderr.Close()
	fmt.Fprintf(os.Stderr, "%s: %s\n", name, readable.Line(strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// leaveToFirst waits until rank 0, and then rank 1, have had the time to report the same.
func leaveToFirst(rank int) { time.Sleep(time.Duration(min(rank, 2)) * speakFirst) }

// startsGPU says that a rank of this process has begun to open its device.
var startsGPU atomic.Bool

// StartsDevice gives the start a minute, if --timeout is less and the device may be a GPU.
func StartsDevice() { startsGPU.Store(true) }

// limitStart ends this process when the start takes longer than --timeout, and than a minute if a
// GPU may have to start, or at one of the signals. MPI and the other ranks would wait for ever.
// Rank 0 says so, or the next rank that can. stop must be called when the start is over.
func limitStart(name string, cfg *Flags, rank, size int, signals ...syscall.Signal) (stop func()) {
	limit := cfg.Limit()
	late, received := time.NewTimer(limit), make(chan os.Signal, 1)
	process.Notify(received, signals...)
	go func() {
		why, status := "", exitFailed
	wait:
		select {
		case <-late.C:
			if startsGPU.Load() && !cfg.OnHost() && limit < time.Minute {
				late.Reset(time.Minute - limit)
				limit = time.Minute
				goto wait
			}
			if why = fmt.Sprintf("the start has not ended in %v", limit); size > 1 {
				why += ": a rank is missing"
			}
		case sig, came := <-received:
			if !came {
				return
			}
			why, status = signalError(sig).Error()+" during the start", signalStatus(sig)
		}
		leaveToFirst(rank)
		if status == exitFailed { // ranks 0 and 1 may be missing
			time.Sleep(min(time.Duration(max(rank-2, 0))*speakFirst, reportFirst))
		}
		run, others := (*Job)(nil).Goroutines()
		at := "in no code of the program"
		for _, g := range append([]Goroutine{run}, others...) {
			ours := func(frame string) bool { return strings.HasPrefix(frame, "lockstep/") }
			if i := slices.IndexFunc(g.Stack, ours); i >= 0 {
				at = fmt.Sprintf("%s [%s], in %s", g.At, g.State, g.Stack[i])
				break
			}
		}
		host, _ := os.Hostname() // empty if it has none
		fmt.Fprintf(os.Stderr, "%s: %s; rank %d (host %s, pid %d) is at %s%s\n",
			name, why, rank, host, os.Getpid(), at, manyInterfaces())
		os.Exit(status)
	}()
	return func() {
		signal.Stop(received)
		close(received)
	}
}
