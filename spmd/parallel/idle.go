package parallel

import (
	_ "embed"
	"errors"
	"time"

	"lockstep/spmd"
)

// The places of a stage's measurements in memory of its device: the begin of an interval, then the
// sum of those that ended.
const (
	runBegins = iota
	runEnds
	waitBegins
	waitEnds
	nPoints
)

// The host counts its time from epoch.
var epoch = time.Now()

//go:embed clock.cu
var clockSource string

// stageClock reads the clock of the device, so that graphs do, too.
var stageClock = spmd.NewKernel("stage_clock_i64", clockSource, func(a spmd.Args) error {
	notePoint(spmd.ArgSlice[int64](a, 0), a.I32(1), int64(time.Since(epoch)))
	return nil
})

// notePoint enters a point in time, in nanoseconds.
func notePoint(times []int64, point int, now int64) {
	if point%2 == 1 {
		now += times[point] - times[point-1]
	}
	times[point] = now
}

// measure takes the memory for a stage's measurements, and makes runs measure.
func (p *Pipeline[T]) measure(w *spmd.World) error {
	var err error
	if p.times, err = spmd.Alloc[int64](w, nPoints); err != nil {
		return err
	}
	p.note = func(s *spmd.Stream, point int) error {
		return stageClock.Launch(s, spmd.Cover1D(1, 32), p.times.Arg(), spmd.I32(point))
	}
	return p.times.SetAll(0)
}

// at enqueues the note of a point of a run, if runs are measured.
func (r *run[T]) at(point int) {
	if r.err == nil && r.measured {
		r.err = r.note(r.s, point)
	}
}

// Time returns this stage's measurements since ForgetTime. Jobs with --summary or --trace measure;
// elsewhere measuring costs nothing, and Time returns 0. It blocks for runs that are enqueued.
// whole is from the begin to the end of each run, and waiting its part in messages: mostly until a
// neighbour gets there.
func (p *Pipeline[T]) Time(s *spmd.Stream) (whole, waiting time.Duration, err error) {
	if p.note == nil {
		return 0, 0, nil
	}
	var x [nPoints]int64
	err = errors.Join(s.Synchronize(), p.times.CopyTo(x[:]))
	return time.Duration(x[runEnds]), time.Duration(x[waitEnds]), err
}

// ForgetTime enqueues on s that Time begins with later runs.
func (p *Pipeline[T]) ForgetTime(s *spmd.Stream) error {
	if p.note == nil {
		return nil
	}
	return spmd.Fill(s, p.times, 0)
}
