package transport

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"lockstep/internal/launcher"
	"lockstep/spmd/internal/control"
)

// Team has the ranks of a job that are goroutines of one process. If a rank fails, or returns while
// others wait for it, the others get an error, and nobody waits any more.
type Team struct {
	ranks   []*Goroutine
	world   *group
	spins   int // looks at memory before a rank that waits lets others run
	yields  int // times that it does, before it sleeps
	waiting atomic.Int32
	mu      sync.Mutex
	changed sync.Cond // while somebody is in waiting: what ranks wait for, and what is below
	gone    []bool    // ranks that have returned
	here    int       // ranks that have not
	met     int       // times that all had returned; see Finish
	err     error     // that ends the team, with the rank
}

// cores is the number of cores that the Go runtime found at start.
var cores = runtime.GOMAXPROCS(0)

func NewTeam(n int) *Team {
	t := &Team{gone: make([]bool, n), here: n, spins: spins, yields: yields}
	t.changed.L = &t.mu
	if n > cores {
		t.spins, t.yields = 1, fewYields // who is waited for may not be running
	}
	members := make([]int, n)
	for i := range n {
		members[i] = i
		t.ranks = append(t.ranks, &Goroutine{team: t, number: i, order: control.NewTickets()})
	}
	t.world = newGroup(t, members)
	return t
}

func (t *Team) Rank(i int) *Goroutine { return t.ranks[i] }

// Err returns the failure of the first rank that failed, with its number; nil if none has.
func (t *Team) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Stop ends the team for a cause that is none of the ranks'.
func (t *Team) Stop(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop(err)
}

// stop has err end the team, if nothing has yet. The caller has the lock.
func (t *Team) stop(err error) {
	if t.err == nil {
		t.err = err
		for _, r := range t.ranks {
			r.order.Fail(fmt.Errorf("not run, because an earlier command failed: %w", t.err))
		}
	}
	t.changed.Broadcast()
}

// Fail ends the team with the failure of a rank, unless it has ended: nobody
// waits for another any more.
func (t *Team) Fail(rank int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop(&control.RankError{Rank: rank, Err: err})
}

// Finish says that a rank has returned from its program: others must not wait for it any more. It
// waits until all ranks have returned. It returns nil then, and the ranks may go on together; else
// the error that ends the team.
func (t *Team) Finish(rank int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone[rank] = true
	t.changed.Broadcast()
	now := t.met
	if t.here--; t.here == 0 && t.err == nil {
		t.met++
		t.here = len(t.ranks)
		clear(t.gone)
		return nil
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	for t.met == now && t.err == nil {
		t.changed.Wait()
	}
	if t.met != now {
		return nil
	}
	return t.err
}

// wake has all waiting ranks look again.
func (t *Team) wake() {
	if t.waiting.Load() != 0 {
		t.mu.Lock() // a waiter between its look and its Wait holds it
		t.changed.Broadcast()
		t.mu.Unlock()
	}
}

var errEnded = errors.New("the job has ended")

// sleep waits until v is at least want, which rank sees to, and lets others run.
func (t *Team) sleep(v *atomic.Uint64, want uint64, rank int) error {
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	t.mu.Lock()
	defer t.mu.Unlock()
	for v.Load() < want {
		if err := t.inVain(rank); err != nil {
			return err
		}
		t.changed.Wait()
	}
	return nil
}

// inVain returns why a rank is waited for in vain; nil if it may come. The caller has the lock.
func (t *Team) inVain(rank int) error {
	switch {
	case t.err != nil:
		return fmt.Errorf("%w: %w", errEnded, t.err)
	case t.gone[rank]:
		return fmt.Errorf("rank %d has returned from the program, and is waited for", rank)
	}
	return nil
}

// Goroutine is a rank of a Team. It is a Ranks.
type Goroutine struct {
	sync.Mutex
	team   *Team
	number int
	order  *control.Tickets
}

var _ Ranks = (*Goroutine)(nil)

func (r *Goroutine) Environment() launcher.Job {
	return launcher.Job{Name: "none", Rank: r.number, Size: len(r.team.ranks)}
}

// Join implements Ranks. It waits for nobody.
func (r *Goroutine) Join() (Host, error) { return newComm(r.team.world, r.number), nil }

func (r *Goroutine) Leave() error { return nil }

func (r *Goroutine) Abort(int) {}

func (r *Goroutine) Order() *control.Tickets { return r.order }

func (r *Goroutine) Library() string { return "none" }

func (r *Goroutine) Here() int { return len(r.team.ranks) }

// RunTeam runs fn on each of n ranks and returns when all have returned: the error of the first
// rank that failed, with its number. When one fails, panics or returns too early, those that wait
// for it get an error. A panic goes on in this goroutine.
func RunTeam(n int, fn func(c *Member) error) error {
	t := NewTeam(n)
	var wait sync.WaitGroup
	panics := make(chan any, n)
	for i := range n {
		wait.Go(func() {
			err := errors.New("has ended its goroutine")
			defer func() {
				if p := recover(); p != nil {
					panics <- p
					err = fmt.Errorf("panic: %v", p)
				}
				if err != nil {
					t.Fail(i, err)
				}
				if err := t.Finish(i); err != nil {
					return // it is Err
				}
			}()
			err = fn(newComm(t.world, i))
		})
	}
	wait.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
		return t.Err()
	}
}
