package trainer

import (
	"errors"
	"iter"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

// Loader brings micro-batches to the device. A goroutine fills one pair of pinned buffers with the
// next micro-batch while the device works on the one before.
type Loader struct {
	data        *Dataset
	vocab       int // every token is below
	slots       [2]slot
	in, targets spmd.Buffer[int32] // (batch, seq), on the device
	sorted      spmd.Buffer[int32] // the rows of in by token, as sorter leaves them
}

// slot is host memory for one micro-batch.
type slot struct {
	in, targets spmd.Buffer[int32] // (batch, seq), pinned
	sorted      spmd.Buffer[int32] // pinned
	b           int                // sequences it holds
	// memory of the three; copied keeps the order, so that nobody asks the streams each time
	host   [3][]int32
	copied *spmd.Event // when the device has taken them
}

// NewLoader allocates for micro-batches of up to batch sequences. A token that is not below vocab
// ends a feed with an error.
func NewLoader(w *spmd.World, data *Dataset, batch, vocab int) (*Loader, error) {
	l := &Loader{data: data, vocab: vocab}
	n := batch * data.Seq
	var err error
	alloc := func(make func(*spmd.World, int) (spmd.Buffer[int32], error), in, targets, sorted *spmd.Buffer[int32]) {
		for _, b := range []*spmd.Buffer[int32]{in, targets, sorted} {
			size := n
			if b == sorted {
				size = ops.SortedLen(n, vocab)
			}
			if err == nil {
				*b, err = make(w, size)
			}
		}
	}
	alloc(spmd.Alloc[int32], &l.in, &l.targets, &l.sorted)
	for i := range l.slots {
		s := &l.slots[i]
		alloc(spmd.AllocPinned[int32], &s.in, &s.targets, &s.sorted)
		if err == nil {
			s.host = [...][]int32{s.in.Host(), s.targets.Host(), s.sorted.Host()}
			s.copied, err = w.NewEvent()
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Close frees the loader's memory. No feed may be running.
func (l *Loader) Close() error {
	err := errors.Join(l.in.Free(), l.targets.Free(), l.sorted.Free())
	for _, s := range l.slots {
		err = errors.Join(err, s.in.Free(), s.targets.Free(), s.sorted.Free())
		if s.copied != nil {
			err = errors.Join(err, s.copied.Close())
		}
	}
	return err
}

// Feed is one run of a loader through some micro-batches.
type Feed struct {
	l           *Loader
	ready, free chan *slot
	quit, ended chan struct{}
	err         error // of the goroutine; read it when ready is closed
}

// Feed starts to load micro-batches. Each is a list of the places where its sequences begin. A
// loader has one feed at a time. Stop ends it.
func (l *Loader) Feed(batches iter.Seq[[]int]) *Feed {
	f := &Feed{l, make(chan *slot, len(l.slots)), make(chan *slot, len(l.slots)), make(chan struct{}),
		make(chan struct{}), nil}
	for i := range l.slots {
		f.free <- &l.slots[i]
	}
	go func() {
		defer close(f.ended)
		defer close(f.ready)
		var rows ops.Sorter
		for starts := range batches {
			var s *slot
			select {
			case s = <-f.free:
			case <-f.quit:
				return
			}
			if f.err = s.copied.Synchronize(); f.err != nil {
				return
			}
			t := l.data.Seq
			in, targets, sorted := s.host[0], s.host[1], s.host[2]
			f.err = l.data.File.Guard(func() error {
				for i, at := range starts {
					l.data.fill(in[i*t:(i+1)*t], targets[i*t:(i+1)*t], at)
				}
				return nil
			})
			if f.err != nil {
				return
			}
			// A kernel on a GPU could not report them.
			n := len(starts) * t
			f.err = errors.Join(ops.CheckTokens(in[:n], l.vocab), ops.CheckTokens(targets[:n], l.vocab))
			if f.err != nil {
				return
			}
			rows.Sort(sorted[:ops.SortedLen(n, l.vocab)], in[:n], l.vocab)
			s.b = len(starts)
			f.ready <- s // has room for all slots
		}
	}()
	return f
}

// Next enqueues on s the copy of the next micro-batch to the device, and returns where it will be.
func (f *Feed) Next(s *spmd.Stream) (gpt.Batch, error) {
	sl, ok := <-f.ready
	if !ok {
		if f.err != nil {
			return gpt.Batch{}, f.err
		}
		return gpt.Batch{}, errors.New("the loader has no more micro-batches")
	}
	n := sl.b * f.l.data.Seq
	m := ops.SortedLen(n, f.l.vocab)
	b := gpt.Batch{In: f.l.in.Slice(0, n), Targets: f.l.targets.Slice(0, n), Sorted: f.l.sorted.Slice(0, m), B: sl.b,
		T: f.l.data.Seq}
	for _, c := range [...]struct{ dst, src spmd.Buffer[int32] }{
		{b.In, sl.in.Slice(0, n)}, {b.Targets, sl.targets.Slice(0, n)}, {b.Sorted, sl.sorted.Slice(0, m)},
	} {
		if err := spmd.Copy(s, c.dst, c.src); err != nil {
			return b, err
		}
	}
	if err := sl.copied.Record(s); err != nil {
		return b, err
	}
	f.free <- sl // the goroutine waits for the copies before it writes
	return b, nil
}

// Stop ends the feed's goroutine.
func (f *Feed) Stop() {
	close(f.quit)
	<-f.ended
}
