package parallel

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

// Reducer reduces the gradients of a data-parallel program over the ranks while the backward pass
// that produces them goes on. It gathers them into buckets, in the order of production. It reduces
// each bucket on a stream of its own as soon as the last gradient of the bucket is there.
//
// In a step, call Ready for each gradient when the command that completes it has been enqueued.
// Then call Wait before the commands that use the reduced gradients. To accumulate over
// micro-batches call Ready in the last one only: the others communicate nothing.
type Reducer[T spmd.Elem] struct {
	c       spmd.Comm
	s       *spmd.Stream
	op      spmd.Op
	n       int
	next    int // the gradient that is to be ready next
	buckets []bucket[T]
	at      int // the bucket that next belongs to
}

// bucket is the gradients up to last, as few contiguous ranges as possible.
type bucket[T spmd.Elem] struct {
	last  int
	parts []spmd.Buffer[T]
}

// ReducerConfig sets up a Reducer. The zero value sums, in buckets of 4 MiB.
type ReducerConfig struct {
	// BucketBytes is the size at which a bucket is complete; 0 means 4 MiB. Small
	// buckets start earlier, large ones cost fewer latencies.
	BucketBytes int
	// Op is usually Sum, with each rank's loss divided by the global batch, so that
	// ranks may hold unequal parts; or Avg.
	Op spmd.Op
}

// NewReducer returns a reducer of grads, which are in the order in which backward completes them.
// Gradients that follow each other in one allocation without a gap, in either direction, are
// reduced in one call: so let padding belong to one of its neighbours. Gradients that overlap are
// refused.
//
// Collective over c in effect: every rank gives the same lengths, the same places in memory
// relative to each other, and the same config.
func NewReducer[T spmd.Elem](c spmd.Comm, grads []spmd.Buffer[T], cfg ReducerConfig) (*Reducer[T], error) {
	w, err := library.WorldOf(c, "parallel.NewReducer")
	if err != nil {
		return nil, err
	}
	if err := disjoint("parallel.NewReducer", "gradient", grads); err != nil {
		return nil, err
	}
	if cfg.BucketBytes < 0 {
		return nil, fmt.Errorf("%s: parallel.NewReducer: buckets of %d bytes", ccall.At(), cfg.BucketBytes)
	}
	if cfg.BucketBytes == 0 {
		cfg.BucketBytes = 4 << 20
	}
	s, err := w.NewStream("reducer", spmd.High)
	if err != nil {
		return nil, err
	}
	r := &Reducer[T]{c: c.On(s), s: s, op: cfg.Op, n: len(grads)}
	var b bucket[T]
	bytes := 0
	for i, g := range grads {
		b.add(g)
		b.last = i
		if bytes += g.Bytes(); bytes >= cfg.BucketBytes || i == len(grads)-1 {
			r.buckets = append(r.buckets, b)
			b, bytes = bucket[T]{}, 0
		}
	}
	return r, nil
}

// disjoint refuses buffers that overlap.
func disjoint[T spmd.Elem](op, name string, bufs []spmd.Buffer[T]) error {
	all := make([]library.Operand, len(bufs))
	for i, b := range bufs {
		all[i] = library.Writes(fmt.Sprint(name, " ", i), b)
	}
	return library.Apart(op, all...)
}

// add extends the last range by g if they are neighbours.
func (b *bucket[T]) add(g spmd.Buffer[T]) {
	if g.Len() == 0 {
		return
	}
	if n := len(b.parts); n > 0 {
		if whole, ok := own.Join(b.parts[n-1], g); ok {
			b.parts[n-1] = whole
			return
		}
	}
	b.parts = append(b.parts, g)
}

// Ready says that gradient i is complete when the commands in s have run. The gradients become
// ready in their order, 0 first. It enqueues the reduction of a bucket when i was the last in it,
// and never blocks.
func (r *Reducer[T]) Ready(i int, s *spmd.Stream) error {
	if i != r.next || i >= r.n {
		return fmt.Errorf("%s: Ready(%d): gradient %d of %d is next", ccall.At(), i, r.next, r.n)
	}
	r.next++
	b := &r.buckets[r.at]
	if i < b.last {
		return nil
	}
	r.at++
	if r.c.Size() == 1 {
		return nil // every operation over one rank leaves the gradients as they are
	}
	if err := r.s.After(s); err != nil {
		return err
	}
	if len(b.parts) == 1 {
		return spmd.AllReduce(r.c, b.parts[0], b.parts[0], r.op)
	}
	return r.c.Group(func() error {
		for _, p := range b.parts {
			if err := spmd.AllReduce(r.c, p, p, r.op); err != nil {
				return err
			}
		}
		return nil
	})
}

// Wait makes s wait until all gradients of this step are reduced, without blocking the host, and
// begins the next step. It fails if not all of them were Ready.
func (r *Reducer[T]) Wait(s *spmd.Stream) error {
	if r.next != r.n {
		return fmt.Errorf("%s: Wait: only %d of %d gradients are ready", ccall.At(), r.next, r.n)
	}
	r.next, r.at = 0, 0
	if r.c.Size() == 1 || len(r.buckets) == 0 {
		return nil // nothing was enqueued on the reducer's stream
	}
	return s.After(r.s)
}

// Stream returns the stream on which the buckets are reduced, for measuring.
func (r *Reducer[T]) Stream() *spmd.Stream { return r.s }

// Buckets returns the number of buckets.
func (r *Reducer[T]) Buckets() int { return len(r.buckets) }

// Close waits for the reductions in flight and ends the reducer.
func (r *Reducer[T]) Close() error { return r.s.Close() }
