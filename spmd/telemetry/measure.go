package telemetry

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Stats is how long a step took, over its repetitions. The slowest rank sets the time of a
// repetition. Times are in microseconds of host time.
type Stats struct {
	Iters    int     `json:"iters"`
	MinUS    float64 `json:"min_us"`
	MedianUS float64 `json:"median_us"`
	P99US    float64 `json:"p99_us"`
	MaxUS    float64 `json:"max_us"`
	// Samples are the times of all repetitions, in their order. The caller owns them.
	Samples []float64 `json:"-"`
	// Enqueued is, for each repetition, the time until the last rank had enqueued it (MeasureStream
	// alone sets it). Fastest is the time of the fastest rank. They tell why a repetition was slow:
	// a host enqueued late; a rank began or returned late, if another rank was fast; else the
	// devices were slow.
	Enqueued, Fastest []float64 `json:"-"`
}

// Measure runs step warmup times and then iters times. It times each of the latter from a barrier
// to the return of step, which is the time that a caller waits. So a step that enqueues should
// synchronize. The result is the same on every rank. Between the first step and the last only step
// allocates.
//
// Collective over c, blocking.
func Measure(c spmd.Comm, warmup, iters int, step func() error) (Stats, error) {
	t, err := measure(c, warmup, iters, func(time.Time) (time.Duration, error) { return 0, step() })
	t.Enqueued = nil
	return t, err
}

// measure is Measure for a step that returns how long after start it had been enqueued.
func measure(
	c spmd.Comm, warmup, iters int, step func(start time.Time) (enqueued time.Duration, err error),
) (Stats, error) {
	if warmup < 0 || iters < 1 {
		return Stats{}, fmt.Errorf("%s: telemetry.Measure: %d iterations after %d", ccall.At(), iters, warmup)
	}
	w, err := library.WorldOf(c, "telemetry.Measure")
	if err != nil {
		return Stats{}, err
	}
	c = c.On(nil)
	times, err := spmd.Alloc[float64](w, 3*iters)
	if err != nil {
		return Stats{}, err
	}
	defer times.Free()
	us := make([]float64, 3*iters)
	whole, enqueued, fastest := us[:iters:iters], us[iters:2*iters:2*iters], us[2*iters:]
	for i := -warmup; i < iters; i++ {
		if err := spmd.Barrier(c); err != nil {
			return Stats{}, err
		}
		start := time.Now()
		after, err := step(start)
		if err != nil {
			return Stats{}, err
		}
		if i >= 0 {
			whole[i] = float64(time.Since(start).Nanoseconds()) / 1e3
			enqueued[i] = float64(after.Nanoseconds()) / 1e3
			fastest[i] = -whole[i] // the least time is the greatest of these
		}
	}
	if err := times.CopyFrom(us); err != nil {
		return Stats{}, err
	}
	if err := spmd.AllReduce(c, times, times, spmd.Max); err != nil {
		return Stats{}, err
	}
	if err := times.CopyTo(us); err != nil {
		return Stats{}, err
	}
	for i := range fastest {
		fastest[i] = -fastest[i]
	}
	t := StatsOf(whole)
	t.Enqueued, t.Fastest = enqueued, fastest
	return t, nil
}

// StatsOf sums up the times of repetitions, in microseconds, and keeps them as its Samples. It
// panics if there are none.
func StatsOf(samples []float64) Stats {
	us, n := slices.Sorted(slices.Values(samples)), len(samples)
	median := math.Round((us[(n-1)/2]+us[n/2])/2*1e6) / 1e6 // as short as its samples, when it is printed
	return Stats{Iters: n, MinUS: us[0], MedianUS: median, P99US: us[(n*99+99)/100-1], MaxUS: us[n-1], Samples: samples}
}

// The values of graph in MeasureStream and MeasureAwait.
const (
	Calls = false // each repetition calls enqueue
	Graph = true  // each repetition launches a graph of the step
)

// MeasureStream is Measure for a step that enqueue puts on s. It synchronizes s after each step.
// With graph it captures the step once and replays it. Several enqueue functions take turns, for
// operands that are to come from memory and not from a cache.
//
// Collective over c, blocking.
func MeasureStream(c spmd.Comm, s *spmd.Stream, graph bool, warmup, iters int, enqueue ...func() error) (Stats, error) {
	finish := func(step func() error) error {
		if err := step(); err != nil {
			return err
		}
		return s.Synchronize()
	}
	return measureStream(c, s, finish, graph, warmup, iters, enqueue)
}

// MeasureAwait is MeasureStream for a caller that waits for b alone, as spmd.Await does.
//
// Collective over c, blocking.
func MeasureAwait[T spmd.Elem](
	c spmd.Comm, s *spmd.Stream, b spmd.Buffer[T], graph bool, warmup, iters int, enqueue ...func() error,
) (Stats, error) {
	finish := func(step func() error) error { return spmd.Await(s, b, step) }
	return measureStream(c, s, finish, graph, warmup, iters, enqueue)
}

// measureStream is MeasureStream in which finish enqueues a step and waits for it.
func measureStream(
	c spmd.Comm, s *spmd.Stream, finish func(step func() error) error, graph bool, warmup, iters int,
	enqueue []func() error,
) (t Stats, err error) {
	if len(enqueue) == 0 {
		return Stats{}, fmt.Errorf("%s: telemetry.MeasureStream: nothing to enqueue", ccall.At())
	}
	steps := slices.Clone(enqueue)
	if graph {
		for i, step := range steps {
			g, err := s.Capture(step)
			if err != nil {
				return Stats{}, err
			}
			defer func() { err = errors.Join(err, g.Close()) }()
			steps[i] = func() error { return g.Launch(s) }
		}
	}
	turn := 0
	var start time.Time
	var enqueued time.Duration
	step := func() error {
		err := steps[turn]()
		enqueued = time.Since(start)
		return err
	}
	t, err = measure(c, warmup, iters, func(at time.Time) (time.Duration, error) {
		start = at
		err := finish(step)
		turn = (turn + 1) % len(steps)
		return enqueued, err
	})
	if err == nil { // who waits for b alone has not seen the end
		err = s.Synchronize()
	}
	return t, err
}

// GBps returns the rate at which the median moves bytes, in 1e9 bytes a second.
func (t Stats) GBps(bytes int) float64 { return float64(bytes) / t.MedianUS / 1e3 }
