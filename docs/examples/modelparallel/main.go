// Modelparallel spreads the rows of a layer's weights over the ranks. Each computes its part of the
// layer's output, and all gather the whole of it for the next layer.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("modelparallel", pflag.ExitOnError), modelParallel)
}

//go:generate go run lockstep/spmd/spmdgen

// modelParallelLayer multiplies row i of a by x.
//
//spmd:kernel
func modelParallelLayer(i int, y, a, x []float32) {
	sum := float32(0)
	for j, v := range x {
		sum += a[i*len(x)+j] * v
	}
	y[i] = max(0, sum)
}

func modelParallel(_ context.Context, w *spmd.World) error {
	const n = 12 // channels, which 1 to 4 ranks divide
	per := n / w.Size()
	weights, err := spmd.Alloc[float32](w, n*n+per*n+n) // all rows, which rank 0 has; this rank's; the activations
	s, err2 := w.NewStream("layers")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	all, rows, x := weights.Slice(0, n*n), weights.Slice(n*n, n*n+per*n), weights.Slice(n*n+per*n, weights.Len())
	host := make([]float32, n*n)
	for k := range host {
		host[k] = float32(k/n%3) - float32(k%n%2)
	}
	part, on := x.Slice(per*w.Rank(), per*w.Rank()+per), w.Comm().On(s)
	y, err := spmd.Alloc[float32](w, per)
	err = errors.Join(err, all.CopyFrom(host), x.SetAll(1), spmd.Scatter(on, rows, all, 0))
	for range 2 { // layers of the same weights
		err = errors.Join(err, launchModelParallelLayer(s, per, y, rows, x),
			spmd.Copy(s, part, y), spmd.AllGather(on, x, part))
	}
	if err := errors.Join(err, s.Synchronize()); err != nil || w.Rank() != 0 {
		return err
	}
	fmt.Println("output:", x.At(0), x.At(1), x.At(2), "...", x.At(n-1))
	return nil
}
