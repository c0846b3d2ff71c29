package mpirun

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// mostJobs is the largest number of jobs.
const mostJobs = 6

// mostOnGPUs is how many ranks all jobs have at most if tests run on GPUs, unless a single
// job has more.
//
// Each rank keeps its context as long as its job lives, with all hardware queues of
// CUDA_DEVICE_MAX_CONNECTIONS. A GPU runs out of queues long before memory: the driver then refuses
// the next context.
const mostOnGPUs = 5

// onGPUs says whether this process was started to test on GPUs. A test that sets the variable for
// itself uses doubles.
var onGPUs = os.Getenv("SPMDTEST_DEVICE") == "cuda"

// pool is the jobs of this process.
var pool struct {
	mu   sync.Mutex
	free sync.Cond // a job has become free, or has gone
	jobs []*job
	errs []error // of jobs that ended when no test was there to be told
}

func init() { pool.free.L = &pool.mu }

// hasMain is true if Main ends the jobs.
var hasMain bool

// Main is the TestMain of packages whose tests share jobs. It runs the tests and returns the
// exit status.
func Main(m *testing.M) int {
	if address := os.Getenv(envJob); address != "" {
		return serve(m, address)
	}
	hasMain = true
	status := m.Run()
	if err := endJobs(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	return status
}

// together runs the named test in a job that other tests share.
func together(t *testing.T, test string, n int) outcome {
	t.Helper()
	j, own, err := take(t, n)
	if err != nil {
		t.Fatalf("%v\n%s", err, report(nil, own))
	}
	defer give(j)
	return j.run(test, limitOf(t))
}

// full reports whether a job of n ranks has no room beside others.
func full(jobs []*job, n int) bool {
	ranks := n
	for _, j := range jobs {
		ranks += j.ranks
	}
	return len(jobs) >= mostJobs || onGPUs && len(jobs) > 0 && ranks > mostOnGPUs
}

// take returns a job of n ranks in this process's place, and starts one if there is none. If one is
// at work it waits. If there is no room it ends the job that has waited longest.
func take(t *testing.T, n int) (j *job, own string, err error) {
	here := place()
	pool.mu.Lock()
	defer pool.mu.Unlock()
	for {
		var idle, mine *job
		kept := pool.jobs[:0]
		for _, j := range pool.jobs {
			if !j.busy && j.hasEnded() {
				pool.errs = append(pool.errs, j.finish())
				continue
			}
			kept = append(kept, j)
			if j.ranks == n && j.place == here {
				mine = j
			}
			if !j.busy && (idle == nil || j.used.Before(idle.used)) {
				idle = j
			}
		}
		clear(pool.jobs[len(kept):])
		pool.jobs = kept
		switch {
		case mine != nil && !mine.busy:
			mine.busy = true
			return mine, "", nil
		case mine != nil:
			pool.free.Wait()
			continue
		case full(kept, n) && idle == nil:
			pool.free.Wait()
			continue
		case full(kept, n):
			idle.busy = true // it has its place until it has ended
			pool.mu.Unlock()
			err := idle.finish()
			pool.mu.Lock()
			drop(idle)
			pool.errs = append(pool.errs, err)
			pool.free.Broadcast()
			continue
		}
		starting := &job{ranks: n, place: here, busy: true} // others wait for it
		pool.jobs = append(pool.jobs, starting)
		pool.mu.Unlock()
		j, own, err := start(t, n)
		pool.mu.Lock()
		drop(starting)
		pool.free.Broadcast()
		if err != nil {
			return nil, own, err
		}
		j.busy = true
		pool.jobs = append(pool.jobs, j)
		return j, "", nil
	}
}

// drop takes j out of the pool. The caller holds its lock.
func drop(j *job) {
	pool.jobs = slices.DeleteFunc(pool.jobs, func(o *job) bool { return o == j })
}

// give gives a job back after a test.
func give(j *job) {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	j.busy, j.used = false, time.Now()
	if j.hasEnded() {
		drop(j)
	}
	pool.free.Broadcast()
}

// endJobs ends all jobs, and reports what went wrong after the last test.
func endJobs() error {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	errs := make(chan error)
	for _, j := range pool.jobs {
		go func() { errs <- j.finish() }()
	}
	for range pool.jobs {
		pool.errs = append(pool.errs, <-errs)
	}
	pool.jobs = nil
	return errors.Join(pool.errs...)
}
