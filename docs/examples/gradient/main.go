// Gradient computes on each rank and averages the results, in the order of one stream: the host
// waits once, at the end.
package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("gradient", pflag.ExitOnError), gradient)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func gradientOf(i int, g []float32, rank float32) { g[i] = float32(i) * (rank + 1) }

func gradient(_ context.Context, w *spmd.World) error {
	s, err := w.NewStream("gradient")
	if err != nil {
		return err
	}
	g, err := spmd.Alloc[float32](w, 1000)
	if err != nil {
		return err
	}
	defer g.Free()
	if err := launchGradientOf(s, g.Len(), g, float32(w.Rank())); err != nil {
		return err
	}
	if err := spmd.AllReduce(w.Comm().On(s), g, g, spmd.Avg); err != nil { // runs when the kernel has ended
		return err
	}
	if err := s.Synchronize(); err != nil || w.Rank() != 0 { // from here on the host may look
		return err
	}
	fmt.Printf("average gradient: %v %v ... %v\n", g.At(0), g.At(1), g.At(999))
	return nil
}
