package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	mpi "github.com/sbromberger/gompi"
	"github.com/spf13/pflag"

	"lockstep/spmd"
)

// The measuring is that of allreduce.c: batches of calls after a warm-up; a batch
// takes as long per call as its slowest rank; the median over the batches counts.
const (
	batches       = 21
	warmupBatches = 3
	batchBytes    = 1 << 26
	mostCalls     = 2000
	leastCalls    = 3
)

// rank is this program as the runner starts it under mpirun: it measures the calls
// of the framework itself, and writes JSON lines.
func rank() {
	fs := pflag.NewFlagSet("bench rank", pflag.ExitOnError)
	what := fs.String("what", "", "allreduce or pingpong")
	sizes := fs.IntSlice("bytes", []int{8}, "sizes")
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		measure := allReduce
		if *what == "pingpong" {
			measure = pingPong
		}
		for _, bytes := range *sizes {
			if err := measure(w, bytes); err != nil {
				return err
			}
		}
		return nil
	}, func(ranks int) error { return checkRank(*what, *sizes, ranks) })
}

func checkRank(what string, sizes []int, ranks int) error {
	switch {
	case what != "allreduce" && what != "pingpong":
		return fmt.Errorf("--what %s: want allreduce or pingpong", what)
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

// point is one measured line.
type point struct {
	What     string  `json:"what"`
	Ranks    int     `json:"ranks"`
	Bytes    int     `json:"bytes"`
	MedianUS float64 `json:"median_us"`
	MinUS    float64 `json:"min_us"`
}

// timed runs batches of each of the functions in turn and returns a point for each.
func timed(w *spmd.World, bytes int, names []string, calls ...func() error) ([]point, error) {
	n := max(leastCalls, min(mostCalls, batchBytes/bytes))
	us := make([][]float64, len(calls))
	slowest, err := spmd.AllocPinned[float64](w, 1)
	if err != nil {
		return nil, err
	}
	defer slowest.Free()
	for b := -warmupBatches; b < batches; b++ {
		for i, call := range calls {
			if err := spmd.Barrier(w.Comm); err != nil {
				return nil, err
			}
			start := time.Now()
			for range n {
				if err := call(); err != nil {
					return nil, err
				}
			}
			slowest.Set(0, float64(time.Since(start).Nanoseconds())/1e3/float64(n))
			if err := spmd.AllReduce(w.Comm, slowest, slowest, spmd.Max); err != nil {
				return nil, err
			}
			if b >= 0 {
				us[i] = append(us[i], slowest.At(0))
			}
		}
	}
	var points []point
	for i, t := range us {
		slices.Sort(t)
		points = append(points, point{names[i], w.Size(), bytes, t[batches/2], t[0]})
	}
	return points, nil
}

func emit(w *spmd.World, points []point) error {
	for _, p := range points {
		if err := w.Emit(p); err != nil {
			return err
		}
	}
	return nil
}

func allReduce(w *spmd.World, bytes int) error {
	n := bytes / 4
	src, err := spmd.AllocPinned[float32](w, n)
	if err != nil {
		return err
	}
	defer src.Free()
	dst, err := spmd.AllocPinned[float32](w, n)
	if err != nil {
		return err
	}
	defer dst.Free()
	for i, h := 0, src.Host(); i < n; i++ {
		h[i] = float32(w.Rank() + 1 + i%7)
	}
	if err := dst.Fill(-1); err != nil {
		return err
	}
	points, err := timed(w, bytes, []string{"spmd.AllReduce"}, func() error { return spmd.AllReduce(w.Comm, dst, src, spmd.Sum) })
	if err != nil {
		return err
	}
	for i, got := range dst.Host() {
		if want := float32(w.Size()*(w.Size()+1)/2 + w.Size()*(i%7)); got != want {
			return fmt.Errorf("element %d is %v, want %v", i, got, want)
		}
	}
	return emit(w, points)
}

// pingPong measures half a round trip between ranks 0 and 1, through spmd and
// through gompi, turn and turn about.
func pingPong(w *spmd.World, bytes int) error {
	n, peer := bytes/8, 1-w.Rank()
	x, err := spmd.AllocPinned[float64](w, n)
	if err != nil {
		return err
	}
	defer x.Free()
	ours := func() error {
		if w.Rank() == 0 {
			if err := spmd.Send(w.Comm, x, peer); err != nil {
				return err
			}
			return spmd.Recv(w.Comm, x, peer)
		}
		if err := spmd.Recv(w.Comm, x, peer); err != nil {
			return err
		}
		return spmd.Send(w.Comm, x, peer)
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
	points, err := timed(w, bytes, []string{"spmd.Send and Recv", "gompi SendFloat64s and RecvPreallocFloat64s"}, ours, theirs)
	if err != nil {
		return err
	}
	for i := range points {
		points[i].MedianUS /= 2
		points[i].MinUS /= 2
	}
	return emit(w, points)
}
