package cudaexec

import (
	"fmt"
	"sync"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
)

// proxy does the jobs that streams wait for, one after the other, in the order in which they were
// issued. MPI knows no streams, so the host has to wait for the stream, make the call, and let the
// stream go on.
type proxy struct {
	start sync.Once
	mu    sync.Mutex
	cond  sync.Cond
	jobs  []job
	over  bool
	ended chan struct{} // nil before the first job
}

// job is a job whose stream waits for it.
type job struct {
	exec.HostJob
	turn uint64
	q    *Queue
	seq  uint64
	what string
	site ccall.Site
}

// hand has the host do a job in its turn among the calls of this rank, while the queue waits for
// it. It is part of c, the command number seq, which the caller is issuing.
func (q *Queue) hand(j exec.HostJob, seq uint64, c *exec.Command) error {
	if q.lane.Load() != nil {
		return fmt.Errorf("%v cannot be captured where %v carries it: a graph has no host that could call MPI",
			c.Call, j.By)
	}
	turn := q.d.tickets.Take(1)
	if err := j.Hold(); err != nil {
		q.d.fail(err) // the turn is lost
		return err
	}
	q.d.proxy.push(job{HostJob: j, turn: turn, q: q, seq: seq, what: c.Call.String(), site: c.Site})
	return nil
}

func (p *proxy) push(j job) {
	p.start.Do(func() {
		p.cond.L, p.ended = &p.mu, make(chan struct{})
		go p.work()
	})
	p.mu.Lock()
	p.jobs = append(p.jobs, j)
	p.mu.Unlock()
	p.cond.Signal()
}

func (d *CUDA) EndJobs() {
	p := &d.proxy
	if p.ended == nil {
		return
	}
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.cond.Signal()
	<-p.ended
}

func (p *proxy) work() {
	defer close(p.ended)
	for {
		p.mu.Lock()
		for len(p.jobs) == 0 && !p.over {
			p.cond.Wait()
		}
		if len(p.jobs) == 0 {
			p.mu.Unlock()
			return
		}
		j := p.jobs[0]
		p.jobs[0] = job{}
		if p.jobs = p.jobs[1:]; len(p.jobs) == 0 {
			p.jobs = nil
		}
		p.mu.Unlock()
		j.do()
	}
}

// do does the job in its turn. After a failure it still lets the stream go on: nobody may wait for
// a job that does not come.
func (j *job) do() {
	order := j.q.d.tickets
	if err := order.Enter(j.turn); err != nil {
		j.q.broken(j.Release())
		return
	}
	err := j.Run()
	order.Leave()
	if err != nil {
		j.q.failed(fmt.Errorf("stream %q, %v enqueued at %s: %w", j.q.name, j.what, &j.site, err), j.seq)
	}
}
