package parallel

import (
	"errors"
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

// Scatterer reduces gradients over the ranks while the backward pass that produces them goes on,
// and leaves each rank its part of the result: a Reducer for gradients that are sharded. It works
// bucket by bucket, on a stream of its own. Buckets may share memory, so that the gradients of only
// some layers exist at a time.
//
// In a pass, call Use for each bucket before the first command that writes it. Call Ready when the
// command that completes it has been enqueued, or Add. Then call Wait before the commands that use
// the shards. These calls do not block, and may be captured in a graph.
type Scatterer struct {
	c       spmd.Comm
	s       *spmd.Stream
	op      spmd.Op
	grads   []spmd.Buffer[float32]
	parts   []spmd.Buffer[float32] // this rank's of grads
	shards  []spmd.Buffer[float32]
	inPlace []bool        // whether the shard is the part itself
	before  []int         // the last bucket before it in the same memory; -1 if there is none
	free    []*spmd.Event // when the bucket was reduced
	next    int           // the bucket that is to be ready next

	norm *Norm // of the shards
}

// NewScatterer returns a scatterer of grads, which are in the order in which backward completes
// them. The length of each is a multiple of the number of ranks, as a Partition makes it. Rank r
// receives the r-th part of grads[i] in shards[i]: memory of its own, or that part itself. op is
// usually Sum, with each rank's loss divided by the global batch; or Avg.
//
// Collective over c in effect: every rank gives the same lengths, the same places in memory
// relative to each other, and the same op.
func NewScatterer(c spmd.Comm, grads, shards []spmd.Buffer[float32], op spmd.Op) (*Scatterer, error) {
	w, err := library.WorldOf(c, "parallel.NewScatterer")
	if err != nil {
		return nil, err
	}
	if len(grads) != len(shards) {
		return nil, fmt.Errorf("%s: parallel.NewScatterer: %d gradients and %d shards",
			ccall.At(), len(grads), len(shards))
	}
	r := &Scatterer{op: op, grads: grads, shards: shards, before: make([]int, len(grads))}
	for i, b := range grads {
		part, err := partOf(c, b)
		if err == nil && part.Len() != shards[i].Len() {
			err = fmt.Errorf("a rank's part has %d elements, its shard %d", part.Len(), shards[i].Len())
		}
		if err != nil {
			return nil, fmt.Errorf("%s: parallel.NewScatterer: gradient %d: %w", ccall.At(), i, err)
		}
		r.parts = append(r.parts, part)
		r.inPlace = append(r.inPlace, own.Overlap(part, shards[i]))
		r.before[i] = -1
		for j := range i {
			if own.Overlap(grads[j], b) {
				r.before[i] = j
			}
			if own.Overlap(shards[j], shards[i]) {
				return nil, fmt.Errorf("%s: parallel.NewScatterer: shards %d and %d overlap", ccall.At(), j, i)
			}
		}
		for j := range grads {
			if own.Overlap(grads[j], shards[i]) && (j != i || !r.inPlace[i] || r.shared(j)) {
				return nil, fmt.Errorf("%s: parallel.NewScatterer: shard %d is in the way of gradient %d",
					ccall.At(), i, j)
			}
		}
	}
	return r, r.open(w, c)
}

// shared reports whether another gradient has the memory of gradient i.
func (r *Scatterer) shared(i int) bool {
	for j, g := range r.grads {
		if j != i && own.Overlap(g, r.grads[i]) {
			return true
		}
	}
	return false
}

// open takes the scatterer's own stream, events and memory.
func (r *Scatterer) open(w *spmd.World, c spmd.Comm) (err error) {
	if r.free, err = events(w, len(r.grads)); err != nil {
		return err
	}
	if r.norm, err = NewNorm(c, r.shards...); err != nil {
		return errors.Join(err, closeEvents(r.free))
	}
	if r.s, err = w.NewStream("scatterer", spmd.High); err != nil {
		return errors.Join(err, r.norm.Close(), closeEvents(r.free))
	}
	r.c = c.On(r.s)
	return nil
}

// Use makes s wait until the memory of gradient i may be written: until the gradient that had it
// before, if any, is reduced.
func (r *Scatterer) Use(i int, s *spmd.Stream) error {
	if i < r.next || i >= len(r.grads) {
		return fmt.Errorf("%s: Use(%d): gradient %d of %d is the next to be ready", ccall.At(), i, r.next, len(r.grads))
	}
	j := r.before[i]
	switch {
	case j < 0:
		return nil
	case j >= r.next:
		return fmt.Errorf("%s: Use(%d): its memory is that of gradient %d, which is not ready", ccall.At(), i, j)
	}
	return s.Wait(r.free[j])
}

// Ready says that gradient i is complete when the commands in s have run. The gradients become
// ready in their order, 0 first. It enqueues the reduction into shard i. The memory of the gradient
// is then free.
func (r *Scatterer) Ready(i int, s *spmd.Stream) error { return r.ready("Ready", i, s, r.reduce) }

// Add is Ready for micro-batches after the first: the result is added to the shard.
func (r *Scatterer) Add(i int, s *spmd.Stream) error {
	if i == r.next && i < len(r.grads) && r.inPlace[i] {
		return fmt.Errorf("%s: Add(%d): nothing can be added to a shard that is a part of its gradient", ccall.At(), i)
	}
	return r.ready("Add", i, s, r.add)
}

// ready enqueues what becomes of gradient i after the commands in s.
func (r *Scatterer) ready(name string, i int, s *spmd.Stream, reduce func(i int) error) error {
	if i != r.next || i >= len(r.grads) {
		return fmt.Errorf("%s: %s(%d): gradient %d of %d is next", ccall.At(), name, i, r.next, len(r.grads))
	}
	r.next++
	if r.grads[i].Len() == 0 {
		return nil
	}
	if err := r.s.After(s); err != nil {
		return err
	}
	if err := reduce(i); err != nil {
		return err
	}
	return r.free[i].Record(r.s)
}

// reduce enqueues the reduction of a gradient into its shard.
func (r *Scatterer) reduce(i int) error {
	switch {
	case r.c.Size() > 1:
		return spmd.ReduceScatter(r.c, r.shards[i], r.grads[i], r.op)
	case !r.inPlace[i]: // no operation over one rank changes the gradient
		return spmd.Copy(r.s, r.shards[i], r.parts[i])
	}
	return nil
}

// add enqueues the reduction of a gradient, and its sum with the shard.
func (r *Scatterer) add(i int) error {
	if r.c.Size() > 1 {
		if err := spmd.ReduceScatter(r.c, r.parts[i], r.grads[i], r.op); err != nil {
			return err
		}
	}
	return launchAddTo(r.s, r.parts[i].Len(), r.shards[i], r.parts[i])
}

// Wait makes s wait until all gradients of this pass are reduced, without blocking the host, and
// begins the next pass. It fails if not all of them were Ready.
func (r *Scatterer) Wait(s *spmd.Stream) error {
	if r.next != len(r.grads) {
		return fmt.Errorf("%s: Wait: only %d of %d gradients are ready", ccall.At(), r.next, len(r.grads))
	}
	return r.Abandon(s)
}

// Abandon is Wait for a pass that was left early.
func (r *Scatterer) Abandon(s *spmd.Stream) error {
	r.next = 0
	if len(r.norm.ranges) == 0 {
		return nil // nothing was enqueued on the scatterer's stream
	}
	return s.After(r.s)
}

// ClipNorm is Norm.Clip for the shards of all ranks.
func (r *Scatterer) ClipNorm(maxNorm float64, norm spmd.Buffer[float32], s *spmd.Stream) error {
	return r.norm.Clip(maxNorm, norm, s)
}

// Close waits for the reductions in flight and ends the scatterer. No ClipNorm may be on its way.
func (r *Scatterer) Close() error {
	return errors.Join(r.s.Close(), r.norm.Close(), closeEvents(r.free))
}
