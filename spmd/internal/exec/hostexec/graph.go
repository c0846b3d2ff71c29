package hostexec

import (
	"errors"
	"sync"

	"lockstep/spmd/internal/exec"
)

// graph is commands that were captured: a track for each queue.
type graph struct {
	d      *Host
	tracks []*track // the first is the origin's
	turns  uint64   // commands that enter MPI

	mu   sync.Mutex
	cond sync.Cond
	done []bool // which nodes this replay has passed
	err  error  // why this replay ends early
}

// track is the part of a graph that was captured from one queue.
type track struct {
	q    *queue
	g    *graph
	cmds []*slot
	free *slot // for the next command
}

func (t *track) next() *slot {
	if t.free == nil {
		t.free = &slot{}
	}
	return t.free
}

// add records what next returned.
func (t *track) add(s *slot) {
	t.free = nil
	t.cmds = append(t.cmds, s)
	if s.Kind == exec.DoCall {
		s.ticket = t.g.turns // relative to the first of a replay
		t.g.turns++
	}
}

// builder makes a graph of what is captured.
type builder struct {
	d *Host
	g *graph
}

var _ exec.Builder = (*builder)(nil)

func (b *builder) Start(l *exec.Lane) error {
	if b.g == nil {
		b.g = &graph{d: b.d}
		b.g.cond.L = &b.g.mu
	}
	q := l.Q.(*queue)
	t := &track{q: q, g: b.g}
	l.Track = t
	b.g.tracks = append(b.g.tracks, t)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lane.Store(l)
	return nil
}

func (b *builder) Record(l *exec.Lane, n int) (any, error) {
	t := l.Track.(*track)
	s := t.next()
	s.Kind, s.node = exec.DoRecord, n
	t.add(s)
	return nil, nil
}

func (b *builder) Wait(l *exec.Lane, n int, _ any) error {
	t := l.Track.(*track)
	s := t.next()
	s.Kind, s.node = exec.DoWait, n
	t.add(s)
	return nil
}

func (b *builder) End(lanes []*exec.Lane, nodes []any, keep bool) (exec.Replay, error) {
	for _, l := range lanes {
		q := l.Q.(*queue)
		q.mu.Lock()
		q.lane.Store(nil)
		q.mu.Unlock()
	}
	if !keep {
		return nil, nil
	}
	b.g.done = make([]bool, len(nodes))
	return b.g, nil
}

var _ exec.Replay = (*graph)(nil)

func (g *graph) Close(exec.Point) error { return nil }

// replay runs the tracks: the origin's on the calling goroutine, the others on
// one each. ticket is the turn of the graph's first command in MPI.
func (g *graph) replay(ticket uint64) (err error) {
	clear(g.done)
	g.err = nil
	var wg sync.WaitGroup
	defer func() { // also where a function of the program has ended the goroutine
		wg.Wait()
		err = g.err
	}()
	for _, t := range g.tracks[1:] {
		wg.Add(1)
		go func() {
			defer wg.Done()
			g.run(t, ticket)
		}()
	}
	g.run(g.tracks[0], ticket)
	return nil
}

func (g *graph) run(t *track, ticket uint64) {
	var s *slot
	running := false
	defer func() {
		if running { // a function of the program has ended this goroutine
			g.stop(t, s, exec.Exited())
		}
	}()
	for _, s = range t.cmds {
		var err error
		switch s.Kind {
		case exec.DoRecord:
			g.mu.Lock()
			g.done[s.node] = true
			g.mu.Unlock()
			g.cond.Broadcast()
		case exec.DoWait:
			err = g.await(s.node)
		default:
			running = true
			err = t.q.execute(s, ticket+s.ticket)
			running = false
		}
		if err != nil {
			g.stop(t, s, err)
			return
		}
	}
}

var errStopped = errors.New("another part of the graph failed")

func (g *graph) await(node int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.done[node] {
		if g.err != nil {
			return errStopped
		}
		g.cond.Wait()
	}
	return nil
}

func (g *graph) stop(t *track, s *slot, err error) {
	g.mu.Lock()
	if g.err == nil && err != errStopped {
		g.err = t.q.asyncError(s, err)
	}
	g.mu.Unlock()
	g.cond.Broadcast()
	g.d.fail(g.err)
}
