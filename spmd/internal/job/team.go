package job

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/watch"
)

// Team watches over ranks that are goroutines of this process, as a Watchdog does over processes.
type Team struct {
	jobs []*Job // by rank; under mu until all are there
	fail func(rank int, err error)
	stop chan struct{}
	mu   sync.Mutex
	here int
}

// NewTeam returns the watch over some ranks. It calls fail with the error that ends them, from a
// goroutine of its own. Close must be called.
func NewTeam(ranks int, fail func(rank int, err error)) *Team {
	return &Team{jobs: make([]*Job, ranks), fail: fail, stop: make(chan struct{})}
}

// Add makes the watch know a rank, whose world is open. The watch begins with the last one.
func (t *Team) Add(j *Job) {
	j.team = true
	t.mu.Lock()
	defer t.mu.Unlock()
	t.jobs[j.Rank] = j
	if t.here++; t.here == len(t.jobs) {
		go t.look()
	}
}

// Close ends the watch.
func (t *Team) Close() { close(t.stop) }

// Hang is the error of ranks that wait for ever.
type Hang struct {
	What   string
	Report string // what every rank does
}

// Error returns the report, whose head says what hangs.
func (h *Hang) Error() string { return h.Report }

const heartbeatEvery = time.Second

// look finds work that does not end, ranks that have made different calls, and ranks that wait for
// each other.
func (t *Team) look() {
	defer MarkKeeper()()
	limit := t.jobs[0].Limit()
	tick := time.NewTicker(t.jobs[0].lookEvery())
	defer tick.Stop()
	seen := map[Work]standstill{}
	last, patient := time.Now(), time.Time{}
	heard := last
	for {
		var now time.Time
		select {
		case <-t.stop:
			return
		case now = <-tick.C:
		}
		if now.Sub(last) > stopped { // the time did not pass for this process
			clear(seen)
		}
		last = now
		if now.Sub(heard) >= heartbeatEvery {
			heard = now
			if t.hear() {
				return
			}
		}
		rank, what := t.standing(seen, now, limit)
		if what == "" || now.Before(patient) {
			continue
		}
		if t.waitsForFiles() {
			patient = now.Add(limit / 2)
			continue
		}
		t.hang(rank, what)
		return
	}
}

// hear brings the ranks' calls to rank 0, and reports whether that ends them.
func (t *Team) hear() bool {
	for r, j := range t.jobs {
		said := j.world.Heartbeat()
		if said == nil {
			continue
		}
		switch why, hang := t.jobs[0].world.Heard(r, said); {
		case why == "":
		case hang:
			t.hang(r, why)
			return true
		default:
			t.fail(r, errors.New(why))
			return true
		}
	}
	return false
}

// standing returns a rank that has stood still for longer than the limit, and its work; "" if no
// rank has.
func (t *Team) standing(seen map[Work]standstill, now time.Time, limit time.Duration) (rank int, what string) {
	for r, j := range t.jobs {
		for _, w := range j.world.Work() {
			at, busy := w.Position()
			if !busy {
				delete(seen, w)
			}
			if w.Stuck(now, limit) || busy && stalls(seen, w, at, now, limit) {
				return r, fmt.Sprintf("%v has not ended in %v", w, limit)
			}
		}
		if at := j.left.Load(); at != 0 && now.Sub(time.Unix(0, at)) > limit {
			return r, j.notEnded()
		}
	}
	return 0, ""
}

// waitsForFiles reports whether a rank waits for files, which has a limit of its own.
func (t *Team) waitsForFiles() bool {
	for _, j := range t.jobs {
		if j.world.WritesFiles() {
			return slow(readStates(t.states())) != nil
		}
	}
	return false
}

// members returns the ranks; nil for those that are not there yet.
func (t *Team) members() []*Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.jobs)
}

func (t *Team) states() []watch.RankState {
	host, _ := os.Hostname() // empty if it has none
	jobs := t.members()
	states := make([]watch.RankState, len(jobs))
	for r, j := range jobs {
		states[r].Hello = watch.Hello{Rank: r, PID: os.Getpid(), Host: host}
		if j != nil {
			states[r].State = j.state()
		}
	}
	return states
}

// Failed is the failed of TellLast if no signal ends the job.
const Failed = true

// TellLast says where the time went of ranks that have failed, or that a signal has ended.
func (t *Team) TellLast(failed bool) {
	jobs := t.members()
	if jobs[0] == nil {
		return
	}
	jobs[0].tellLast(failed, func(time.Duration) [][]byte {
		accounts := make([][]byte, len(jobs))
		for r, j := range jobs {
			if j != nil {
				accounts[r] = j.world.Account()
			}
		}
		return accounts
	})
}

// Because returns the error of a rank. If the ranks' calls differ it says what ranks were refused
// shortly before.
func (t *Team) Because(err error) error {
	if !strings.Contains(err.Error(), ccall.ErrMismatch.Error()) {
		return err
	}
	return fmt.Errorf("%w%s", err, refusals(err.Error(), t.states()))
}

func (t *Team) hang(rank int, what string) {
	what = "this job hangs: " + what + t.jobs[rank].whereabouts()
	t.fail(rank, &Hang{what, Render(what, t.states(), t.jobs[0].LogFormat == "json")})
}
