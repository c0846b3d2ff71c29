// Graph records two kernels, an all-reduce and a third kernel once, and replays them as a whole.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("graph", pflag.ExitOnError), graph)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func graphAXPB(i int, x []float64, a, b float64) { x[i] = a*x[i] + b }

func graph(_ context.Context, w *spmd.World) error {
	s, err := w.NewStream("graph")
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[float64](w, 1000)
	if err != nil {
		return err
	}
	axpb := func(a, b float64) error { // x = a*x + b
		return launchGraphAXPB(s, x.Len(), x, a, b)
	}
	g, err := s.Capture(func() error { // records, and runs nothing
		return errors.Join(axpb(2, 0), axpb(1, 1), spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum),
			axpb(1/float64(w.Size()), 0))
	})
	if err != nil {
		return err
	}
	if err := x.SetAll(float64(w.Rank())); err != nil {
		return err
	}
	for n := range 3 {
		if err := errors.Join(g.Launch(s), s.Synchronize()); err != nil {
			return err
		}
		if w.Rank() == 0 {
			fmt.Printf("after replay %d: %.1f\n", n+1, x.At(0))
		}
	}
	return nil // the world closes the graph, before communicators and memory
}
