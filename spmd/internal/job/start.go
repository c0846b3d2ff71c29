package job

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"lockstep/internal/launcher"
	"lockstep/internal/plain"
)

const (
	// speakFirst is how long a rank other than 0 leaves bad input to rank 0, which
	// finds the same, and whose exit ends the job.
	speakFirst = 3 * time.Second
	// Before the exit of a process that MPI has not started in: for each rank of the job, and at most.
	settleEach = 40 * time.Millisecond
	mostSettle = 2500 * time.Millisecond
)

// refuse ends a job that has bad input, in a process where MPI does not run. Open MPI 4's mpirun may wait for ever where one
// process ends while it starts the others: 64 of them on 2 cores made it do so in 5 of 5 runs.
func refuse(name string, rank, size int, err error) int {
	settle := time.Duration(0)
	if size > 1 {
		settle = min(time.Duration(size)*settleEach, mostSettle)
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

// speak says on one line why the job ends. The exit of any rank makes the launcher
// end the others; so rank 0, which as a rule finds the same, speaks at once, and
// the others give it time, and the launcher after it, and speak only where they
// are still there.
func speak(name string, rank int, err error) {
	leaveToFirst(rank)
	if rank != 0 && errors.As(err, new(launcher.AloneError)) {
		return // each is a job of its own, but one speaks for all
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", name, plain.Line(strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// leaveToFirst gives rank 0 the time to report what it finds too, and then rank 1.
func leaveToFirst(rank int) { time.Sleep(time.Duration(min(rank, 2)) * speakFirst) }

// limitStart ends this process when the start takes longer than --timeout, or than a
// minute where a GPU and its libraries may have to start: MPI and the other ranks wait
// without a limit of their own. Rank 0 speaks, or the next rank that can. stop must be
// called when the start is over.
func limitStart(name string, cfg *Config, rank int) (stop func() bool) {
	limit := cfg.Limit()
	if cfg.Device != "host" {
		limit = max(limit, time.Minute)
	}
	t := time.AfterFunc(limit, func() {
		leaveToFirst(rank)
		time.Sleep(min(time.Duration(max(rank-2, 0))*speakFirst, reportFirst)) // where ranks 0 and 1 are what is missing
		run, others := Goroutines()
		at := "in no code of the program"
		for _, g := range append([]Goroutine{run}, others...) {
			if len(g.Stack) > 0 {
				at = g.Stack[0]
				break
			}
		}
		host, _ := os.Hostname() // empty where it has none
		fmt.Fprintf(os.Stderr, "%s: the start has not ended in %v: a rank is missing; rank %d (host %s, pid %d) is at %s%s\n",
			name, limit, rank, host, os.Getpid(), at, manyInterfaces())
		os.Exit(exitFailed)
	})
	return t.Stop
}
