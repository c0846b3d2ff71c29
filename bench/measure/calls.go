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

	mpi "github.com/sbromberger/gompi"
	"github.com/spf13/pflag"

	"lockstep/spmd"
)

// mostCalls is how many calls a batch has at most, and how many replays a graph. Tests do with few.
var mostCalls = math.MaxInt

// measures are what a rank can measure, by the name of --what.
var measures = []struct {
	name string
	run  func(w *spmd.World, bytes int) error
}{
	{"allreduce", timeAllReduce},
	{"alltoall", timeAllToAll},
	{"pingpong", timePingPong},
	{"step", smallStep},
	{"enqueue", enqueue},
	{"launch", launch},
	{"startup", startup},
}

// Calls runs this program under mpirun. It measures the calls of the framework, and
// writes JSON lines.
func Calls() {
	fs := pflag.NewFlagSet("bench rank", pflag.ExitOnError)
	what := fs.String("what", "", strings.Join(measureNames(), ", "))
	sizes := fs.IntSlice("bytes", []int{8}, "sizes in bytes")
	run := func(w *spmd.World) error {
		measure := measures[slices.Index(measureNames(), *what)].run
		for _, bytes := range *sizes {
			if err := measure(w, bytes); err != nil {
				return err
			}
		}
		return nil
	}
	if i := slices.Index(os.Args, Unwatched); i >= 0 {
		*what = os.Args[i+1]
		if err := runUnwatched(run); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error { return run(w) },
		func(ranks int) error { return checkRank(*what, *sizes, ranks) })
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
func smallStep(w *spmd.World, bytes int) error {
	dst, src, err := operands(w, bytes/4, spmd.AllocPinned[float32])
	if err != nil {
		return err
	}
	defer src.Free()
	defer dst.Free()
	p := plan{calls: 1000, batches: 21, warmup: 2, after: nothing}
	return record(w, bytes, p, "step", nothing, func() error {
		for start := time.Now(); time.Since(start) < 100*time.Microsecond; {
		}
		return spmd.AllReduce(w.Comm(), dst, src, spmd.Sum)
	})
}

func measureNames() []string {
	var names []string
	for _, m := range measures {
		names = append(names, m.name)
	}
	return names
}

func checkRank(what string, sizes []int, ranks int) error {
	switch {
	case !slices.Contains(measureNames(), what):
		return fmt.Errorf("--what %s: want %s", what, strings.Join(measureNames(), ", "))
	case what == "pingpong" && ranks != 2:
		return fmt.Errorf("--what pingpong wants 2 ranks, not %d", ranks)
	}
	for _, bytes := range sizes {
		if bytes < 8 || bytes%8 != 0 {
			return fmt.Errorf("--bytes %d: must be a multiple of 8, and at least 8", bytes)
		}
	}
	return nil
}

// Point is one measured line.
type Point struct {
	What     string  `json:"what"`
	Ranks    int     `json:"ranks"`
	Device   string  `json:"device"`
	Bytes    int     `json:"bytes"`
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

func nothing() error { return nil }

// blocking returns the plan of allreduce.c.
func blocking(bytes int) plan {
	return plan{calls: max(3, min(2000, 1<<26/bytes)), batches: 21, warmup: 3, after: nothing}
}

// enqueueing returns the plan of launch.c and nccl_enqueue.c: so few calls that no queue
// is ever full.
func enqueueing(s *spmd.Stream) plan {
	return plan{calls: 100, batches: 201, warmup: 20, after: s.Synchronize}
}

// timed runs batches of each of the functions in turn and returns a point for each. A batch takes
// as long per call as its slowest rank. The median over the batches counts.
func timed(w *spmd.World, bytes int, p plan, names []string, calls ...func() error) ([]Point, error) {
	p.calls = min(p.calls, mostCalls)
	us := make([][]float64, len(calls))
	slowest, err := spmd.AllocPinned[float64](w, 1)
	if err != nil {
		return nil, err
	}
	defer slowest.Free()
	for b := -p.warmup; b < p.batches; b++ {
		for i, call := range calls {
			if err := spmd.Barrier(w.Comm()); err != nil {
				return nil, err
			}
			start := time.Now()
			for range p.calls {
				if err := call(); err != nil {
					return nil, err
				}
			}
			slowest.Set(0, float64(time.Since(start).Nanoseconds())/1e3/float64(p.calls))
			if err := p.after(); err != nil {
				return nil, err
			}
			if err := spmd.AllReduce(w.Comm(), slowest, slowest, spmd.Max); err != nil {
				return nil, err
			}
			if b >= 0 {
				us[i] = append(us[i], slowest.At(0))
			}
		}
	}
	var points []Point
	for i, t := range us {
		allocs, err := allocations(p, calls[i])
		if err != nil {
			return nil, err
		}
		slices.Sort(t)
		points = append(points, Point{names[i], w.Size(), w.Device(), bytes, t[len(t)/2], t[0], allocs})
	}
	return points, nil
}

// record times one call, has its result checked, and writes the line.
func record(w *spmd.World, bytes int, p plan, name string, check, call func() error) error {
	points, err := timed(w, bytes, p, []string{name}, call)
	if err == nil {
		err = check()
	}
	if err != nil {
		return err
	}
	return emit(w, points...)
}

// allocations returns how many objects a call allocates. The average is rounded down as in
// testing.AllocsPerRun, because of other activity in the process.
func allocations(p plan, call func() error) (int, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range p.calls {
		if err := call(); err != nil {
			return 0, err
		}
	}
	runtime.ReadMemStats(&after)
	return int(after.Mallocs-before.Mallocs) / p.calls, p.after()
}

func emit[T any](w *spmd.World, points ...T) error {
	for _, p := range points {
		if err := w.Emit(p); err != nil {
			return err
		}
	}
	return nil
}

// operands returns src, in which element i of rank r is r + 1 + i%7, and dst, which has no
// sum of those.
func operands(w *spmd.World, n int,
	alloc func(*spmd.World, int) (spmd.Buffer[float32], error)) (dst, src spmd.Buffer[float32], err error) {
	if src, err = alloc(w, n); err != nil {
		return dst, src, err
	}
	if dst, err = alloc(w, n); err != nil {
		return dst, src, err
	}
	h := make([]float32, n)
	for i := range h {
		h[i] = float32(w.Rank() + 1 + i%7)
	}
	if err := src.CopyFrom(h); err != nil {
		return dst, src, err
	}
	return dst, src, dst.SetAll(-1)
}

// checkSums compares dst with the sum of all ranks' src.
func checkSums(w *spmd.World, dst spmd.Buffer[float32]) error {
	return compare(dst, func(i int) float32 { return float32(w.Size()*(w.Size()+1)/2 + w.Size()*(i%7)) })
}

func compare(dst spmd.Buffer[float32], want func(i int) float32) error {
	h := make([]float32, dst.Len())
	if err := dst.CopyTo(h); err != nil {
		return err
	}
	for i, got := range h {
		if want := want(i); got != want {
			return fmt.Errorf("element %d is %v, want %v", i, got, want)
		}
	}
	return nil
}

func timeAllReduce(w *spmd.World, bytes int) error {
	dst, src, err := operands(w, bytes/4, spmd.AllocPinned[float32])
	if err != nil {
		return err
	}
	defer src.Free()
	defer dst.Free()
	return record(w, bytes, blocking(bytes), "spmd.AllReduce", func() error { return checkSums(w, dst) },
		func() error { return spmd.AllReduce(w.Comm(), dst, src, spmd.Sum) })
}

// timeAllToAll measures an all-to-all of so many bytes from each rank to each.
func timeAllToAll(w *spmd.World, bytes int) error {
	n := bytes / 4
	dst, src, err := operands(w, n*w.Size(), spmd.AllocPinned[float32])
	if err != nil {
		return err
	}
	defer src.Free()
	defer dst.Free()
	check := func() error {
		return compare(dst, func(i int) float32 { return float32(i/n + 1 + (w.Rank()*n+i%n)%7) })
	}
	return record(w, bytes, blocking(bytes*w.Size()), "spmd.AllToAll", check,
		func() error { return spmd.AllToAll(w.Comm(), dst, src) })
}

// timePingPong measures half a round trip between ranks 0 and 1, through spmd and through
// gompi, in turn.
func timePingPong(w *spmd.World, bytes int) error {
	n, peer := bytes/8, 1-w.Rank()
	x, err := spmd.AllocPinned[float64](w, n)
	if err != nil {
		return err
	}
	defer x.Free()
	ours := func() error {
		if w.Rank() == 0 {
			if err := spmd.Send(w.Comm(), x, peer); err != nil {
				return err
			}
			return spmd.Recv(w.Comm(), x, peer)
		}
		if err := spmd.Recv(w.Comm(), x, peer); err != nil {
			return err
		}
		return spmd.Send(w.Comm(), x, peer)
	}
	g, y := mpi.NewCommunicator(nil), make([]float64, n)
	theirs := func() error {
		if w.Rank() == 0 {
			g.SendFloat64s(y, peer, 0)
			g.RecvPreallocFloat64s(y, peer, 0)
		} else {
			g.RecvPreallocFloat64s(y, peer, 0)
			g.SendFloat64s(y, peer, 0)
		}
		return nil
	}
	points, err := timed(w, bytes, blocking(bytes),
		[]string{"spmd.Send and Recv", "gompi SendFloat64s and RecvPreallocFloat64s"}, ours, theirs)
	if err != nil {
		return err
	}
	for i := range points {
		points[i].MedianUS /= 2
		points[i].MinUS /= 2
	}
	return emit(w, points...)
}
