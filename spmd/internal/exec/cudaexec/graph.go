package cudaexec

import (
	"errors"
	"slices"
	"sync"

	"lockstep/cuda"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

type graph struct {
	exec      *cuda.Exec
	callbacks []*cuda.Callback
	mu        sync.Mutex
	replays   []exec.Point // launches that may not have run yet; under mu
	holds     trace.Content
	parts     *exec.GraphParts // nil where nobody times them
}

// builder has the driver make a graph of what is captured.
type builder struct {
	d     *CUDA
	g     *graph
	last  issued            // in the order of collectives, as GPU.last
	track *exec.PartTracker // nil where nobody notes what graphs hold
}

func (d *CUDA) NewBuilder() exec.Builder {
	b := &builder{d: d, g: &graph{}}
	if d.Trace != nil && d.Trace.Parts {
		b.track = exec.NewPartTracker()
	}
	return b
}

// Start implements exec.Builder. Commands that were issued before get their mark now: they can be
// waited for during the capture.
func (b *builder) Start(l *exec.Lane) error {
	q := l.Q.(*Queue)
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil {
		return err
	}
	if !q.Idle() {
		if _, err := q.at(q.tail.Load()); err != nil {
			return err
		}
	}
	if l.Index == 0 {
		// Relaxed: goroutines move between threads, and other streams go on working.
		if err := q.h.BeginCapture(cuda.Relaxed); err != nil {
			return err
		}
		b.d.capturing.Add(1)
	}
	l.Track = b
	q.lane.Store(l)
	return nil
}

var _ exec.Builder = (*builder)(nil)

func (b *builder) Record(l *exec.Lane, _ int) (any, error) {
	g := b.d.GPU
	m, err := g.mark()
	if err != nil {
		return nil, err
	}
	if err := m.event.Record(l.Q.(*Queue).h); err != nil {
		g.recycle(m)
		return nil, err
	}
	b.track.Mark(l.Index, m.event)
	return m, nil
}

func (b *builder) Wait(l *exec.Lane, _ int, at any) error {
	b.track.Wait(l.Index, at.(*Mark).event)
	return l.Q.(*Queue).h.Wait(at.(*Mark).event)
}

func (b *builder) End(lanes []*exec.Lane, nodes []any, keep bool) (exec.Replay, error) {
	made, err := lanes[0].Q.(*Queue).h.EndCapture()
	switch {
	case !keep:
		err = nil // there is a better one already
		if made != nil {
			err = made.Close()
		}
	case err == nil:
		if b.g.exec, err = made.Instantiate(); err == nil {
			b.g.parts = b.track.Split(b.d.GPU.Dev, made, int(b.d.splits.Add(1))-1, b.d.Log)
		}
		err = errors.Join(err, made.Close())
	}
	for _, m := range nodes {
		b.d.GPU.recycle(m.(*Mark))
	}
	for _, l := range lanes {
		q := l.Q.(*Queue)
		q.mu.Lock()
		q.lane.Store(nil)
		q.mu.Unlock()
	}
	b.d.capturing.Add(-1)
	return b.g, err
}

var _ exec.Replay = (*graph)(nil)

func (g *graph) Close(last exec.Point) (err error) {
	if g.exec != nil {
		err = errors.Join(last.Wait(), g.exec.Close())
		g.exec = nil
	}
	if g.parts != nil {
		if q, ok := last.Q.(*Queue); ok {
			q.catchUp() // with the replay that was timed last
		}
		err = errors.Join(err, g.parts.Close())
		g.parts = nil
	}
	for _, c := range g.callbacks {
		c.Close()
	}
	g.callbacks = nil
	return err
}

// captured describes a captured command for the summary.
type captured struct {
	plan  *exec.Plan // of a call; nil where it is none
	class trace.Class
	name  string
	bytes int
}

// describe describes a command for the summary. It is asked before the command is issued, which may
// clear it.
func describe(c *exec.Command) (what captured) {
	if c.Kind == exec.DoCall {
		what.plan = c.Plan
	} else {
		what.class, what.name, what.bytes = c.Describe()
	}
	return what
}

// adds counts a command that a lane was given.
func (b *builder) adds(what *captured, l *exec.Lane) {
	switch {
	case what.plan != nil:
		b.g.holds.AddCall(what.plan.What, what.plan.Group, what.plan.Size)
	case what.class != trace.Classes:
		b.g.holds.Add(what.class, what.name, int64(what.bytes))
	default:
		return
	}
	b.track.Command(l.Index, l.Q.(*Queue).h)
}

// launched notes a replay, which ends at p, and returns how many of p's queue may not have run.
func (g *graph) launched(p exec.Point) (waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	over := func(o exec.Point) bool { return o.Q.(*Queue).known.Load() >= o.Seq }
	g.replays = append(slices.DeleteFunc(g.replays, over), p)
	for _, o := range g.replays {
		if o.Q == p.Q {
			waiting++
		}
	}
	return waiting
}

// replaying returns the replays that may be running.
func (g *graph) replaying() []exec.Point {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.replays)
}
