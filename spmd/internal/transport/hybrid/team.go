package hybrid

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/internal/launcher"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/inproc"
)

// Team is the ranks of this process, where each of the processes that MPI joins has as many. The ranks of a process follow each
// other.
type Team struct {
	ranks []*Rank
	local *inproc.Team
	mu    sync.Mutex // while one of them joins or leaves
	open  *opened    // nil before the first has joined
	left  int        // ranks that have joined, and not left
	err   error      // why nobody can join
}

// opened is what a team has once MPI runs.
type opened struct {
	post    *post
	process int
	nodes   []int32 // of each process, the lowest process of its node
}

// NewTeam returns n ranks of this process.
func NewTeam(n int) *Team {
	t := &Team{local: inproc.NewTeam(n)}
	for i := range n {
		t.ranks = append(t.ranks, &Rank{team: t, number: i, order: control.NewTickets()})
	}
	return t
}

// Rank returns the i-th rank of this process.
func (t *Team) Rank(i int) *Rank { return t.ranks[i] }

// start starts MPI, and learns of the other processes. The caller has the lock.
func (t *Team) start() error {
	base, err := cudampi.Start()
	if err != nil {
		return err
	}
	if err := launcher.Environment().CheckWorld(base.Size()); err != nil {
		return UsageError{err}
	}
	c, err := base.Dup()
	if err != nil {
		return err
	}
	mine, all := [2]int32{int32(len(t.ranks))}, make([][2]int32, c.Size())
	node, err := c.SplitShared()
	if err != nil {
		return err
	}
	mine[1] = int32(c.Rank())
	if err := node.Broadcast(unsafe.Pointer(&mine[1]), 1, elem.Int32, 0); err != nil {
		return err
	}
	if err := node.Close(); err != nil {
		return err
	}
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&mine), 2, elem.Int32); err != nil {
		return err
	}
	o := &opened{post: newPost(c), process: c.Rank(), nodes: make([]int32, c.Size())}
	here := 0
	for p, its := range all {
		if o.nodes[p] = its[1]; its[1] == mine[1] {
			here += int(its[0])
		}
		if its[0] != all[0][0] {
			return UsageError{fmt.Errorf("--gpus-per-process is %d on process 0, and %d on process %d", all[0][0], its[0], p)}
		}
	}
	o.post.crowded = here > runtime.NumCPU()
	t.open = o
	return nil
}

// UsageError is the refusal of processes that were started wrongly, which all of them find.
type UsageError struct{ error }

// Unwrap returns the error.
func (u UsageError) Unwrap() error { return u.error }

// Rank is a goroutine of a Team. It is a transport.Ranks.
type Rank struct {
	sync.Mutex
	team   *Team
	number int // in this process
	order  *control.Tickets
}

// Environment implements transport.Ranks.
func (r *Rank) Environment() launcher.Job {
	job, here := launcher.Environment(), len(r.team.ranks)
	job.Rank, job.Size = job.Rank*here+r.number, job.Size*here
	return job
}

// Join implements transport.Ranks. The first rank of a process that comes waits for the other processes.
func (r *Rank) Join() (transport.Host, error) {
	t := r.team
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil && t.err == nil {
		t.err = t.start()
	}
	if t.err != nil {
		return nil, t.err
	}
	t.left++
	local, err := t.local.Rank(r.number).Join()
	if err != nil {
		return nil, err
	}
	return newWorld(t.open, len(t.ranks), local.(*inproc.Comm)), nil
}

// Leave implements transport.Ranks: the last one stops MPI.
func (r *Rank) Leave() error {
	t := r.team
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left--; t.left > 0 {
		return nil
	}
	p := t.open.post
	if err := p.finish(); err != nil {
		return err
	}
	if err := p.c.Close(); err != nil {
		return err
	}
	return cudampi.Stop()
}

// Abort implements transport.Ranks.
func (r *Rank) Abort(status int) { cudampi.Abort(status) }

// Order implements transport.Ranks.
func (r *Rank) Order() *control.Tickets { return r.order }

// Library implements transport.Ranks.
func (r *Rank) Library() string { return cudampi.Version() }

// Here implements transport.Ranks.
func (r *Rank) Here() int { return len(r.team.ranks) }
