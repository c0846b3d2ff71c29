// Slices adds two arrays. Each rank holds one slice, the outermost dimension, and gathers the sum.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

func main() {
	spmd.Main(pflag.NewFlagSet("slices", pflag.ExitOnError), addSlices)
}

//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func slicesAdd(i int, a, b []float32) { a[i] += b[i] }

func addSlices(_ context.Context, w *spmd.World) error {
	const n = 3 * 4 // elements of a slice
	all, err := spmd.Alloc[float32](w, 2*n*w.Size())
	if err != nil {
		return err
	}
	mine, err := spmd.Alloc[float32](w, 2*n)
	if err != nil {
		return err
	}
	s, err := w.NewStream("add")
	if err != nil {
		return err
	}
	host := make([]float32, all.Len())
	for i := range host { // for each rank n elements of a, then n of b
		host[i] = float32(i % 100)
	}
	a, b, sum, on := mine.Slice(0, n), mine.Slice(n, 2*n), all.Slice(0, n*w.Size()), w.Comm().On(s)
	err = errors.Join( // in this order; all but the first in the stream's
		all.CopyFrom(host), // rank 0's counts
		spmd.Scatter(on, mine, all, 0),
		launchSlicesAdd(s, n, a, b),
		spmd.Gather(on, sum, a, 0),
		s.Synchronize(), // before the host looks
	)
	for r := 0; err == nil && r < w.Size() && w.Rank() == 0; r++ {
		fmt.Printf("slice %d: %v + %v = %v\n", r, host[2*n*r+5], host[2*n*r+n+5], sum.At(n*r+5))
	}
	return err
}
