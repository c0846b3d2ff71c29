package spmd

import (
	"fmt"
	"slices"
	"time"

	"lockstep/host"
	"lockstep/internal/ccall"
)

// Timing is how long a step took, over its repetitions; of each repetition the
// time of the slowest rank. Times are in microseconds of host time.
type Timing struct {
	Iters    int     `json:"iters"`
	MinUS    float64 `json:"min_us"`
	MedianUS float64 `json:"median_us"`
	P99US    float64 `json:"p99_us"`
	MaxUS    float64 `json:"max_us"`
}

// Measure runs step warmup times and then iters times, and times each of those
// from a barrier to the return of step: what a caller waits, so a step that
// enqueues should synchronise. The result is the same on every rank.
//
// Collective over c, blocking.
func Measure(c Comm, warmup, iters int, step func() error) (Timing, error) {
	if warmup < 0 || iters < 1 {
		return Timing{}, fmt.Errorf("%s: Measure: %d iterations after %d", ccall.At(), iters, warmup)
	}
	if err := c.check("Measure"); err != nil {
		return Timing{}, err
	}
	c.s = nil
	times, err := Alloc[float64](c.st.w, iters)
	if err != nil {
		return Timing{}, err
	}
	defer times.Free()
	us := make([]float64, iters)
	for i := -warmup; i < iters; i++ {
		if err := Barrier(c); err != nil {
			return Timing{}, err
		}
		start := time.Now()
		if err := step(); err != nil {
			return Timing{}, err
		}
		if i >= 0 {
			us[i] = float64(time.Since(start).Nanoseconds()) / 1e3
		}
	}
	if err := times.CopyFrom(us); err != nil {
		return Timing{}, err
	}
	if err := AllReduce(c, times, times, Max); err != nil {
		return Timing{}, err
	}
	if err := times.CopyTo(us); err != nil {
		return Timing{}, err
	}
	slices.Sort(us)
	median := (us[(iters-1)/2] + us[iters/2]) / 2
	return Timing{iters, us[0], median, us[(iters*99+99)/100-1], us[iters-1]}, nil
}

// MeasureStream is Measure for a step that enqueue puts on s: it synchronizes s
// after each, and with graph captures the step once and replays it.
//
// Collective over c, blocking.
func MeasureStream(c Comm, s *Stream, graph bool, warmup, iters int, enqueue func() error) (Timing, error) {
	if graph {
		g, err := s.Capture(enqueue)
		if err != nil {
			return Timing{}, err
		}
		enqueue = func() error { return g.Launch(s) }
	}
	return Measure(c, warmup, iters, func() error {
		if err := enqueue(); err != nil {
			return err
		}
		return s.Synchronize()
	})
}

// GBps is the rate at which the median moves a number of bytes, in 1e9 bytes a
// second.
func (t Timing) GBps(bytes int) float64 { return float64(bytes) / t.MedianUS / 1e3 }

var uniform = NewKernel("uniform_f32", "", func(a Args) error {
	dst, seed, offset := ArgSlice[float32](a, 0), a.U64(1), a.U64(2)
	host.Parallel(len(dst), grain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst[i] = float32(UniformBits(seed, offset+uint64(i))) / (1 << 24)
		}
	})
	return nil
})

// Uniform enqueues on s: dst[i] = UniformBits(seed, offset+i) / 2^24, which is a
// number from 0 to 1, 1 excluded, that depends on the seed and its place alone,
// not on who holds it.
func Uniform(s *Stream, dst Buffer[float32], seed uint64, offset int) error {
	return uniform.Launch(s, Cover1D(dst.n, 256), dst.Arg(), U64(seed), U64(uint64(offset)))
}

// UniformBits returns 24 random bits for place i of the sequence that seed names.
func UniformBits(seed, i uint64) uint32 { return uint32(mix(mix(seed)+i) >> 40) }
