package cudnn

import (
	"cmp"
	"math/rand/v2"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

const (
	mostEngines = 4                     // of those proposed, that are timed
	tuneFor     = 10 * time.Millisecond // of runs in a row, once at least
	tuneTurns   = 3                     // the fastest of these counts
	tuneGain    = 0.98                  // of the first engine's time, which another must stay below
	tunePeriod  = 1 << 20               // bytes of random numbers, which repeat
)

// TuneAttention times the engines that the library proposes for a shape, each on random numbers in
// memory of its own. It returns the fastest, and the library's first unless another is faster by
// more than 2 %. It waits for the device, and takes about a second, most of it to load code. It
// fails with cuda.ErrOutOfMemory without room for the operands.
func (h *Handle) TuneAttention(s Shape, deterministic bool) (c Choice, err error) {
	t := &tuning{d: h.d, size: s.Batch * s.Tokens * s.Heads * s.Size * s.Type.Size()}
	defer func() { err = cmp.Or(err, t.close()) }()
	if err = t.open(s); err != nil {
		return c, err
	}
	var forward, backward []time.Duration
	for i := 0; i < mostEngines; i++ {
		a, err := h.NewAttention(s, deterministic, Choice{i, i})
		if err != nil {
			return c, err
		}
		f, b, err := t.measure(a)
		more := i+1 < max(a.forward.e.proposed, a.backward.e.proposed)
		if err = cmp.Or(err, a.Close()); err != nil {
			return c, err
		}
		forward, backward = append(forward, f), append(backward, b)
		if !more {
			break
		}
	}
	return Choice{fastest(forward), fastest(backward)}, nil
}

// fastest returns the place of the least time; 0 if none is much less than the first.
func fastest(times []time.Duration) int {
	best := 0
	for i, t := range times {
		if float64(t) < tuneGain*float64(times[0]) && t < times[best] {
			best = i
		}
	}
	return best
}

// tuning is the operands of the timed runs.
type tuning struct {
	d                         *cuda.Device
	s                         *cuda.Stream
	size                      int // bytes of out
	taken                     []unsafe.Pointer
	host                      unsafe.Pointer
	events                    [2]*cuda.Event
	qkv, dqkv, out, dout, lse unsafe.Pointer
}

func (t *tuning) alloc(bytes int) (unsafe.Pointer, error) {
	p, err := t.d.Malloc(bytes)
	if err == nil {
		t.taken = append(t.taken, p)
	}
	return p, err
}

func (t *tuning) open(s Shape) (err error) {
	for _, x := range []struct {
		p     *unsafe.Pointer
		bytes int
	}{{&t.qkv, 3 * t.size}, {&t.dqkv, 3 * t.size}, {&t.out, t.size}, {&t.dout, t.size},
		{&t.lse, 4 * s.Batch * s.Heads * s.Tokens}} {
		if *x.p, err = t.alloc(x.bytes); err != nil {
			return err
		}
	}
	if t.s, err = t.d.NewStream(0); err != nil {
		return err
	}
	for i := range t.events {
		if t.events[i], err = t.d.NewTimedEvent(); err != nil {
			return err
		}
	}
	if t.host, err = t.d.MallocHost(tunePeriod); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < tunePeriod; i += 2 {
		v := float32(r.NormFloat64())
		if p := unsafe.Add(t.host, i); s.Type == elem.Float16 {
			*(*elem.F16)(p) = elem.ToF16(v)
		} else {
			*(*elem.BF16)(p) = elem.ToBF16(v)
		}
	}
	return cmp.Or(t.fill(t.qkv, 3*t.size), t.fill(t.dout, t.size), t.s.Synchronize())
}

func (t *tuning) fill(p unsafe.Pointer, bytes int) error {
	for at := 0; at < bytes; at += tunePeriod {
		if err := t.s.Copy(unsafe.Add(p, at), t.host, min(tunePeriod, bytes-at)); err != nil {
			return err
		}
	}
	return nil
}

// measure returns the times of both passes.
func (t *tuning) measure(a *Attention) (forward, backward time.Duration, err error) {
	bytes := max(1, a.ForwardWorkspace(), a.BackwardWorkspace())
	w, err := t.d.Malloc(bytes)
	if err != nil {
		return 0, 0, err
	}
	forward, err = t.time(func() error { return a.Forward(t.s, t.out, t.lse, t.qkv, w, bytes) })
	if err == nil {
		backward, err = t.time(func() error { return a.Backward(t.s, t.dqkv, t.dout, t.out, t.lse, t.qkv, w, bytes) })
	}
	return forward, backward, cmp.Or(err, t.s.Synchronize(), t.d.Free(w))
}

// time returns the time of a run, the least of some turns, after one that may load code.
func (t *tuning) time(run func() error) (least time.Duration, err error) {
	if err := cmp.Or(run(), t.s.Synchronize()); err != nil {
		return 0, err
	}
	least, err = t.turn(run, 1)
	for range tuneTurns {
		if err != nil {
			break
		}
		var d time.Duration
		d, err = t.turn(run, int(min(10, tuneFor/max(1, least)+1)))
		least = min(least, d)
	}
	return least, err
}

// turn returns the time of one of n runs in a row.
func (t *tuning) turn(run func() error, n int) (time.Duration, error) {
	err := t.events[0].Record(t.s)
	for range n {
		err = cmp.Or(err, run())
	}
	if err = cmp.Or(err, t.events[1].Record(t.s), t.events[1].Synchronize()); err != nil {
		return 0, err
	}
	d, err := t.events[1].Elapsed(t.events[0])
	return d / time.Duration(n), err
}

func (t *tuning) close() (err error) {
	for _, e := range t.events {
		if e != nil {
			err = cmp.Or(err, e.Close())
		}
	}
	if t.s != nil {
		err = cmp.Or(err, t.s.Close())
	}
	if t.host != nil {
		err = cmp.Or(err, t.d.FreeHost(t.host))
	}
	for _, p := range t.taken {
		err = cmp.Or(err, t.d.Free(p))
	}
	return err
}
