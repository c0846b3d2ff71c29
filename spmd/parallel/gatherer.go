package parallel

import (
	"errors"
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

// Gatherer gathers buckets whose parts lie on the ranks: the sharded parameters of a layer, when
// the layer needs them. It gathers ahead of their use, on a stream of its own, in the order of a
// Pass. Buckets may share memory, so that only some of them are whole at a time.
//
// In a pass, call Begin first, and End last. For each use in its order call Need before the
// commands that read the bucket, and Done after them. These calls do not block, and may be captured
// in a graph.
type Gatherer[T spmd.Elem] struct {
	c       spmd.Comm
	s       *spmd.Stream
	cfg     GathererConfig[T]
	buckets []spmd.Buffer[T]
	parts   []spmd.Buffer[T] // this rank's
	whole   []*spmd.Event    // when the bucket was gathered last

	pass   *Pass
	begun  int // uses whose gathering is enqueued
	needed int // uses that Need was called for
	done   int // uses that Done was called for
}

// GathererConfig sets up a Gatherer. With the zero value the ranks' parts lie in the buckets.
type GathererConfig[T spmd.Elem] struct {
	// Before enqueues on s the commands that write this rank's part of bucket i, before it is
	// gathered. nil means that the part lies there already.
	Before func(i int, part spmd.Buffer[T], s *spmd.Stream) error
	// After enqueues on s commands between the gathering of bucket i and its use. It may be nil.
	After func(i int, s *spmd.Stream) error
}

// Pass is an order in which buckets are used, as Gatherer.Pass returns it.
type Pass struct{ uses []use }

type use struct {
	bucket int
	gather bool // else the bucket still lies in its memory
	after  int  // number of uses that must be done before the memory is free
}

// NewGatherer returns a gatherer of buckets over the ranks of c. The length of each is a multiple
// of the number of ranks, as a Partition makes it: rank r gives the r-th part. Buckets that share
// memory take turns in it.
//
// Collective over c in effect: every rank gives the same lengths, the same places in memory
// relative to each other, and a config that does the same.
func NewGatherer[T spmd.Elem](c spmd.Comm, buckets []spmd.Buffer[T], cfg GathererConfig[T]) (*Gatherer[T], error) {
	w, err := library.WorldOf(c, "parallel.NewGatherer")
	if err != nil {
		return nil, err
	}
	g := &Gatherer[T]{cfg: cfg, buckets: buckets}
	for i, b := range buckets {
		part, err := partOf(c, b)
		if err != nil {
			return nil, fmt.Errorf("%s: parallel.NewGatherer: bucket %d: %w", ccall.At(), i, err)
		}
		g.parts = append(g.parts, part)
	}
	if g.whole, err = events(w, len(buckets)); err != nil {
		return nil, err
	}
	if g.s, err = w.NewStream("gatherer", spmd.High); err != nil {
		return nil, errors.Join(err, closeEvents(g.whole))
	}
	g.c = c.On(g.s)
	return g, nil
}

// partOf returns this rank's part of a bucket.
func partOf[T spmd.Elem](c spmd.Comm, b spmd.Buffer[T]) (spmd.Buffer[T], error) {
	n := b.Len() / c.Size()
	if n*c.Size() != b.Len() {
		return b, fmt.Errorf("%d elements do not divide by %d ranks", b.Len(), c.Size())
	}
	return b.Slice(c.Rank()*n, (c.Rank()+1)*n), nil
}

func events(w *spmd.World, n int) ([]*spmd.Event, error) {
	es := make([]*spmd.Event, n)
	for i := range es {
		var err error
		if es[i], err = w.NewEvent(); err != nil {
			return nil, errors.Join(err, closeEvents(es[:i]))
		}
	}
	return es, nil
}

func closeEvents(es []*spmd.Event) (err error) {
	for _, e := range es {
		err = errors.Join(err, e.Close())
	}
	return err
}

// Pass returns the pass that uses the buckets with these numbers, in this order. A bucket that is
// used again is gathered again only if another has taken its memory in between.
func (g *Gatherer[T]) Pass(buckets ...int) (*Pass, error) {
	p := &Pass{uses: make([]use, len(buckets))}
	for k, i := range buckets {
		if i < 0 || i >= len(g.buckets) {
			return nil, fmt.Errorf("%s: Pass: use %d is of bucket %d of %d", ccall.At(), k, i, len(g.buckets))
		}
		u := use{bucket: i, gather: true}
		for j := k - 1; j >= 0; j-- {
			if before := buckets[j]; before == i || own.Overlap(g.buckets[before], g.buckets[i]) {
				u.gather, u.after = before != i, j+1
				break
			}
		}
		p.uses[k] = u
	}
	return p, nil
}

// Begin begins a pass: it gathers the first buckets, after the commands that s holds. It begins
// anew if a pass was left early.
func (g *Gatherer[T]) Begin(p *Pass, s *spmd.Stream) error {
	g.pass, g.begun, g.needed, g.done = p, 0, 0, 0
	return g.gather(s)
}

// gather enqueues the gathering of the next buckets whose memory is free when the commands in s
// have run.
func (g *Gatherer[T]) gather(s *spmd.Stream) error {
	joined := false
	for ; g.begun < len(g.pass.uses); g.begun++ {
		u := g.pass.uses[g.begun]
		if !u.gather {
			continue
		}
		if u.after > g.done {
			return nil
		}
		if !joined {
			if err := g.s.After(s); err != nil {
				return err
			}
			joined = true
		}
		if err := g.one(u.bucket); err != nil {
			return err
		}
	}
	return nil
}

// one enqueues the gathering of a bucket.
func (g *Gatherer[T]) one(i int) error {
	if g.cfg.Before != nil {
		if err := g.cfg.Before(i, g.parts[i], g.s); err != nil {
			return err
		}
	}
	if g.c.Size() > 1 && g.buckets[i].Len() > 0 {
		if err := spmd.AllGather(g.c, g.buckets[i], g.parts[i]); err != nil {
			return err
		}
	}
	if g.cfg.After != nil {
		if err := g.cfg.After(i, g.s); err != nil {
			return err
		}
	}
	return g.whole[i].Record(g.s)
}

// Need makes s wait until bucket i is whole. It is the next use of the pass. It fails if another
// bucket, whose use is not done, has the memory.
func (g *Gatherer[T]) Need(i int, s *spmd.Stream) error {
	switch {
	case g.pass == nil:
		return fmt.Errorf("%s: Need(%d): no pass has begun", ccall.At(), i)
	case g.needed == len(g.pass.uses):
		return fmt.Errorf("%s: Need(%d): the pass has only %d uses", ccall.At(), i, g.needed)
	case g.pass.uses[g.needed].bucket != i:
		return fmt.Errorf("%s: Need(%d): bucket %d is next", ccall.At(), i, g.pass.uses[g.needed].bucket)
	case g.begun <= g.needed:
		return fmt.Errorf("%s: Need(%d): its memory is that of bucket %d, whose use is not done", ccall.At(), i,
			g.pass.uses[g.pass.uses[g.begun].after-1].bucket)
	}
	g.needed++
	return s.Wait(g.whole[i])
}

// Done says that no later command uses bucket i, until it is needed again. The uses are done in the
// order of the pass.
func (g *Gatherer[T]) Done(i int, s *spmd.Stream) error {
	if g.pass == nil || g.done == g.needed || g.pass.uses[g.done].bucket != i {
		return fmt.Errorf("%s: Done(%d): that is not the first bucket in use", ccall.At(), i)
	}
	g.done++
	return g.gather(s)
}

// End ends a pass. It fails if uses are left.
func (g *Gatherer[T]) End(s *spmd.Stream) error {
	if g.pass == nil || g.done < len(g.pass.uses) {
		return fmt.Errorf("%s: End: not all uses of the pass are done", ccall.At())
	}
	any := len(g.pass.uses) > 0
	g.pass = nil
	if !any {
		return nil
	}
	return s.After(g.s)
}

// Stream returns the stream on which the buckets are gathered, for measuring.
func (g *Gatherer[T]) Stream() *spmd.Stream { return g.s }

// Close waits for the gathering in flight and ends the gatherer.
func (g *Gatherer[T]) Close() error { return errors.Join(g.s.Close(), closeEvents(g.whole)) }
