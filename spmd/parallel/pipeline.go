package parallel

import (
	"errors"
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/internal/schedule"
	"lockstep/spmd"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

// Pipeline runs micro-batches through a program whose layers the ranks share. Rank r is stage r. It
// gives its activations to stage r+1, which gives their gradients back.
//
// The order is 1F1B: as soon as a stage has filled those after it, it does one micro-batch forward
// and one backward in turn. So a stage holds activations of at most as many micro-batches as there
// are stages from it on. Source: Narayanan and others: Memory-Efficient Pipeline-Parallel DNN
// Training, PipeDream-Flush.
type Pipeline[T spmd.Elem] struct {
	c         spmd.Comm
	micro     int              // micro-batches of a run
	in        []spmd.Buffer[T] // by slot; none in the first stage
	out, dout spmd.Buffer[T]   // none in the last stage
	din       spmd.Buffer[T]   // none in the first stage

	times spmd.Buffer[int64]                    // see idle.go; none if runs are not measured
	note  func(s *spmd.Stream, point int) error // enters a point of a run there, else nil
}

// Stage is a rank's work on a micro-batch. Its functions enqueue on the stream of the run.
//
// in is the output of the stage before, and out the output of this stage; din and dout are their
// gradients. In the first stage in and din are empty: it reads the data. In the last one out and
// dout are: it computes the loss. slot counts the micro-batches in flight. A
// stage's memory for slot in Forward, and in, are left alone until Backward of the same micro-batch
// is done.
type Stage[T spmd.Elem] struct {
	Forward  func(micro, slot int, in, out spmd.Buffer[T]) error
	Backward func(micro, slot int, in, dout, din spmd.Buffer[T]) error
}

// NewPipeline takes the memory for runs of micro micro-batches. A stage gives n elements of each to
// the next.
//
// Collective over c in effect: every rank gives the same numbers.
func NewPipeline[T spmd.Elem](c spmd.Comm, n, micro int) (*Pipeline[T], error) {
	w, err := library.WorldOf(c, "parallel.NewPipeline")
	if err != nil {
		return nil, err
	}
	if n < 0 || micro < 1 {
		return nil, fmt.Errorf("%s: parallel.NewPipeline: %d micro-batches of %d elements", ccall.At(), micro, n)
	}
	p := &Pipeline[T]{c: c, micro: micro}
	p.in = make([]spmd.Buffer[T], schedule.InFlight(c.Size(), c.Rank(), micro))
	var bufs []*spmd.Buffer[T]
	if !p.first() {
		for i := range p.in {
			bufs = append(bufs, &p.in[i])
		}
		bufs = append(bufs, &p.din)
	}
	if !p.last() {
		bufs = append(bufs, &p.out, &p.dout)
	}
	for _, b := range bufs {
		if *b, err = spmd.Alloc[T](w, n); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if own.Measures(w) {
		if err := p.measure(w); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// Close frees the memory. No run may be in flight.
func (p *Pipeline[T]) Close() error {
	err := errors.Join(p.out.Free(), p.dout.Free(), p.din.Free(), p.times.Free())
	for _, b := range p.in {
		err = errors.Join(err, b.Free())
	}
	return err
}

func (p *Pipeline[T]) first() bool { return p.c.Rank() == 0 }
func (p *Pipeline[T]) last() bool  { return p.c.Rank() == p.c.Size()-1 }

// Run enqueues on s both passes of all micro-batches, and the messages between the stages. The
// micro-batches go forward in their order, and backward in the same order. A run may be captured in
// a graph.
//
// Collective over the ranks of the pipeline, in stream order. An error in a Stage on one rank must
// end the job: the others wait for its messages.
func (p *Pipeline[T]) Run(s *spmd.Stream, stage Stage[T]) error {
	r := run[T]{Pipeline: p, stage: stage, s: s, on: p.c.On(s), measured: p.note != nil}
	r.at(runBegins)
	ahead := len(p.in) - 1 // micro-batches that fill the stages after this one
	for i := range ahead {
		r.message(r.nothing(), r.fromBefore(i))
		r.forward(i)
		r.message(r.toNext(), r.nothing())
	}
	r.message(r.nothing(), r.fromBefore(ahead))
	// The two messages between a pair of stages, there and back, go together: neither waits for the
	// other.
	for i := range p.micro - ahead {
		r.forward(ahead + i)
		r.message(r.toNext(), r.fromNext())
		r.backward(i)
		r.message(r.toBefore(), r.fromBefore(ahead+i+1))
	}
	for i := p.micro - ahead; i < p.micro; i++ {
		r.message(r.nothing(), r.fromNext())
		r.backward(i)
		r.message(r.toBefore(), r.nothing())
	}
	r.at(runEnds)
	return r.err
}

// Forward enqueues on s the forward pass of micro micro-batches, and the messages between the
// stages. It serves to measure a loss without learning. in and out are as in Stage. A stage keeps
// nothing of a micro-batch when the next one begins.
//
// Collective over the ranks of the pipeline, in stream order, as Run.
func (p *Pipeline[T]) Forward(s *spmd.Stream, micro int, forward func(micro int, in, out spmd.Buffer[T]) error) error {
	r := run[T]{Pipeline: p, s: s, on: p.c.On(s)}
	for i := range micro {
		r.message(r.nothing(), r.fromBefore(0))
		if r.err == nil {
			r.err = forward(i, r.in[0], r.out)
		}
		r.message(r.toNext(), r.nothing())
	}
	return r.err
}

// run is a run that is being enqueued. After the first error it enqueues nothing more, and keeps
// the error.
type run[T spmd.Elem] struct {
	*Pipeline[T]
	stage Stage[T]
	s     *spmd.Stream
	on    spmd.Comm
	err   error

	measured bool
}

// parcel is a message to or from a rank. With a peer below 0 there is none.
type parcel[T spmd.Elem] struct {
	b    spmd.Buffer[T]
	peer int
}

func (r *run[T]) nothing() parcel[T] { return parcel[T]{peer: -1} }

func (r *run[T]) toNext() parcel[T]   { return r.withNext(r.out) }
func (r *run[T]) fromNext() parcel[T] { return r.withNext(r.dout) }

func (r *run[T]) withNext(b spmd.Buffer[T]) parcel[T] {
	if r.last() {
		return r.nothing()
	}
	return parcel[T]{b, r.c.Rank() + 1}
}

// toBefore of a first stage is to rank -1.
func (r *run[T]) toBefore() parcel[T] { return parcel[T]{r.din, r.c.Rank() - 1} }

// fromBefore returns the input of a micro-batch, or none if there is no such micro-batch.
func (r *run[T]) fromBefore(micro int) parcel[T] {
	if micro >= r.micro {
		return r.nothing()
	}
	return parcel[T]{r.in[micro%len(r.in)], r.c.Rank() - 1}
}

// message enqueues a message out and one in, which do not wait for each other.
func (r *run[T]) message(out, in parcel[T]) {
	send := func() error { return spmd.Send(r.on, out.b, out.peer) }
	receive := func() error { return spmd.Recv(r.on, in.b, in.peer) }
	if out.peer < 0 && in.peer < 0 {
		return
	}
	r.at(waitBegins)
	switch {
	case r.err != nil:
	case in.peer < 0:
		r.err = send()
	case out.peer < 0:
		r.err = receive()
	default:
		r.err = r.on.Group(func() error {
			if err := send(); err != nil {
				return err
			}
			return receive()
		})
	}
	r.at(waitEnds)
}

func (r *run[T]) forward(micro int) {
	if slot := micro % len(r.in); r.err == nil {
		r.err = r.stage.Forward(micro, slot, r.in[slot], r.out)
	}
}

func (r *run[T]) backward(micro int) {
	if slot := micro % len(r.in); r.err == nil {
		r.err = r.stage.Backward(micro, slot, r.in[slot], r.dout, r.din)
	}
}
