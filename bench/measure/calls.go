package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

// mostCalls is how many calls a batch has at most, and how many replays a graph. Tests do with few.
var mostCalls = math.MaxInt

// measures are what a rank can measure, by the name of --what.
var measures = []struct {
	name string
	run  func(w *spmd.World) error
}{{"step", smallStep}, {"enqueue", enqueue}, {"launch", launch}, {"startup", startup}}

// Calls runs this program under mpirun. It measures the calls of the framework, and writes JSON
// lines.
func Calls() {
	fs := pflag.NewFlagSet("bench rank", pflag.ExitOnError)
	what := fs.String("what", "", strings.Join(measureNames(), ", "))
	run := func(w *spmd.World) error { return measures[slices.Index(measureNames(), *what)].run(w) }
	if i := slices.Index(os.Args, Unwatched); i >= 0 {
		*what = os.Args[i+1]
		if err := runUnwatched(run); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error { return run(w) }, func(int) error {
		if !slices.Contains(measureNames(), *what) {
			return fmt.Errorf("--what %s: want %s", *what, strings.Join(measureNames(), ", "))
		}
		return nil
	})
}

// Unwatched is the flag, in place of --what, for a rank without Main, and so without Main's watch
// over the ranks.
const Unwatched = "--unwatched"

func runUnwatched(run func(w *spmd.World) error) error {
	w, err := spmd.Open(spmd.Config{Device: "host", JSON: "-", LogLevel: "warn"})
	if err != nil {
		return err
	}
	return errors.Join(run(w), w.Close())
}

// smallStep measures a step of a program that computes for 100 us and then makes one
// small collective.
func smallStep(w *spmd.World) error {
	x, err := spmd.AllocPinned[float32](w, 2)
	if err != nil {
		return err
	}
	defer x.Free()
	p := plan{calls: 1000, batches: 21, warmup: 2, after: func() error { return nil }}
	return record(w, p, "step", func() error {
		for start := time.Now(); time.Since(start) < 100*time.Microsecond; {
		}
		return spmd.AllReduce(w.Comm(), x, x, spmd.Max)
	})
}

func measureNames() []string {
	var names []string
	for _, m := range measures {
		names = append(names, m.name)
	}
	return names
}

// Point is one measured line.
type Point struct {
	What     string  `json:"what"`
	Ranks    int     `json:"ranks"`
	Device   string  `json:"device"`
	MedianUS float64 `json:"median_us"`
	MinUS    float64 `json:"min_us"`
	Allocs   int     `json:"allocs"` // of a call
}

// plan is how calls are timed: in batches, after a warm-up, as in the C programs.
type plan struct {
	calls           int // of a batch
	batches, warmup int
	after           func() error // what follows a batch, outside the time
}

// enqueueing returns the plan of launch.c and nccl_enqueue.c: so few calls that no queue
// is ever full.
func enqueueing(s *spmd.Stream) plan {
	return plan{calls: 100, batches: 201, warmup: 20, after: s.Synchronize}
}

// record times batches of a call, and writes the line. A batch takes as long per call as its
// slowest rank. The median over the batches counts.
func record(w *spmd.World, p plan, name string, call func() error) error {
	p.calls = min(p.calls, mostCalls)
	var us []float64
	slowest, err := spmd.AllocPinned[float64](w, 1)
	if err != nil {
		return err
	}
	defer slowest.Free()
	batch := func() error {
		for range p.calls {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	}
	for b := -p.warmup; b < p.batches; b++ {
		if err := spmd.Barrier(w.Comm()); err != nil {
			return err
		}
		start := time.Now()
		if err := batch(); err != nil {
			return err
		}
		slowest.Set(0, float64(time.Since(start).Nanoseconds())/1e3/float64(p.calls))
		if err := p.after(); err != nil {
			return err
		}
		if err := spmd.AllReduce(w.Comm(), slowest, slowest, spmd.Max); err != nil {
			return err
		}
		if b >= 0 {
			us = append(us, slowest.At(0))
		}
	}
	// The allocations of a call are rounded down as in testing.AllocsPerRun, because of other
	// activity in the process.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := batch(); err != nil {
		return err
	}
	runtime.ReadMemStats(&after)
	if err := p.after(); err != nil {
		return err
	}
	slices.Sort(us)
	return w.Emit(Point{name, w.Size(), w.Device(), us[len(us)/2], us[0],
		int(after.Mallocs-before.Mallocs) / p.calls})
}
